"""A turn of the model that nothing was said after: what stands before its next one is the template's own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from dressage_tito import ChatCodec, Encoded, Message, Refusal, ToolCall
from dressage_tito.canonical import comparable
from dressage_tito.certify import certify_codec
from dressage_tito.checks import NotApplicable, Refused, Subject
from dressage_tito.families import explanations
from dressage_tito.following import Following
from dressage_tito.fuzz import TOOLS, Conversation, Fuzzer, Round
from dressage_tito.marking import FIRST_MARKS
from dressage_tito.rendering import Rendered
from dressage_tito.toy import NOT_SPECIAL, SPECIAL
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

Granted = Callable[[Encoded | Refusal], Encoded]
MakeCodec = Callable[..., ChatCodec]
TAKEN_BY = [
    "qwen3", "glm4_5", "glm4_7", "kimi_k2", "kimi_k3", "minimax_m2", "minimax_m3", "nemotron_3-nano", "lfm2",
    "phi3", "command-r7b", "smollm3", "seed-oss", "granite-4_1", "step-3_5", "minicpm5",
    pytest.param("gpt-oss", marks=pytest.mark.heavy), pytest.param("deepseek_v3_2", marks=pytest.mark.heavy),
]  # fmt: skip
REFUSED_BY = {
    "cohere": "template_error",
    "gemma4": "turns_in_a_row",
    "hunyuan3": "turns_in_a_row",
    "apertus": "turns_in_a_row",
}
texts = st.lists(
    st.sampled_from(["a", "word", " ", "\n", "é", "你", "{}", *SPECIAL, *NOT_SPECIAL]), min_size=1, max_size=5
).map(lambda parts: "".join(parts))
said = st.lists(st.sampled_from(["a", "word", "é", "你好", "{}"]), min_size=1, max_size=5).map("".join)
CHATML = (
    "{%- for m in messages %}{{- BEFORE }}{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- PROMPT }}{%- endif %}"
)


def chatml(before: str = "''", prompt: str = "'<|im_start|>assistant\n'") -> str:
    return CHATML.replace("BEFORE", before).replace("PROMPT", prompt)


def prefix_of(codec: ChatCodec, said: str, user: str = "u") -> list[int]:
    """A prompt and the turn that was sampled after it."""
    prompt = codec.start([Message("user", user)])
    assert isinstance(prompt, Encoded)
    return [*prompt.ids.tolist(), *codec.encode_sample(said)]


def refused(codec: ChatCodec, said: str, tools: object = None) -> str:
    found = codec.extend(prefix_of(codec, said), [], tools)  # type: ignore[arg-type]
    assert isinstance(found, Refusal), codec.decode(found.ids)
    return found.reason


@given(user=texts, turns=st.lists(said, min_size=2, max_size=5), later=texts, data=st.data())
@settings(deadline=None, max_examples=60)
def test_p1_any_number_of_turns_in_a_row_is_the_templates_own_render_and_keeps_every_sampled_id(
    toy: ChatCodec, user: str, turns: list[str], later: str, data: st.DataObject
) -> None:
    start = toy.start([Message("user", user)])
    assert isinstance(start, Encoded)
    ids = start.ids.tolist()
    for number, turn in enumerate(turns):
        cut = data.draw(st.integers(0, len(turn)))
        sampled = [*toy.encode_plain(turn[:cut]), *toy.encode_plain(turn[cut:])]
        closed = data.draw(st.booleans())
        before = [*ids, *sampled, *toy.stop_token_ids[:closed]]
        appended = [Message("user", later)] if number + 1 == len(turns) else []
        delta = toy.extend(before, appended)
        assert isinstance(delta, Encoded)
        if not appended:
            closing = "" if closed else "<|im_end|>"
            assert toy.decode(delta.ids) == closing + "\n<|im_start|>assistant\n"
            assert delta.frame.all()
        ids = [*before, *delta.ids.tolist()]
    messages = [
        Message("user", user),
        *(Message("assistant", turn) for turn in turns),
        Message("user", later),
    ]
    whole = toy.start(messages)
    assert isinstance(whole, Encoded)
    assert toy.decode(ids) == toy.decode(whole.ids)


def test_a_turn_cut_inside_its_reasoning_is_closed_where_it_was_cut(toy: ChatCodec, granted: Granted) -> None:
    delta = granted(toy.extend(prefix_of(toy, "<think>\nhm"), []))
    assert toy.decode(delta.ids) == "<|im_end|>\n<|im_start|>assistant\n"
    assert not delta.reasoning_open


@pytest.mark.parametrize("name", TAKEN_BY)
@given(seed=st.integers(0, 2**32), data=st.data())
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_familys_turns_in_a_row_are_its_templates_full_render(
    name: str, real_codec: Callable[[str], ChatCodec], seed: int, data: st.DataObject
) -> None:
    codec = real_codec(name)
    subject = Subject(codec, seed)
    drawn = subject.fuzzer.conversation(spelled=False, rounds=3)
    replies = [Message("assistant", r.reply.content, r.reply.reasoning) for r in drawn.rounds]
    first = (Message("user", "u"),)
    conversation = Conversation(
        (Round(first, replies[0]), Round((), replies[1]), Round((), replies[2])), (), drawn.tools
    )
    ids = granted_ids(codec.start(first, drawn.tools))
    history = list(first)
    try:
        for reply in replies:
            text, _ = subject.sampled(history, reply, conversation)
            ids += codec.encode_sample(text)
            ids += granted_ids(codec.extend(ids, (), drawn.tools))
            history.append(reply)
    except (Refused, NotApplicable):
        return  # the template cannot express the conversation
    whole = codec.encode_sample(subject.full(history, conversation))
    assert comparable(codec, codec.decode(ids)) == comparable(codec, codec.decode(whole))


def granted_ids(found: Encoded | Refusal) -> list[int]:
    assert isinstance(found, Encoded), found
    return list(map(int, found.ids))


@pytest.mark.parametrize("name", REFUSED_BY)
def test_a_family_that_prints_two_turns_in_a_row_in_another_way_is_refused(
    name: str, real_codec: Callable[[str], ChatCodec]
) -> None:
    codec = real_codec(name)
    for tools in (None, TOOLS) if codec.supports_tools else (None,):
        assert refused(codec, "yes", tools) == REFUSED_BY[name]


@pytest.mark.parametrize("name", ["qwen3", "kimi_k3", pytest.param("gpt-oss", marks=pytest.mark.heavy)])
def test_a_turn_of_calls_is_closed_as_calls_are(name: str, real_codec: Callable[[str], ChatCodec]) -> None:
    codec = real_codec(name)
    call = ToolCall("a1b2c3d4e", "shell", {"command": "ls"}, '{"command": "ls"}')
    user, reply = Message("user", "u"), Message("assistant", tool_calls=(call,))
    subject, conversation = Subject(codec, 0), Conversation((Round((user,), reply),), (), TOOLS)
    prompt = granted_ids(codec.start([user], TOOLS))
    text, end = subject.sampled([user], reply, conversation)
    for sampled in (text, text.removesuffix(end)):
        ids = [*prompt, *codec.encode_sample(sampled)]
        ids += granted_ids(codec.extend(ids, [], TOOLS))
        whole = codec.encode_sample(subject.full([user, reply], conversation))
        assert comparable(codec, codec.decode(ids)) == comparable(codec, codec.decode(whole))
        assert codec.decode(ids).count(end) == codec.decode(prompt).count(end) + 1


@pytest.mark.heavy
def test_a_turn_that_was_cut_where_its_next_message_begins_is_refused_and_explained(
    real_codec: Callable[[str], ChatCodec],
) -> None:
    codec = real_codec("gpt-oss")
    said = codec.encode_sample("<|channel|>analysis<|message|>hm<|end|><|start|>assistant")
    found = codec.extend([*granted_ids(codec.start([Message("user", "u")])), *said], [])
    assert isinstance(found, Refusal)
    assert found.reason == "no_messages"
    assert found.reason in explanations(codec.profile.family)


def test_calls_that_a_template_numbers_over_the_conversation_are_refused(
    real_codec: Callable[[str], ChatCodec],
) -> None:
    codec = real_codec("command-r7b")
    prefix = granted_ids(codec.start([Message("user", "u")], TOOLS))
    call = '{"tool_call_id": "0", "tool_name": "shell", "parameters": {"command": "ls"}}'
    said = f"<|START_ACTION|>[\n    {call}\n]<|END_ACTION|><|END_OF_TURN_TOKEN|>"
    found = codec.extend([*prefix, *codec.encode_sample(said)], [], TOOLS)
    assert isinstance(found, Refusal)
    assert found.reason == "turns_in_a_row"


def test_a_turn_that_stopped_on_the_next_blocks_opener_is_not_followed_by_another(
    glm_like: ChatCodec,
) -> None:
    assert granted_ids(glm_like.extend(prefix_of(glm_like, "cut"), []))
    assert refused(glm_like, "done<|user|>") == "stop_mismatch"


AGAIN = "loop.index0 and m.role == messages[loop.index0 - 1].role"
OWN = "messages[-1].role == 'assistant'"
HEADER = "'<|im_start|>' + m.role + '\n'"
RAISES = f"{{%- if {AGAIN} %}}{{{{- raise_exception('no') }}}}{{%- endif %}}"
ALTERNATES = chatml().replace("{{- ''", RAISES + "{{- ''")
JOINS = chatml().replace(HEADER, f"('' if {AGAIN} else {HEADER})")
OPEN = chatml(prompt=f"('' if {OWN} else '<|im_start|>assistant\n')")
COUNTS = chatml(
    prompt="'<|im_start|>assistant\n' + ('again\n' if messages[-2] and messages[-3] and "
    "messages[-2].role == messages[-3].role else '')"
)
MOVES = "'<|im_start|>system\nGo on.<|im_end|>\n'"
REWRITES = chatml(before=f"({MOVES} if loop.first and add_generation_prompt and {OWN} else '')")
NAMES = chatml(before=f"('--\n' if {AGAIN} else '')")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (ALTERNATES, "template_error"),
        (JOINS, "turns_in_a_row"),
        (OPEN, "turns_in_a_row"),
        (COUNTS, "turns_in_a_row"),
        (REWRITES, "template_rewrites_history"),
        (NAMES, "turns_in_a_row"),
    ],
    ids=["alternates", "joins", "stays open", "counts", "rewrites", "names"],
)
def test_a_template_of_ones_own_is_refused_for_what_it_does(
    source: str, reason: str, codec_with: MakeCodec
) -> None:
    codec = codec_with(source)
    assert refused(codec, "yes<|im_end|>") == reason
    assert isinstance(codec.extend(prefix_of(codec, "yes<|im_end|>"), [Message("user", "v")]), Encoded)


def test_a_template_that_prints_no_further_header_is_taken_at_its_word(
    codec_with: MakeCodec, granted: Granted
) -> None:
    """DeepSeek V3.1 and later: its next turn follows the last one's closing."""
    codec = codec_with(OPEN.replace(HEADER, f"('' if {AGAIN} else {HEADER})"))
    delta = granted(codec.extend(prefix_of(codec, "cut"), []))
    assert codec.decode(delta.ids) == "<|im_end|>\n"


