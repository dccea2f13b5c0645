"""The short conversation before appended messages, so that a template prints what follows a turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dressage_tito.marking import Marker
from dressage_tito.messages import Message, ToolCall
from dressage_tito.probe import KEY
from dressage_tito.template import Json


def before_tail(appended: Sequence[Message], *, with_calls: bool) -> list[Message]:
    """A user message and an assistant turn (with the calls that leading tool messages answer)."""
    calls: list[ToolCall] = []
    for message in appended if with_calls else ():
        if message.role != "tool":
            break
        calls.append(
            ToolCall(
                message.tool_call_id or "call00001",
                message.name or "f",
                {KEY: "Xq7cut"},
                f'{{"{KEY}": "Xq7cut"}}',
            )
        )
    return [Message("user", "hi"), Message("assistant", "" if calls else "ok", tool_calls=tuple(calls))]


def _cut(marker: Marker, last: Sequence[Message]) -> list[Json]:
    """The last dummy message with the cut mark where its own text ends."""
    result: list[Json] = []
    for message in marker.messages(last, marked=False):
        calls = message.get("tool_calls")
        if not calls:
            result.append({**message, "content": message["content"] + marker.marks.cut})
            continue
        arguments = calls[-1]["function"]["arguments"]
        cut = marker.marks.cut
        function = {
            **calls[-1]["function"],
            "arguments": f'{{"{KEY}": "{cut}"}}' if isinstance(arguments, str) else {KEY: cut},
        }
        result.append({**message, "tool_calls": [*calls[:-1], {**calls[-1], "function": function}]})
    return result


def head_messages(marker: Marker, before: Sequence[Message]) -> list[Json]:
    """Dummy messages as the template takes them, the last one cut; none for none."""
    return [*marker.messages(before[:-1], marked=False), *_cut(marker, before[-1:])]


def said_with(
    marker: Marker, before: Sequence[Message], messages: Sequence[Message], texts: Sequence[Any]
) -> list[Json]:
    """Dummy messages and plain ones as the template takes them, with other texts: the contents, then the ids
    of the calls that are answered (of the dummy's calls too, which the first messages answer)."""
    contents, ids = texts[: len(messages)], texts[len(messages) :]
    head = head_messages(marker, before)
    calls = head[-1].get("tool_calls")
    if calls:
        named = zip(calls, messages, ids, strict=False)
        calls = [{**call, "id": own if message.tool_call_id else call["id"]} for call, message, own in named]
        head[-1] = {**head[-1], "tool_calls": calls}
    said: list[Json] = []
    for message, content, own in zip(marker.messages(messages, marked=False), contents, ids, strict=True):
        answers = {"tool_call_id": own} if "tool_call_id" in message else {}
        said.append({**message, "content": content, **answers})
    return [*head, *said]
