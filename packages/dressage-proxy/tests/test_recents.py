"""What a session knows of earlier requests changes nothing of how a request is read."""

from __future__ import annotations

import copy
import json
from typing import Any

from dressage_proxy.added import Behind, apart
from dressage_proxy.interleaved import turn_by_turn
from dressage_proxy.recents import Recents
from dressage_proxy.volatile import pin_volatile
from hypothesis import given, settings
from hypothesis import strategies as st

CALLS = {"one": 0, "two": 0, "three": 1, "four": 2}


def call(wire: str) -> dict[str, Any]:
    return {"id": wire, "type": "function", "function": {"name": "f", "arguments": "{}"}}


wires = st.sampled_from([*CALLS, "unknown"])
message = st.one_of(
    st.builds(lambda text: {"role": "user", "content": text}, st.sampled_from(["a", "b"])),
    st.builds(
        lambda made: {"role": "assistant", "content": "", "tool_calls": [call(wire) for wire in made]},
        st.lists(wires, max_size=3, unique=True),
    ),
    st.builds(lambda wire: {"role": "tool", "content": "r", "tool_call_id": wire}, wires),
    st.builds(
        lambda day: {"role": "system", "content": f"Today's date is 2026-01-0{day}"}, st.integers(1, 3)
    ),
)
more = st.tuples(st.integers(0, 8), st.lists(message, max_size=4))


def keys(raw: list[Any]) -> tuple[str, ...]:
    return tuple(json.dumps(item, sort_keys=True) for item in raw)


@settings(deadline=None, max_examples=300)
@given(st.lists(more, min_size=1, max_size=10))
def test_a_request_is_read_as_if_it_were_the_first(steps: list[tuple[int, list[Any]]]) -> None:
    """Each keeps some of the messages of the request before it and then says more."""
    recents = Recents()
    pinned: dict[str, str] = {}
    same: dict[str, str] = {}
    came: list[Any] = []
    for kept, said in steps:
        came = copy.deepcopy([*came[: len(came) - kept], *said])
        handles = {index: f"handle {index}" for index, item in enumerate(came) if item["role"] == "assistant"}
        read = recents.read(CALLS, pinned, came, handles)
        turns, moved = turn_by_turn(CALLS, came, handles)
        assert read.raw == pin_volatile(same, turns)
        assert read.handles == moved
        assert pinned == same
        assert read.known == keys(read.raw)[: len(read.known)]
        recents.note(read, keys(read.raw))
        assert len(recents._kept) <= 4


def test_of_a_conversation_that_goes_on_only_the_new_messages_are_read(monkeypatch) -> None:
    recents, came = Recents(), [{"role": "system", "content": "s"}]
    looked_at: list[int] = []

    def noted(calls: Any, raw: Any, handles: Any) -> Any:
        looked_at.append(len(raw))
        return turn_by_turn(calls, raw, handles)

    monkeypatch.setattr("dressage_proxy.recents.turn_by_turn", noted)
    for number in range(50):
        came = [
            *came,
            {"role": "assistant", "content": "", "tool_calls": [call(f"call{number}")]},
            {"role": "tool", "content": "r", "tool_call_id": f"call{number}"},
        ]
        read = recents.read({}, {}, copy.deepcopy(came), {})
        assert len(read.known) == (len(came) - 2 if number else 0)
        recents.note(read, keys(read.raw))
    assert looked_at[1:] == [4] * 49


def test_of_a_conversation_with_text_behind_turns_only_the_new_messages_are_read(monkeypatch) -> None:
    recents, added = Recents(), {"said and more": Behind("said", " and more")}
    came: list[Any] = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "said and more"}]
    handles = {1: "first"}
    first = recents.read({}, {}, came, handles, added)
    assert [item["content"] for item in first.raw] == ["a", "said", " and more"]
    recents.note(first, keys(first.raw))
    looked_at: list[int] = []

    def noted(added: Any, raw: Any, handles: Any) -> Any:
        looked_at.append(len(raw))
        return apart(added, raw, handles)

    for text in ("other", "said and more", "other", "said and more"):
        handles = {**handles, len(came) + 1: text}
        came = [*came, {"role": "user", "content": "b"}, {"role": "assistant", "content": text}]
        with monkeypatch.context() as patched:
            patched.setattr("dressage_proxy.recents.apart", noted)
            read = recents.read({}, {}, copy.deepcopy(came), handles, added)
        anew = Recents().read({}, {}, came, handles, added)
        assert (read.raw, read.handles) == (anew.raw, anew.handles)
        assert read.known == keys(read.raw)[: len(first.raw)]
        recents.note(read, keys(read.raw))
        first = read
    assert looked_at == [2] * 4


def test_a_call_that_belongs_to_the_turn_before_is_seen_though_that_was_read_before() -> None:
    recents = Recents()
    first = {"role": "assistant", "content": "", "tool_calls": [call("one")]}
    answer = {"role": "tool", "content": "r", "tool_call_id": "one"}
    came = [{"role": "user", "content": "a"}, first, answer]
    recents.note(recents.read(CALLS, {}, came, {}), keys(came))
    further = [{**first, "tool_calls": [call("two")]}, {**answer, "tool_call_id": "two"}]
    read = recents.read(CALLS, {}, [*came, *further], {})
    assert [len(item.get("tool_calls", ())) for item in read.raw] == [0, 2, 0, 0]
