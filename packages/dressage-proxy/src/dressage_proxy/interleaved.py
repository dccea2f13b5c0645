"""One message for each sampled turn again, where a client sends its parallel calls one by one, each with its
result, or the calls of several turns in one message, or calls of its own beside those that were sampled; or
what a turn thought, said and called as messages of their own."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any

from dressage_tito import MessageError, message_from_json

from dressage_proxy.branches import text_blocks
from dressage_proxy.canonical import message_key

Message = Mapping[str, Any]
Numbered = tuple[int, Message]
"""A message, and its index as it came; -1 for what was split off."""
_PARTS = 8
"""A turn comes back in at most so many messages in a row."""


def turn_by_turn(
    calls: Mapping[str, int], raw: Sequence[Message], handles: Mapping[int, str]
) -> tuple[Sequence[Message], Mapping[int, str]]:
    """``raw`` with a message for each turn whose calls it has, and ``handles`` by the new indices.

    ``calls``: wire id of a call -> its turn. An assistant message that has nothing new but further calls of
    the turn before it, with results alone in between, is a part of that turn; one that has the calls of
    several turns is as many messages, each with its results. Calls that nobody sampled, put beside sampled
    ones, are a message of their own after these: the turn stays what it was, and what was put in is not lost.
    Anything else stays as it is.
    """
    turns = [_turns(calls, message) for message in raw]
    if _in_order(turns):
        return raw, handles
    joined = _joined(calls, _split(turns, raw))
    moved = {place: handles[index] for place, (index, _) in enumerate(joined) if index in handles}
    return [message for _, message in joined], moved


def _turns(calls: Mapping[str, int], message: Message) -> list[int | None]:
    """The turn of each call of a message, None for an unknown one."""
    made = message.get("tool_calls") if isinstance(message, Mapping) else None
    if not made or not isinstance(made, list) or message.get("role") != "assistant":
        return []
    ids = [call.get("id") if isinstance(call, Mapping) else None for call in made]
    return [calls.get(wire) if isinstance(wire, str) else None for wire in ids]


def _in_order(turns: Sequence[Sequence[int | None]]) -> bool:
    """Whether each message has the calls of one turn, and another than the one with calls before it."""
    before = None
    for made in turns:
        if made:
            again = made[0] is not None and made[0] == before
            if again or made.count(made[0]) != len(made):
                return False
            before = made[0]
    return True


def _split(turns: Sequence[Sequence[int | None]], raw: Sequence[Message]) -> list[Numbered]:
    """Each message that has the calls of several turns as one message a turn."""
    split: list[Numbered] = []
    index = 0
    while index < len(raw):
        message = raw[index]
        parts = _parts(turns[index], message)
        end = index + 1
        while end < len(raw) and isinstance(raw[end], Mapping) and raw[end].get("role") == "tool":
            end += 1
        own = None in turns[index] and end == len(raw)
        if len(parts) < 2 or (own and not _answered(parts[-1], raw[index + 1 :])):
            split.append((index, message))
            index += 1
            continue
        results: list[Numbered] = list(enumerate(raw))[index + 1 : end]
        for number, part in enumerate(parts):
            alone = {"role": "assistant", "content": "", "tool_calls": part}
            split.append((-1, alone) if number else (index, {**message, "tool_calls": part}))
            ids = {call["id"] for call in part}
            last = number + 1 == len(parts)
            split += [item for item in results if last or item[1].get("tool_call_id") in ids]
            results = [item for item in results if not last and item[1].get("tool_call_id") not in ids]
        index = end
    return split


def _parts(made: Sequence[int | None], message: Message) -> list[list[Any]]:
    """The calls of a message by turn, those that were not sampled last; one part where they are mixed."""
    calls = message["tool_calls"] if made else []
    if len(set(made)) < 2 or not all(_named(call) for call in calls):
        return [calls]
    sampled = [(turn, call) for turn, call in zip(made, calls, strict=True) if turn is not None]
    runs = [(turn, [call for _, call in run]) for turn, run in groupby(sampled, lambda item: item[0])]
    if len(runs) != len({turn for turn, _ in runs}):
        return [calls]
    others = [call for turn, call in zip(made, calls, strict=True) if turn is None]
    return [part for part in (*(part for _, part in runs), others) if part]


def _answered(calls: Sequence[Any], results: Sequence[Message]) -> bool:
    """Whether a result answers one of the calls: a conversation does not end with an agent's own."""
    ids = {call["id"] for call in calls}
    return any(result.get("tool_call_id") in ids for result in results)


