"""What a call is for, by headers, marks and what the tree holds."""

import asyncio
import time

import pytest
from dressage_proxy.branches import forks

RUN = {"type": "function", "function": {"name": "run", "parameters": {}}}


def user(text):
    return {"role": "user", "content": text}


def system(text):
    return {"role": "system", "content": text}


def echo(reply):
    return reply.choices[0].message.model_dump(exclude_none=True)


async def kinds(rig, session):
    return [(str(turn.kind), turn.parent, turn.cut_reason) for turn in rig.tree(session).turns]


HEADERS = [
    ({"x-claude-code-agent-id": "a"}, "subagent"),
    ({"x-parent-session-id": "p", "x-session-id": "s"}, "subagent"),
    ({"x-codex-parent-thread-id": "p", "thread-id": "t"}, "subagent"),
    ({"x-openai-subagent": "review"}, "subagent"),
    ({"x-openai-subagent": "compact"}, "compaction"),
    ({"x-codex-turn-metadata": '{"request_kind":"compaction","window_number":1}'}, "compaction"),
    ({"x-codex-turn-metadata": '{"request_kind":"turn"}'}, "main"),
    ({"x-session-id": "s", "thread-id": "t"}, "main"),
    ({"x-interaction-type": "conversation-subagent", "x-initiator": "agent"}, "subagent"),
    ({"x-interaction-type": "conversation-compaction", "x-initiator": "agent"}, "compaction"),
    ({"x-interaction-type": "conversation-user", "x-initiator": "user"}, "main"),
]


@pytest.mark.parametrize(("headers", "kind"), HEADERS)
async def test_headers_say_what_a_call_is_for(rig, headers, kind):
    session = await rig.open()
    await rig.chat(session, system("A"), "go")
    await rig.chat(session, system("A"), "other", extra_headers=headers)
    assert (await kinds(rig, session))[1][0] == kind


MARKS = [
    ("CRITICAL: Respond with TEXT ONLY. Do not call tools.", "compaction"),
    ("You are performing a CONTEXT CHECKPOINT COMPACTION. Create a summary.", "compaction"),
    ("Your task is to create a detailed summary of the conversation so far", "compaction"),
    ("[SUGGESTION MODE: suggest what the user might type]", "helper"),
    ("Please write a 5-10 word title for the following conversation:", "helper"),
    ("Generate a concise, sentence-case title (3-7 words) for this coding session.", "helper"),
    ("### Task:\nGenerate a concise, 3-5 word title with an emoji.", "helper"),
    ("### Task:\nSuggest 3-5 relevant follow-up questions", "helper"),
    ("Based on the conversation so far, provide a concise description of this session", "helper"),
    ("Analyze *only* the content and structure of your immediately preceding response", "helper"),
    ("CRITICAL: This summarization request is a SYSTEM OPERATION, no message", "compaction"),
    ("The current conversation is rapidly running out of context window. Now", "compaction"),
    ("Provide a detailed prompt for continuing our conversation above.", "compaction"),
    ("Please summarize our conversation so far in detail", "compaction"),
    ("Provide a detailed summary of our conversation above.", "compaction"),
    ("First, reason in your scratchpad. Then, generate the <state_snapshot>.", "compaction"),
    ("You are the part that summarizes a conversation which grows too long.", "compaction"),
    ("You have been working on the task described above but have not yet completed it. Write", "compaction"),
    ("Generate the session title now.", "helper"),
    ("Given the above, reply with a title for the chat in four words", "helper"),
    ("You are asked to compress the logs of this day", "main"),
    ("Reply with a title for the book", "main"),
    ("Tell me about CONTEXT CHECKPOINT COMPACTION", "main"),
    ("What is a title?", "main"),
    ("Write a short title into README.md", "main"),
    ("Generate a title page for the docs", "main"),
    ("Create a chat application with a title bar", "main"),
    ("Summarize this article", "main"),
    ("### Task:\nFix the bug", "main"),
]


@pytest.mark.parametrize(("text", "kind"), MARKS)
async def test_a_mark_at_the_start_of_the_last_message_says_what_it_is_for(rig, text, kind):
    session = await rig.open()
    first = await rig.chat(session, "go", tools=[RUN])
    for content in (text, [{"type": "text", "text": "so"}, {"type": "text", "text": text}]):
        await rig.chat(session, "go", echo(first), user(content), tools=[RUN])
    found = await kinds(rig, session)
    assert [one[0] for one in found[1:]] == [kind, kind]
    await rig.chat(session, "go", echo(first), "on", tools=[RUN])
    last = (await kinds(rig, session))[-1]
    assert last == ("main", 0, "" if kind != "main" else "branched"), "it stands beside the branch"


