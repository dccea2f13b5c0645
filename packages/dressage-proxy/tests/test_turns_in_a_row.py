"""Turns of the model that nobody spoke between: each stays its sampled ids, in one segment."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from dressage_proxy.composing import Composed, Piece, compose
from dressage_proxy.echoes import Echo
from dressage_segments import TrajectoryTree
from dressage_store import FilesStore
from dressage_tito import ChatCodec, Encoded, Message, Refusal
from dressage_tito.toy import TEMPLATE, write_toy_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

ROUTES = ["chat", "responses"]
USER = {"role": "user", "content": "go"}
MORE = {"role": "user", "content": "more"}
AGAIN = "loop.index0 and message.role == 'assistant' == messages[loop.index0 - 1].role"
ALTERNATES = TEMPLATE.replace(
    "{%- for message in messages %}",
    "{%- for message in messages %}{%- if " + AGAIN + " %}{{- raise_exception('no') }}{%- endif %}",
)

OPENERS = (
    "{%- for m in messages %}{{- '<|' + m.role + '|>\n' + m.content }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|assistant|>\n' }}{%- endif %}"
)

BARE = (
    "{%- for m in messages %}{%- if m.role == 'assistant' %}{{- m.content + '<|im_end|>' }}"
    "{%- else %}{{- '<|im_start|>' + m.content }}"
    "{%- if loop.nextitem is defined and loop.nextitem.role == 'assistant' or loop.last and "
    "add_generation_prompt %}{{- '<|endoftext|>' }}{%- endif %}{%- endif %}{%- endfor %}"
)


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


async def ask(rig: Any, session: str, route: str, messages: list[Any], **body: Any) -> Any:
    """The reply: a chat message, or output items."""
    path = "chat/completions" if route == "chat" else "responses"
    sent = {"model": "m", "messages" if route == "chat" else "input": messages, **body}
    reply = await rig.http.post(f"/s/{session}/v1/{path}", json=sent)
    assert reply.status_code == 200, reply.text
    return reply.json()["choices"][0]["message"] if route == "chat" else reply.json()["output"]


async def talk(rig: Any, session: str, route: str, steps: list[list[Any]], **body: Any) -> list[Any]:
    """Ask after each step's messages, everything said before kept; the whole conversation."""
    messages: list[Any] = []
    for step in steps:
        messages += step
        reply = await ask(rig, session, route, messages, **body)
        messages += [reply] if route == "chat" else reply
    return messages


def offered(route: str, shell: dict[str, Any]) -> list[Any]:
    return [shell] if route == "chat" else [{"type": "function", **shell["function"]}]


def holds_sampled(rig: Any, tree: TrajectoryTree) -> None:
    """Each turn's prompt begins with the ids that its parent's walk ends with, and nothing was rendered."""
    for turn in tree.turns:
        assert "rendered" not in turn.extra
        if turn.parent >= 0:
            walk = tree.ids(turn.parent).tolist()
            assert rig.engine.requests[turn.index].input_ids[: len(walk)] == walk


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("closed", [False, True])
async def test_three_turns_in_a_row_are_one_segment_of_sampled_ids(
    rig: Any, route: str, closed: bool
) -> None:
    end = list(rig.codec.stop_token_ids[:closed])
    rig.script_raw(*[[*rig.codec.encode_plain(text), *end] for text in ("The answ", "er is", " four", "so")])
    session = await rig.open()
    await talk(rig, session, route, [[USER], [], [], [MORE]])
    tree = rig.tree(session)
    assert [turn.parent for turn in tree.turns] == [-1, 0, 1, 2]
    assert [turn.cut_reason for turn in tree.turns] == [""] * 4
    assert {turn.kind.value for turn in tree.turns} == {"main"}
    closing = "" if closed else "<|im_end|>"
    for turn in tree.turns[1:3]:
        assert rig.codec.decode(turn.delta_ids) == closing + "\n<|im_start|>assistant\n"
    holds_sampled(rig, tree)
    trajectory = await rig.end(session)
    assert len(trajectory.segments) == 1
    assert trajectory.trained_tokens == trajectory.sampled_tokens


