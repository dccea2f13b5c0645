"""The client's side of a replayed call: its ids put in place of the recorded ones, and its reply read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

_ID_FIELDS = ("id", "call_id", "tool_call_id", "tool_use_id", "signature", "encrypted_content", "data")


@dataclass(slots=True)
class Told:
    """What a reply hands out: the ids of its calls in their order, and its turn handle."""

    calls: list[str] = field(default_factory=list)
    handle: str = ""


def renamed(value: Any, names: Mapping[str, str]) -> Any:
    """A body with recorded ids and handles replaced by those of this proxy."""
    if isinstance(value, list):
        return [renamed(item, names) for item in value]
    if isinstance(value, dict):
        return {
            key: names.get(item, item)
            if key in _ID_FIELDS and isinstance(item, str)
            else renamed(item, names)
            for key, item in value.items()
        }
    return value


def read_reply(path: str, text: str, *, stream: bool) -> Told:
    """What a reply of one dialect hands out. Raises ValueError where a stream has no end."""
    read = {"/v1/chat/completions": _chat, "/v1/responses": _responses, "/v1/messages": _messages}[path]
    return read(list(_events(text)) if stream else [json.loads(text)], stream)


def _events(text: str) -> Iterator[Any]:
    for block in text.split("\n\n"):
        data = [line.removeprefix("data: ") for line in block.split("\n") if line.startswith("data: ")]
        if data and data != ["[DONE]"]:
            yield json.loads("\n".join(data))


def _chat(events: list[Any], stream: bool) -> Told:
    told = Told()
    for event in events:
        for choice in event["choices"]:
            part = choice["delta" if stream else "message"]
            told.calls += [call["id"] for call in part.get("tool_calls") or [] if call.get("id")]
    if not any(choice["finish_reason"] for event in events for choice in event["choices"]):
        raise ValueError("the stream has no finish_reason")
    return told


def _messages(events: list[Any], stream: bool) -> Told:
    told = Told()
    blocks = [e["content_block"] for e in events if e["type"] == "content_block_start"]
    deltas = [e["delta"] for e in events if e["type"] == "content_block_delta"]
    if not stream:
        blocks = events[0]["content"]
    elif events[-1]["type"] != "message_stop":
        raise ValueError("the stream does not end in message_stop")
    told.calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
    for part in (*blocks, *deltas):
        told.handle = part.get("signature") or told.handle
    return told


def _responses(events: list[Any], stream: bool) -> Told:
    last = events[-1]
    if stream and last["type"] not in ("response.completed", "response.incomplete"):
        raise ValueError(f"the stream ends in {last['type']}")
    told = Told()
    for item in (last["response"] if stream else last)["output"]:
        if item["type"] == "reasoning":
            told.handle = item["encrypted_content"]
        elif "call_id" in item:
            told.calls.append(item["call_id"])
    return told