@pytest.mark.parametrize("text", [text for text, kind in MARKS if kind != "main"])
async def test_a_first_request_with_tools_is_what_the_user_wants_whatever_its_words_are(rig, text):
    session = await rig.open()
    await rig.chat(session, system("A"), text, tools=[RUN])
    assert [one[0] for one in await kinds(rig, session)] == ["main"]


async def test_a_flattened_conversation_without_tools_is_a_compaction(rig):
    session = await rig.open()
    first = await rig.chat(session, system("A"), "go", tools=[RUN])
    flat = "Shorten it.\n\n<conversation>\n[User]: go\n</conversation>"
    await rig.chat(session, system("B"), flat)
    await rig.chat(session, system("A"), "go", echo(first), user(flat), tools=[RUN])
    assert [one[0] for one in await kinds(rig, session)] == ["main", "compaction", "main"]


SYSTEMS = [
    ("You are a title generator. You output ONLY a thread title.", "helper"),
    ("Generate a concise title", "helper"),
    ("You are a helpful AI assistant tasked with summarizing conversations.", "compaction"),
    (
        "you will generate a short title based on the first message a user begins a conversation with",
        "helper",
    ),
    ("Summarize this coding conversation in under 50 characters.", "helper"),
    ("Analyze if this message indicates a new conversation topic.", "helper"),
    ("You are a helpful assistant that compacts conversation context.", "compaction"),
    ("You are a specialized component responsible for distilling chat history", "compaction"),
    ("You are maintaining a context-aware state summary for an interactive agent.", "compaction"),
    ("*Briefly* summarize this partial conversation about programming.", "compaction"),
    ("You are an expert context compressor. Shorten what follows.", "compaction"),
    ("You are a coding agent. You are good at writing and maintaining summaries of talks.", "compaction"),
    ("You generate recaps of sessions for somebody who was away.", "helper"),
    ("You are a security classifier for a coding agent. Allow or block the call.", "helper"),
    ("You are selecting memories that help with what the user asks.", "helper"),
    ("Write a short summary label of what these tool calls did.", "helper"),
    ("You are a file search specialist.", "subagent"),
    ("You are a mood classifier.", "subagent"),
    ("You name titles of books.", "subagent"),
]


@pytest.mark.parametrize(("text", "kind"), SYSTEMS)
async def test_a_system_prompt_says_what_a_call_is_for_even_when_it_comes_first(rig, text, kind):
    session = await rig.open()
    await rig.chat(session, system(text), "x")
    await rig.chat(session, system("You are a coding agent."), "x", tools=[RUN])
    await rig.chat(session, system(text), "y")
    found = [one[0] for one in await kinds(rig, session)]
    assert found[2] == kind if kind != "subagent" else found[0] == "main"
    if kind in ("helper", "compaction"):
        assert found == [kind, "main", kind]


@pytest.mark.parametrize("text", [text for text, _ in SYSTEMS])
async def test_an_agent_with_tools_is_the_main_one_whatever_its_prompt_speaks_of(rig, text):
    session = await rig.open()
    first = await rig.chat(session, system(text), "go", tools=[RUN])
    await rig.chat(session, system(text), "go", echo(first), "on", tools=[RUN])
    assert {one[0] for one in await kinds(rig, session)} == {"main"}


@pytest.mark.parametrize("text", ["Please summarize our conversation so far", "Write a title for this chat"])
async def test_a_user_who_asks_for_what_agents_ask_for_too_ends_no_branch(rig, text):
    session = await rig.open()
    history = [user("go")]
    for said in (text, "on", "and on"):
        reply = await rig.chat(session, *history, tools=[RUN])
        history += [echo(reply), user(said)]
    await rig.chat(session, *history, tools=[RUN])
    found = await kinds(rig, session)
    assert [one[0] for one in found[:1] + found[2:]] == ["main"] * 3
    assert [one[1] for one in found] == [-1, 0, 1, 2]


async def test_a_task_that_asks_for_a_title_is_trained(rig):
    session = await rig.open()
    first = await rig.chat(session, "Write a title for the story: once upon a time")
    await rig.chat(session, "Write a title for the story: once upon a time", echo(first), "another")
    trajectory = await rig.end(session)
    assert trajectory.trained_tokens == trajectory.sampled_tokens


