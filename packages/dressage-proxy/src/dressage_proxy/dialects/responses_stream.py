"""The events of a Responses stream: each names its type, and they are numbered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dressage_proxy.dialects.params import dumps, pieces


class EventStream:
    """Numbers the events of one stream."""

    def __init__(self) -> None:
        self._number = 0

    def event(self, name: str, /, **payload: Any) -> bytes:
        """One server-sent event; the payload may have a name of its own."""
        data = dumps({"type": name, "sequence_number": self._number, **payload})
        self._number += 1
        return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"


def item_events(stream: EventStream, index: int, item: Mapping[str, Any]) -> Iterator[bytes]:
    """One output item, from ``output_item.added`` to ``output_item.done``; deltas add up to what is done."""
    kind = item["type"]
    bare = dict(item)
    if kind in ("message", "reasoning"):
        bare["content"] = []
        if kind == "reasoning":
            bare["summary"] = []
    else:
        bare["arguments" if kind == "function_call" else "input"] = ""
    if "status" in bare:
        bare["status"] = "in_progress"
    yield stream.event("response.output_item.added", output_index=index, item=bare)
    if kind == "message":
        yield from _text_events(stream, index, item)
    elif kind == "reasoning":
        yield from _reasoning_events(stream, index, item)
    else:
        yield from _call_events(stream, index, item)
    yield stream.event("response.output_item.done", output_index=index, item=item)


def _text_events(stream: EventStream, index: int, item: Mapping[str, Any]) -> Iterator[bytes]:
    (part,) = item["content"]
    at = {"item_id": item["id"], "output_index": index, "content_index": 0}
    yield stream.event("response.content_part.added", **at, part={**part, "text": ""})
    for piece in pieces(part["text"]):
        yield stream.event("response.output_text.delta", **at, delta=piece, logprobs=[])
    yield stream.event("response.output_text.done", **at, text=part["text"], logprobs=[])
    yield stream.event("response.content_part.done", **at, part=part)


def _reasoning_events(stream: EventStream, index: int, item: Mapping[str, Any]) -> Iterator[bytes]:
    for place, summary in enumerate(item["summary"]):
        at = {"item_id": item["id"], "output_index": index, "summary_index": place}
        yield stream.event("response.reasoning_summary_part.added", **at, part={**summary, "text": ""})
        for piece in pieces(summary["text"]):
            yield stream.event("response.reasoning_summary_text.delta", **at, delta=piece)
        yield stream.event("response.reasoning_summary_text.done", **at, text=summary["text"])
        yield stream.event("response.reasoning_summary_part.done", **at, part=summary)
    for place, part in enumerate(item["content"]):
        at = {"item_id": item["id"], "output_index": index, "content_index": place}
        yield stream.event("response.content_part.added", **at, part={**part, "text": ""})
        for piece in pieces(part["text"]):
            yield stream.event("response.reasoning_text.delta", **at, delta=piece)
        yield stream.event("response.reasoning_text.done", **at, text=part["text"])
        yield stream.event("response.content_part.done", **at, part=part)


def _call_events(stream: EventStream, index: int, item: Mapping[str, Any]) -> Iterator[bytes]:
    at = {"item_id": item["id"], "output_index": index}
    if item["type"] == "function_call":
        name, field = "response.function_call_arguments", "arguments"
    else:
        name, field = "response.custom_tool_call_input", "input"
    for piece in pieces(item[field]):
        yield stream.event(f"{name}.delta", **at, delta=piece)
    extra = {"name": item["name"]} if field == "arguments" else {}
    yield stream.event(f"{name}.done", **at, **{field: item[field]}, **extra)