def test_a_requests_own_arguments_are_asked_for(codec_with: MakeCodec, granted: Granted) -> None:
    prompt = "'<|im_start|>assistant\n' + ('<think>\n' if think is defined and think else '')"
    codec = codec_with(chatml(prompt=prompt))
    prefix = prefix_of(codec, "cut")
    for kwargs, opened in (({}, False), ({"think": True}, True), ({}, False)):
        delta = granted(codec.extend(prefix, [], template_kwargs=kwargs))
        assert codec.decode(delta.ids).endswith("<think>\n") == opened


def test_what_is_kept_of_arguments_is_bounded(toy: ChatCodec) -> None:
    codec = toy.with_profile(toy.profile)
    for number in range(70):
        assert isinstance(codec.extend([5], [], template_kwargs={"x": number}), Encoded)
        assert len(codec._following._known) <= 32
    codec = toy.with_profile(toy.profile)
    assert isinstance(codec.extend([5], [], template_kwargs={"x": "n" * 5000}), Encoded)
    assert not codec._following._known


def test_under_the_templates_policy_a_thought_goes_where_the_template_drops_it(
    qwen3: ChatCodec, granted: Granted
) -> None:
    """Qwen3 prints an empty thought in the very last turn alone."""

    def extended(said: list[str], appended: list[Message]) -> Encoded | Refusal:
        ids = granted_ids(qwen3.start([Message("user", "u")]))
        for number, text in enumerate(said):
            ids += granted_ids(qwen3.extend(ids, [])) if number else []
            ids += qwen3.encode_sample(text)
        return qwen3.extend(ids, appended, thinking="as-template")

    thought, empty = "<think>\nhm\n</think>\n\nyes<|im_end|>", "<think>\n\n</think>\n\nyes<|im_end|>"
    granted(extended([thought], []))
    granted(extended([thought, thought], []))
    granted(extended([empty], []))
    for turns, appended in (([empty, empty], []), ([thought], [Message("user", "v")])):
        refusal = extended(turns, appended)
        assert isinstance(refusal, Refusal)
        assert refusal.reason == "thinking_stripped"


def test_certification_tries_turns_in_a_row(
    toy: ChatCodec, codec_with: MakeCodec, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "" in Subject(toy, 0).fuzzer._extra
    assert "" not in Subject(codec_with(JOINS), 0).fuzzer._extra
    monkeypatch.setattr(Following, "tail", lambda *_, **__: Rendered("<|im_end|>\n", (), FIRST_MARKS))
    report = certify_codec(toy, "toy", conversations=30)
    assert {failure.check for failure in report.failures} & {"extend", "prefix", "policy"}
    assert not report.certified


def test_made_up_conversations_have_turns_in_a_row_only_where_that_is_taken() -> None:
    def rows(extra: list[str]) -> int:
        made = Fuzzer(0, [], tools=False, reasoning=False, system=True, extra=extra)
        return sum(not r.appended for _ in range(50) for r in made.conversation(spelled=False).rounds)

    assert rows([""])
    assert not rows([])