async def test_a_probe_of_one_token_is_a_helper_and_a_short_question_is_not(rig):
    session = await rig.open()
    await rig.chat(session, "quota", max_tokens=1)
    await rig.chat(session, "hi", max_tokens=1)
    await rig.chat(session, "quota", max_tokens=2)
    assert [one[0] for one in await kinds(rig, session)] == ["helper", "main", "main"]


async def test_a_rebuilt_system_prompt_and_a_sent_back_turn_stay_main(rig):
    session = await rig.open()
    first = await rig.chat(session, system("At 10:01."), "go", tools=[RUN])
    await rig.chat(session, system("At 10:02."), "go", tools=[RUN])
    await rig.chat(session, system("At 10:03."), "So far:", echo(first), "on", tools=[RUN])
    await rig.chat(session, system("Other."), "[Subagent Context] search", tools=[RUN])
    assert [one[0] for one in await kinds(rig, session)] == ["main", "main", "main", "subagent"]


async def test_twin_sub_agents_that_are_asked_the_same_are_two_and_a_retry_is_one(rig):
    session = await rig.open()
    await rig.chat(session, system("A"), "go")
    task = [system("You search."), "find it"]
    for name in ("a1", "a2"):
        first = await rig.chat(session, *task, extra_headers={"x-claude-code-agent-id": name})
        await rig.chat(session, *task, echo(first), "more", extra_headers={"x-claude-code-agent-id": name})
    twins = [
        rig.chat(session, *task, extra_headers={"x-claude-code-agent-id": name}) for name in ("b1", "b2")
    ]
    await asyncio.gather(*twins)
    trajectory = await rig.end(session)
    assert trajectory.lost_tokens == {}
    assert [str(segment.kind) for segment in trajectory.segments] == ["main"] + ["subagent"] * 4


async def test_a_first_request_that_is_asked_again_is_no_other_branch(rig):
    session = await rig.open()
    await rig.chat(session, "go")
    await rig.chat(session, "go")
    found = await kinds(rig, session)
    assert found == [("main", -1, ""), ("main", -1, "")]
    assert set((await rig.end(session)).lost_tokens) == {"retry"}


FORK = "<fork-rules>\nSTOP. READ THIS.\n\nYou are a forked worker. You are NOT the main agent."


@pytest.mark.parametrize("tools", [[RUN], [RUN, {**RUN, "function": {"name": "find", "parameters": {}}}]])
async def test_a_copy_of_the_agent_that_is_given_its_history_is_a_sub_agent(rig, tools):
    session = await rig.open()
    first = await rig.chat(session, system("A"), "go", tools=[RUN])
    forked = [
        system("A"),
        user("go"),
        echo(first),
        user(FORK),
        {"role": "assistant", "content": "Understood."},
    ]
    again = await rig.chat(session, *forked, "begin", tools=tools)
    await rig.chat(session, *forked, "begin", echo(again), "more", tools=tools)
    await rig.chat(session, system("A"), "go", echo(first), "on", tools=[RUN])
    assert [one[0] for one in await kinds(rig, session)] == ["main", "subagent", "subagent", "main"]
    anchors = [segment for segment in (await rig.end(session)).segments if segment.anchor]
    assert [str(segment.kind) for segment in anchors] == ["main"]


@pytest.mark.parametrize("text", ["STOP" + " " * 200_000, "STOP " + "a b " * 50_000, "STOP\n" * 50_000])
def test_whether_a_long_message_begins_a_copy_is_seen_at_once(text):
    began = time.process_time()
    assert not forks([user(text)])
    assert time.process_time() - began < 0.5
    assert forks([user("STOP. " + "Read this. " * 10 + "\n\nYou are a forked worker process.")])


SHORTENED = [
    "<role>\nContext Extraction Assistant\n</role>\n\n<primary_objective>\nYour sole objective is to extract",
    "The following is a conversation between the user and assistant. Write a concise summary about the "
    "contents of this conversation.",
    "The following is a conversation history between a user and an AI agent. Please summarize the dialogue",
    "\nProvide a concise and complete summarization of the entire dialog that does not exceed 5 sentences.",
    "**Generate a clear and complete summary of the entire conversation in five sentences.**",
    "Summarize the following conversation history concisely, preserving key decisions:\n\nuser: go",
    "    Analyze the following conversation between a user and an assistant, and extract the details:",
]
"""As libraries of agents ask for it."""


@pytest.mark.parametrize("text", SHORTENED)
async def test_a_call_without_tools_beside_the_main_branch_that_asks_for_a_summary_is_a_compaction(rig, text):
    session = await rig.open()
    history = [user("went"), {"role": "assistant", "content": "did"}]
    await rig.chat(session, system("A"), "go", tools=[RUN])
    for asked in ([system(text), user("went and did it")], [user(text)], [*history, system(text)]):
        await rig.chat(session, *asked)
    await rig.chat(session, system("B"), *history, user(text), tools=[RUN])
    assert [one[0] for one in await kinds(rig, session)] == ["main", *["compaction"] * 3, "subagent"]