def _named(call: object) -> bool:
    return isinstance(call, Mapping) and isinstance(call.get("id"), str)


def _joined(calls: Mapping[str, int], numbered: Sequence[Numbered]) -> list[Numbered]:
    """Further calls of the turn before in its message."""
    joined: list[Numbered] = []
    at, open_turn = 0, None
    for number, (index, message) in enumerate(numbered):
        role = message.get("role") if isinstance(message, Mapping) else None
        if role == "assistant":
            made = set(_turns(calls, message))
            turn = made.pop() if len(made) == 1 else None
            same = turn is not None and turn == open_turn and number + 1 < len(numbered)
            if same and _further(joined[at][1], message):
                first_index, first = joined[at]
                whole = [*first["tool_calls"], *message["tool_calls"]]
                joined[at] = first_index, {**first, "tool_calls": whole}
                continue
            at, open_turn = len(joined), turn
        elif role != "tool":
            open_turn = None
        joined.append((index, message))
    return joined


def _further(first: Message, message: Message) -> bool:
    """Whether a message says nothing that ``first`` does not say too, and has other calls."""
    said = (message.get("content"), first.get("content"))
    thought = (message.get("reasoning_content"), first.get("reasoning_content"))
    ids = {call["id"] for call in message["tool_calls"]}
    again = all(not new or new == old for new, old in (said, thought))
    return again and not ids & {call["id"] for call in first["tool_calls"]}


def whole_turns(
    returned: Container[str], raw: Sequence[Message], handles: Mapping[int, str]
) -> tuple[Sequence[Message], Mapping[int, str]]:
    """``raw`` with one message for each turn that comes as several in a row, and ``handles`` by the new
    indices; the very same where there is none.

    ``returned`` has the keys of the messages that turns were returned as: assistant messages in a row are one
    where together they say just what a turn said, and apart they do not. What was put beside a turn, and two
    turns in a row, stay what they are.
    """
    if not spoken_in_a_row(raw):
        return raw, handles
    whole: list[Message] = []
    moved: dict[int, str] = {}
    index = 0
    while index < len(raw):
        end = index + 1
        while end < len(raw) and end - index < _PARTS and _spoken(raw[end - 1]) and _spoken(raw[end]):
            end += 1
        message = raw[index]
        while end > index + 1:
            named = [handles.get(at, "") for at in range(index, end)]
            joined = _whole(returned, raw[index:end], named)
            if joined is not None:
                message = joined
                moved |= {len(whole): handle for handle in named if handle}
                break
            end -= 1
        else:
            if index in handles:
                moved[len(whole)] = handles[index]
        whole.append(message)
        index = end
    return (raw, handles) if len(whole) == len(raw) else (whole, moved)


def spoken_in_a_row(raw: Sequence[Message]) -> bool:
    """Whether there is anything for :func:`whole_turns` to look at."""
    return any(_spoken(one) and _spoken(two) for one, two in pairwise(raw))


def _spoken(message: object) -> bool:
    if not isinstance(message, Mapping) or message.get("role") != "assistant":
        return False
    return isinstance(message.get("tool_calls") or [], list)


def _whole(returned: Container[str], parts: Sequence[Message], handles: Sequence[str]) -> Message | None:
    """Messages, each with its handle or "", as the one that a turn was returned as; None for others."""
    if len({handle for handle in handles if handle}) > 1:
        return None
    texts = ["".join(text_blocks(part)) for part in parts]
    thoughts = [part.get("reasoning_content") for part in parts]
    calls = [call for part in parts for call in part.get("tool_calls") or ()]
    joined: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    thought = [text for text in thoughts if isinstance(text, str) and text]
    if thought:
        joined["reasoning_content"] = "".join(dict.fromkeys(thought))
    if calls:
        joined["tool_calls"] = calls
    key = _key(joined)
    if key is None or key not in returned:
        return None
    # A part that says nothing is one by its thought or handle, or where the turn is known by its calls (it is
    # what a broken stream left of an earlier try), unless turns said nothing too.
    silent = [at for at, part in enumerate(parts) if not texts[at] and not part.get("tool_calls")]
    if silent and _key({"role": "assistant", "content": ""}) in returned:
        return None
    if not calls and not all(thoughts[at] or handles[at] for at in silent):
        return None
    # Text alone may be what two turns said; beside calls it is the text of the turn that made them.
    return joined if calls or len(silent) == len(parts) - 1 else None


def _key(message: Message) -> str | None:
    """The key of a message; None where it is none."""
    try:
        return message_key(message_from_json(message))
    except MessageError:
        return None