async def test_a_turn_cut_by_length_and_continued_is_closed_by_ids_that_are_not_trained(rig: Any) -> None:
    rig.script("one two three four five six seven", "eight")
    session = await rig.open()
    first = await ask(rig, session, "chat", [USER], max_tokens=3)
    await ask(rig, session, "chat", [USER, first])
    tree = rig.tree(session)
    assert tree.turn(0).finish_reason == "length"
    assert (tree.turn(1).parent, tree.turn(1).input_keys) == (0, ())
    (segment,) = (await rig.end(session)).segments
    text = rig.codec.decode(segment.token_ids[~np.asarray(segment.loss_mask, bool)])
    assert text.endswith("<|im_start|>assistant\n<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize("route", ROUTES)
async def test_a_history_told_anew_has_each_turn_of_a_row_by_its_ids(rig: Any, route: str) -> None:
    rig.script_raw(*[rig.codec.encode_plain(text) for text in ("The", " answ", "er", "so", "then")])
    session = await rig.open()
    rows = (await talk(rig, session, route, [[USER], [], []]))[1:]
    await ask(rig, session, route, [{"role": "user", "content": "So far."}, *rows, MORE])
    await ask(rig, session, route, [{"role": "user", "content": "Shorter."}, *rows])
    tree = rig.tree(session)
    for turn in tree.turns[3:]:
        assert turn.extra["copied"] == 3
        assert "rendered" not in turn.extra
        prompt = rig.codec.decode(rig.engine.requests[turn.index].input_ids)
        row = "".join(f"<|im_start|>assistant\n{text}<|im_end|>\n" for text in ("The", " answ", "er"))
        assert row in prompt
    await rig.end(session)


@pytest.mark.parametrize("second", ROUTES)
async def test_the_same_row_asked_again_is_a_retry_by_whichever_route(rig: Any, second: str) -> None:
    rig.script("one", "two", "other", "three")
    session = await rig.open()
    first = await ask(rig, session, "chat", [USER])
    await ask(rig, session, "chat", [USER, first])
    await ask(rig, session, second, [USER, said("one")])
    await ask(rig, session, second, [USER, said("one"), said("other"), MORE])
    tree = rig.tree(session)
    assert [turn.parent for turn in tree.turns] == [-1, 0, 0, 2]
    assert [turn.cut_reason for turn in tree.turns] == [""] * 4
    trajectory = await rig.end(session)
    assert len(trajectory.segments) == 1
    assert trajectory.lost_tokens == {"retry": len(tree.turn(1).output_ids)}


async def test_a_row_and_a_users_word_after_the_same_turn_are_two_branches(rig: Any) -> None:
    rig.script("one", "two", "three")
    session = await rig.open()
    first = await ask(rig, session, "chat", [USER])
    await ask(rig, session, "chat", [USER, first])
    await ask(rig, session, "chat", [USER, first, MORE])
    tree = rig.tree(session)
    assert [turn.parent for turn in tree.turns] == [-1, 0, 0]
    assert tree.turn(2).cut_reason == "branched"
    assert (await rig.end(session)).lost_tokens == {}


@pytest.mark.parametrize("route", ROUTES)
async def test_calls_that_nobody_answered_are_followed_by_a_turn(
    rig: Any, route: str, shell: dict[str, Any], call: Any
) -> None:
    rig.script(call(command="ls"), "Never mind.", "ok")
    session = await rig.open()
    await talk(rig, session, route, [[USER], [], [MORE]], tools=offered(route, shell))
    tree = rig.tree(session)
    assert [turn.parent for turn in tree.turns] == [-1, 0, 1]
    holds_sampled(rig, tree)
    assert len((await rig.end(session)).segments) == 1


async def test_items_on_both_sides_of_a_turns_calls_are_the_turns_before_and_after(
    rig: Any, shell: dict[str, Any], call: Any
) -> None:
    rig.script_raw(
        rig.codec.encode_plain("I will "), rig.ids("Now. " + call(command="a") + "<|im_end|>"),
        rig.ids(call(command="b") + "<|im_end|>"), rig.ids("Never mind.<|im_end|>"),
        rig.ids("Or else.<|im_end|>"), rig.ids("so<|im_end|>"),
    )  # fmt: skip
    session = await rig.open()
    tools = offered("responses", shell)
    items = await talk(rig, session, "responses", [[USER], [], [], [], [], [MORE]], tools=tools)
    tree = rig.tree(session)
    assert [turn.parent for turn in tree.turns] == [-1, 0, 1, 2, 3, 4]
    holds_sampled(rig, tree)
    odd = [*items[:-1], {"type": "function_call", "call_id": "x", "name": "shell", "arguments": "{"}]
    await ask(rig, session, "responses", odd, tools=tools)
    await rig.end(session)


async def test_what_a_turn_thought_after_calls_that_nobody_answered_does_not_name_the_turn_before_them(
    rig: Any, shell: dict[str, Any], call: Any
) -> None:
    rig.script_raw(
        rig.ids("I will look.<|im_end|>"), rig.ids(call(command="a") + "<|im_end|>"),
        rig.ids("<think>\nhm\n</think>\n\nNever mind.<|im_end|>"), rig.ids("so<|im_end|>"),
    )  # fmt: skip
    session = await rig.open()
    tools = offered("responses", shell)
    await talk(rig, session, "responses", [[USER], [], [], [MORE]], tools=tools)
    tree = rig.tree(session)
    assert [turn.parent for turn in tree.turns] == [-1, 0, 1, 2]
    holds_sampled(rig, tree)
    assert all("flags" not in turn.extra for turn in tree.turns)
    assert len((await rig.end(session)).segments) == 1


@pytest.mark.parametrize("route", ROUTES)
async def test_turns_in_a_row_that_said_the_same_stay_in_their_order_where_the_history_is_told_anew(
    rig: Any, route: str
) -> None:
    rig.script_raw(
        rig.ids("first<|im_end|>"), rig.ids("same<|im_end|>"),
        rig.ids("<think>\nhm\n</think>\n\nsame<|im_end|>"), rig.ids("so<|im_end|>"),
    )  # fmt: skip
    session = await rig.open()
    _, *turns = await talk(rig, session, route, [[USER], [MORE], []])
    await ask(rig, session, route, [{"role": "user", "content": "So far."}, *turns, MORE])
    prompt = rig.codec.decode(rig.engine.requests[-1].input_ids)
    assert prompt.count("hm") == 1
    assert prompt.count("same") == 2
    await rig.end(session)


async def test_what_the_last_turn_of_calls_in_a_row_thought_does_not_name_the_first_turn(
    rig: Any, shell: dict[str, Any], call: Any
) -> None:
    rig.script_raw(
        rig.ids("I will look.<|im_end|>"), rig.ids(call(command="a") + "<|im_end|>"),
        rig.ids("<think>\nhm\n</think>\n\n" + call(command="b") + "<|im_end|>"), rig.ids("so<|im_end|>"),
    )  # fmt: skip
    session = await rig.open()
    tools = offered("responses", shell)
    await talk(rig, session, "responses", [[USER], [], [], [MORE]], tools=tools)
    tree = rig.tree(session)
    assert [turn.parent for turn in tree.turns] == [-1, 0, 1, 2]
    holds_sampled(rig, tree)
    assert len((await rig.end(session)).segments) == 1


async def test_a_turn_after_calls_that_nobody_answered_is_found_where_its_context_was_told_anew(
    rig: Any, shell: dict[str, Any], call: Any
) -> None:
    rig.script(call(command="a"), "Never mind.", "so")
    session = await rig.open()
    tools = offered("responses", shell)
    items = await talk(rig, session, "responses", [[USER]], tools=tools)
    items[0] = {"role": "user", "content": "So far."}
    items += await ask(rig, session, "responses", items, tools=tools)
    await ask(rig, session, "responses", [*items, MORE], tools=tools)
    tree = rig.tree(session)
    assert [turn.parent for turn in tree.turns] == [-1, -1, 1]
    holds_sampled(rig, tree)
    await rig.end(session)


async def test_a_turn_in_a_row_keeps_its_handle_where_text_after_it_came_before_it(
    rig: Any, shell: dict[str, Any], call: Any
) -> None:
    rig.script_raw(
        rig.ids("<think>\none\n</think>\n\n" + call(command="a") + "<|im_end|>"),
        rig.ids("<think>\ntwo\n</think>\n\n" + call(command="b") + "<|im_end|>"),
        rig.ids("Never mind.<|im_end|>"), rig.ids("so<|im_end|>"),
    )  # fmt: skip
    session = await rig.open()
    tools = offered("responses", shell)
    items = await talk(rig, session, "responses", [[USER], [], []], tools=tools)
    user, thought, calls, *later, text = items
    await ask(rig, session, "responses", [user, thought, calls, text, *later, MORE], tools=tools)
    tree = rig.tree(session)
    assert [turn.parent for turn in tree.turns] == [-1, 0, 1, 2]
    holds_sampled(rig, tree)
    await rig.end(session)


@pytest.mark.parametrize("answered", [False, True])
async def test_items_of_two_turns_of_calls_are_two_turns(
    rig: Any, shell: dict[str, Any], call: Any, answered: bool
) -> None:
    """Items of the Responses API say nothing of turns: the calls stand side by side."""
    rig.script(call(command="a"), call(command="b"), "ok", "so")
    session = await rig.open()
    tools = offered("responses", shell)
    items = await talk(rig, session, "responses", [[USER], []], tools=tools)
    if answered:
        items += [{"type": "function_call_output", "call_id": items[-1]["call_id"], "output": "b"}]
    for _ in range(2):
        items += await ask(rig, session, "responses", items, tools=tools)
    tree = rig.tree(session)
    assert [turn.parent for turn in tree.turns] == [-1, 0, 1, 2]
    holds_sampled(rig, tree)
    assert len((await rig.end(session)).segments) == 1


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("own", ["", "Now. "])
async def test_a_turn_of_calls_in_one_message_with_the_turn_before_it_is_a_turn_of_its_own(
    rig: Any, route: str, own: str, shell: dict[str, Any], call: Any
) -> None:
    """Items of the Responses API say nothing of turns; chat clients join messages of one role."""
    rig.script_raw(
        rig.codec.encode_plain("I will "), rig.codec.encode_plain("look. "),
        rig.ids(own + call(command="ls") + "<|im_end|>"), rig.ids("ok<|im_end|>"), rig.ids("so<|im_end|>"),
    )  # fmt: skip
    session = await rig.open()
    tools = offered(route, shell)
    items = await talk(rig, session, route, [[USER], [], []], tools=tools)
    if route == "chat":
        *_, last = items
        items = [USER, {**last, "content": "I will look. " + own}]
        items += [{"role": "tool", "tool_call_id": last["tool_calls"][0]["id"], "content": "a"}]
    else:
        items += [{"type": "function_call_output", "call_id": items[-1]["call_id"], "output": "a"}]
    for _ in range(2):
        reply = await ask(rig, session, route, items, tools=tools)
        items += [*([reply] if route == "chat" else reply), MORE]
    tree = rig.tree(session)
    assert [turn.parent for turn in tree.turns] == [-1, 0, 1, 2, 3]
    holds_sampled(rig, tree)
    trajectory = await rig.end(session)
    assert len(trajectory.segments) == 1
    assert trajectory.trained_tokens == trajectory.sampled_tokens


@pytest.mark.parametrize("route", [*ROUTES, "joined"])
async def test_a_users_word_that_goes_leaves_two_turns_in_a_row(
    rig: Any, route: str, shell: dict[str, Any], call: Any
) -> None:
    rig.script("I will look.", call(command="ls"), "ok", "so")
    session = await rig.open()
    joined, route = route == "joined", route if route in ROUTES else "chat"
    tools = offered(route, shell)
    items = await talk(rig, session, route, [[USER], [{"role": "user", "content": "Go on."}]], tools=tools)
    items = [one for one in items if one.get("content") != "Go on."]
    if joined:
        items = [USER, {**items[-1], "content": items[1]["content"]}]
    answered = items[-1]["tool_calls"][0]["id"] if route == "chat" else items[-1]["call_id"]
    if route == "chat":
        items += [{"role": "tool", "tool_call_id": answered, "content": "a"}]
    else:
        items += [{"type": "function_call_output", "call_id": answered, "output": "a"}]
    await ask(rig, session, route, items, tools=tools)
    tree = rig.tree(session)
    last = tree.turn(2)
    assert (last.parent, last.cut_reason, last.extra["copied"]) == (0, "branched", 1)
    assert "rendered" not in last.extra
    assert rig.codec.decode(last.delta_ids).startswith("\n<|im_start|>assistant\n<tool_call>")
    await rig.end(session)


async def test_the_messages_api_may_leave_two_turns_in_a_row_too(rig: Any) -> None:
    rig.script("one", "two", "three")
    session = await rig.open()

    async def say(*messages: dict[str, Any]) -> None:
        body = {"model": "m", "max_tokens": 99, "messages": messages}
        reply = await rig.http.post(f"/s/{session}/v1/messages", json=body)
        assert reply.status_code == 200, reply.text

    await say(USER)
    await say(USER, said("one"), {"role": "user", "content": "Go on."})
    await say(USER, said("one"), said("two"), MORE)
    last = rig.tree(session).turn(2)
    assert (last.parent, last.extra["copied"]) == (0, 1)
    assert rig.codec.decode(last.delta_ids).startswith(
        "\n<|im_start|>assistant\ntwo<|im_end|>\n<|im_start|>user"
    )
    await rig.end(session)


async def test_a_message_that_grows_with_each_reply_is_one_segment(rig: Any) -> None:
    rig.script_raw(*[rig.codec.encode_plain(text) for text in ("The answ", "er is", " four", "so")])
    session = await rig.open()
    await ask(rig, session, "chat", [USER])
    for text in ("The answ", "The answer is"):
        await ask(rig, session, "chat", [USER, said(text)])
    await ask(rig, session, "chat", [USER, said("The answer is four"), MORE])
    tree = rig.tree(session)
    assert [turn.parent for turn in tree.turns] == [-1, 0, 1, 2]
    holds_sampled(rig, tree)
    assert len((await rig.end(session)).segments) == 1


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_message_that_grows_with_replies_and_results_is_one_segment(
    make_rig: Any, tmp_path: Any, restarted: bool
) -> None:
    """Calls in plain text: the turn ends at a stop string, and what the tool said is put behind it."""
    parts = ["Act: ls\nObs:", " a\n", "Act: wc\nObs:", " 3\n", "Act: ls\nObs:", " b\n"]
    rig = await make_rig()
    sampled = [rig.codec.encode_plain(text) for text in (*parts[::2], "Done.", "ok")]
    rig.script_raw(*sampled)
    session = await rig.open()
    await ask(rig, session, "chat", [USER], stop=["Obs:"])
    for size in (2, 4, 6):
        if restarted and size == 6:
            rig.store.close()
            rig = await make_rig(store=rig.stack.enter_context(FilesStore(tmp_path / "store", retain=True)))
            rig.script_raw(*sampled[3:])
        await ask(rig, session, "chat", [USER, said("".join(parts[:size]))], stop=["Obs:"])
    await ask(rig, session, "chat", [USER, said("".join(parts) + "Done."), MORE], stop=["Obs:"])
    tree = rig.tree(session)
    assert [turn.parent for turn in tree.turns] == [-1, 0, 1, 2, 3]
    assert [turn.cut_reason for turn in tree.turns] == [""] * 5
    trajectory = await rig.end(session)
    assert len(trajectory.segments) == 1
    assert trajectory.trained_tokens == trajectory.sampled_tokens


async def test_a_message_that_grew_is_its_turns_in_a_history_told_anew_too(rig: Any) -> None:
    parts = ["Act: ls\nObs:", " a\n", "Act: wc\nObs:", " 3\n", "Done."]
    rig.script_raw(*[rig.codec.encode_plain(text) for text in (*parts[::2], "ok")])
    session = await rig.open()
    await ask(rig, session, "chat", [USER], stop=["Obs:"])
    for size in (2, 4):
        await ask(rig, session, "chat", [USER, said("".join(parts[:size]))], stop=["Obs:"])
    for first in (USER, {"role": "user", "content": "So far."}):
        await ask(rig, session, "chat", [first, said("".join(parts)), MORE], stop=["Obs:"])
    here, anew = rig.tree(session).turns[3:]
    assert (here.parent, here.extra.get("copied", 0)) == (2, 0)
    assert (anew.parent, anew.extra["copied"]) == (-1, 3)
    assert "rendered" not in anew.extra
    prompt = rig.codec.decode(rig.engine.requests[4].input_ids)
    row = "<|im_end|>\n<|im_start|>assistant\n".join(("Act: ls\nObs: a", "Act: wc\nObs: 3", "Done."))
    assert f"<|im_start|>assistant\n{row}<|im_end|>\n<|im_start|>user\nmore" in prompt
    await rig.end(session)


async def test_what_a_tool_said_is_no_turn_though_a_turn_said_the_same(rig: Any) -> None:
    rig.script_raw(*[rig.codec.encode_plain(text) for text in ("ok", "Act: say\nObs:", "so")])
    session = await rig.open()
    await ask(rig, session, "chat", [MORE])
    await ask(rig, session, "chat", [USER], stop=["Obs:"])
    await ask(rig, session, "chat", [USER, said("Act: say\nObs: ok")], stop=["Obs:"])
    turn = rig.tree(session).turn(2)
    assert turn.parent == 1
    assert "copied" not in turn.extra
    assert rig.codec.decode(turn.delta_ids) == " ok<|im_end|>\n<|im_start|>assistant\n"


async def test_what_was_put_behind_is_another_text_where_no_turn_followed_it(rig: Any) -> None:
    rig.script_raw(*[rig.codec.encode_plain(text) for text in ("Act: ls\nObs:", "Act: wc\nObs:", "ok")])
    session = await rig.open()
    await ask(rig, session, "chat", [USER], stop=["Obs:"])
    await ask(rig, session, "chat", [USER, said("Act: ls\nObs: a\n")], stop=["Obs:"])
    await ask(rig, session, "chat", [USER, said("Act: ls\nObs: a\nAct: rm\nObs: 3\n")], stop=["Obs:"])
    tree = rig.tree(session)
    assert [turn.parent for turn in tree.turns] == [-1, 0, 0]
    assert tree.turn(2).cut_reason == "branched"
    assert " a\nAct: rm\nObs: 3<|im_end|>" in rig.codec.decode(tree.turn(2).delta_ids)


async def test_a_bad_message_after_one_that_grew_is_refused_by_the_clients_own_count(rig: Any) -> None:
    rig.script_raw(*[rig.codec.encode_plain(text) for text in ("Act: ls\nObs:", "Act: wc\nObs:", "ok")])
    session = await rig.open()
    await ask(rig, session, "chat", [USER], stop=["Obs:"])
    await ask(rig, session, "chat", [USER, said("Act: ls\nObs: a\n")], stop=["Obs:"])
    bad = [USER, said("Act: ls\nObs: a\nAct: wc\nObs: 3\n"), {"role": "user", "content": 5}]
    reply = await rig.post(session, {"messages": bad})
    assert reply.status_code == 400
    assert "messages[2]" in reply.json()["error"]["message"]


@pytest.mark.parametrize("route", ROUTES)
async def test_where_the_template_takes_no_two_in_a_row_that_turn_alone_is_text(
    make_rig: Any, tmp_path: Any, route: str
) -> None:
    """It asks for a turn after the model's own, and raises once there are two: nothing is proven of it."""
    folder = write_toy_tokenizer(tmp_path / "alternates", template=ALTERNATES)
    rig = await make_rig(codec=ChatCodec.from_folder(folder))
    rig.script("one", "two", "three")
    session = await rig.open()
    await talk(rig, session, route, [[USER], [MORE], []])
    tree = rig.tree(session)
    last = tree.turn(2)
    assert (last.parent, last.cut_reason) == (-1, "refused_template_error")
    assert (last.extra["copied"], last.extra["rendered"]) == (1, 1)
    assert rig.codec.decode(rig.engine.requests[2].input_ids).endswith(
        "two<|im_end|>\n<|im_start|>assistant\n"
    )
    await rig.end(session)


async def test_a_turn_that_ended_on_the_next_blocks_opener_is_copied_without_it(
    make_rig: Any, tmp_path: Any
) -> None:
    """Where the opener of a user's message ends a turn, none follows where the model goes on."""
    names = ("<|user|>", "<|assistant|>")
    folder = write_toy_tokenizer(tmp_path / "openers", template=OPENERS, more_special=names)
    stop = ChatCodec.from_folder(folder).encode_sample("<|user|>")[0]
    (folder / "generation_config.json").write_text(f'{{"eos_token_id": [{stop}]}}')
    rig = await make_rig(codec=ChatCodec.from_folder(folder))
    texts = ("one", "two", "three", "four")
    rig.script_raw(*[[*rig.codec.encode_plain(text), stop] for text in texts])
    session = await rig.open()
    await talk(rig, session, "chat", [[USER], [], [MORE], []])
    turns = rig.tree(session).turns
    assert [turn.parent for turn in turns] == [-1, -1, 1, -1]
    assert [turn.extra.get("copied", 0) for turn in turns] == [0, 1, 0, 3]
    assert not any("rendered" in turn.extra for turn in turns)
    said = [f"<|assistant|>\n{text}" for text in texts]
    prompt = rig.codec.decode(rig.engine.requests[3].input_ids)
    assert prompt == f"<|user|>\ngo{said[0]}{said[1]}<|user|>\nmore{said[2]}<|assistant|>\n"
    await rig.end(session)


async def test_a_template_without_a_further_header_puts_nothing_between_two_turns(
    make_rig: Any, tmp_path: Any
) -> None:
    """DeepSeek V3.1: the next turn follows the last one's closing."""
    folder = write_toy_tokenizer(tmp_path / "bare", template=BARE)
    rig = await make_rig(codec=ChatCodec.from_folder(folder))
    rig.script("one", "two", "three")
    session = await rig.open()
    await talk(rig, session, "chat", [[USER], [], [MORE]])
    tree = rig.tree(session)
    assert [turn.parent for turn in tree.turns] == [-1, 0, 1]
    assert len(tree.turn(1).delta_ids) == 0
    holds_sampled(rig, tree)
    trajectory = await rig.end(session)
    assert len(trajectory.segments) == 1
    assert trajectory.trained_tokens == trajectory.sampled_tokens


async def test_under_the_templates_policy_a_row_goes_on_where_the_template_keeps_it(rig: Any) -> None:
    rig.script("<think>\nhm\n</think>\n\none", "two", "three")
    session = await rig.open(thinking="as-template")
    await talk(rig, session, "chat", [[USER], [], []])
    tree = rig.tree(session)
    assert [turn.parent for turn in tree.turns] == [-1, 0, 1]
    await rig.end(session)


words = st.lists(st.sampled_from(["a", "word", "é", "你好", "{}"]), min_size=1, max_size=4).map("".join)


@given(
    texts=st.lists(st.tuples(st.sampled_from(["user", "echo", "other"]), words), min_size=1, max_size=8),
    data=st.data(),
    prefixed=st.booleans(),
)
@settings(max_examples=80, deadline=None)
def test_any_order_of_turns_is_the_templates_own_with_every_sampled_id(
    codec: ChatCodec, texts: list[tuple[str, str]], data: st.DataObject, prefixed: bool
) -> None:
    prefix = None
    history = [Message("user", "start")]
    if prefixed:
        start = codec.start(history)
        assert isinstance(start, Encoded)
        prefix = np.concatenate([start.ids, np.asarray(codec.encode_plain("cut"), np.int32)])
        history.append(Message("assistant", "cut"))
    pieces = [] if prefixed else [Piece(history[0], None, None)]
    for number, (kind, text) in enumerate(texts):
        message = Message("user" if kind == "user" else "assistant", text)
        history.append(message)
        if kind != "echo":
            pieces.append(Piece(message, None, None))
            continue
        cut = data.draw(st.integers(0, len(text)))
        ids = [*codec.encode_plain(text[:cut]), *codec.encode_plain(text[cut:])]
        ids += codec.stop_token_ids[: data.draw(st.integers(0, 1))]
        pieces.append(Piece(message, Echo(number, len(ids), ""), np.asarray(ids, np.int32)))
    composed = compose(codec, pieces, prefix, None, {})
    assert isinstance(composed, Composed)
    assert (composed.copied, composed.rendered) == (sum(kind == "echo" for kind, _ in texts), 0)
    whole = codec.start(history)
    assert not isinstance(whole, Refusal)
    ids = composed.encoded.ids if prefix is None else np.concatenate([prefix, composed.encoded.ids])
    assert codec.decode(ids) == codec.decode(whole.ids)
    assert len(composed.encoded.ids) == len(composed.encoded.frame)
    row, frame = composed.encoded.ids.tolist(), composed.encoded.frame
    at = 0
    for sampled in [piece.ids.tolist() for piece in pieces if piece.ids is not None]:
        size = len(sampled)
        found = (
            i for i in range(at, len(row)) if row[i : i + size] == sampled and not frame[i : i + size].any()
        )
        at = next(found) + size