@pytest.mark.parametrize("text", SHORTENED)
async def test_who_starts_with_the_wish_for_a_summary_is_the_main_agent(rig, text):
    session = await rig.open()
    first = await rig.chat(session, text)
    await rig.chat(session, text, echo(first), "shorter")
    assert [one[0] for one in await kinds(rig, session)] == ["main", "main"]


@pytest.mark.parametrize("text", SHORTENED)
async def test_who_asks_again_for_the_summary_that_it_started_with_is_the_main_agent_still(rig, text):
    session = await rig.open()
    await rig.chat(session, text)
    again = await rig.chat(session, text)
    await rig.chat(session, text, echo(again), "shorter")
    assert {one[0] for one in await kinds(rig, session)} == {"main"}
    under = await rig.open()
    await rig.chat(under, system(text), "go")
    await rig.chat(under, system(text), "a history that was shortened")
    first, second = [one[0] for one in await kinds(rig, under)]
    assert second == first


BESIDE = [
    "You are now acting as the notes subagent of a coding assistant.",
    "You are a careful sub-agent that searches.",
    "You are keeping the managed memory of an assistant.",
    "You are reviewing this conversation to extract skills.",
]


@pytest.mark.parametrize("text", BESIDE)
async def test_an_agent_that_says_it_works_beside_is_a_sub_agent_though_it_has_the_history(rig, text):
    session = await rig.open()
    other = {**RUN, "function": {"name": "note", "parameters": {}}}
    first = await rig.chat(session, system("You are a coding agent."), "go", tools=[RUN])
    await rig.chat(session, system(text), "go", echo(first), "note it down", tools=[other])
    assert [one[0] for one in await kinds(rig, session)] == ["main", "subagent"]
    alone = await rig.open()
    await rig.chat(alone, system(text), "go", tools=[RUN])
    assert [one[0] for one in await kinds(rig, alone)] == ["main"]


async def test_an_agent_that_is_handed_the_history_stays_main(rig):
    session = await rig.open()
    other = {**RUN, "function": {"name": "pay", "parameters": {}}}
    first = await rig.chat(session, system("You are the desk."), "go", tools=[RUN])
    await rig.chat(session, system("You do billing."), "go", echo(first), "on", tools=[other])
    assert [one[0] for one in await kinds(rig, session)] == ["main", "main"]


OPENING = "You are a terminal assistant. " + "You finish what you are asked for. " * 8
SUMMARY = "The user wanted it to go, and it went as far as the second step."


async def after_a_compaction(rig, prompt, told, tools):
    """The kind of a request with no turn of the session in it, after one that shortened its history."""
    rig.script("did it", f"<think>\nlet me sum up\n</think>\n\n<summary>\n{SUMMARY}\n</summary>")
    session = await rig.open()
    first = await rig.chat(session, system(OPENING + "No notes."), "go", tools=[RUN])
    shorten = user("Please summarize our conversation so far")
    await rig.chat(session, system(OPENING), "go", echo(first), shorten, tools=[RUN])
    await rig.chat(session, system(prompt), told, "on", tools=tools)
    found = [one[0] for one in await kinds(rig, session)]
    assert found[:2] == ["main", "compaction"]
    return found[2]


FIND = {**RUN, "function": {"name": "find", "parameters": {}}}
GOES_ON = [
    (OPENING + "One note.", "The history was shortened.", [RUN], "main"),
    ("You assist.", f"What was before:\n<summary>\n{SUMMARY}\n</summary>", [RUN], "main"),
    ("You assist.", f"What was before: {SUMMARY}", [FIND], "main"),
    ("You assist.", "The history was shortened.", [RUN], "subagent"),
    (OPENING + "One note.", "Search for it.", [FIND], "subagent"),
    (OPENING[:100] + "But you search.", "Search for it.", [RUN], "subagent"),
    ("You search.", f"What was before: {SUMMARY[:20]}", [RUN], "subagent"),
]


@pytest.mark.parametrize(("prompt", "told", "tools", "kind"), GOES_ON)
async def test_what_goes_on_after_a_compaction_is_known_by_its_summary_or_by_how_its_prompt_opens(
    rig, prompt, told, tools, kind
):
    assert await after_a_compaction(rig, prompt, told, tools) == kind
