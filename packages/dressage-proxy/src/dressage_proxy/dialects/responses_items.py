"""The output items of the Responses dialect: written for a reply, and written again for a later request that
names one of them in its place."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dressage_tito import Message, ToolCall, wire_arguments

from dressage_proxy.dialects.base import WireTool, freeform_input

_ID = re.compile(r"(?:rs|msg|fc|ctc)_([0-9a-f]{32})[0-9]*")
_HANDLE = "dressage-"


def handle_of(item_id: str) -> str:
    """The handle of the turn that an item is of; "" where the id is none of ours."""
    found = _ID.fullmatch(item_id)
    return _HANDLE + found[1] if found else ""


def output_items(
    message: Message, handle: str, wire_tools: Mapping[str, WireTool], status: str, *, summarised: bool
) -> list[dict[str, Any]]:
    """What a turn said, item by item; their ids name the turn by its ``handle``. ``summarised``: the agent
    asked for summaries of the reasoning, it is told the reasoning itself."""
    key = handle.removeprefix(_HANDLE)
    items: list[dict[str, Any]] = []
    if message.reasoning:
        # Once alone: there are agents that take any item's content for what the model said.
        summary = [{"type": "summary_text", "text": message.reasoning}] if summarised else []
        content = [] if summarised else [{"type": "reasoning_text", "text": message.reasoning}]
        items.append(
            {
                "id": f"rs_{key}",
                "type": "reasoning",
                "summary": summary,
                "content": content,
                "encrypted_content": handle,
                "status": status,
            }
        )
    if message.content or not (message.tool_calls or items):
        part = {"type": "output_text", "text": message.content, "annotations": [], "logprobs": []}
        items.append(
            {
                "id": f"msg_{key}",
                "type": "message",
                "role": "assistant",
                "status": status,
                "content": [part],
            }
        )
    for number, call in enumerate(message.tool_calls):
        items.append(_call_item(call, wire_tools.get(call.name, WireTool(call.name)), f"{key}{number}"))
    return items


def _call_item(call: ToolCall, wire: WireTool, key: str) -> dict[str, Any]:
    item: dict[str, Any] = {"call_id": call.id, "name": wire.name, "status": "completed"}
    if wire.freeform:
        text = freeform_input(call)
        item |= {"id": f"ctc_{key}", "type": "custom_tool_call", "input": text}
    else:
        item |= {"id": f"fc_{key}", "type": "function_call", "arguments": wire_arguments(call)}
    if wire.namespace:
        item["namespace"] = wire.namespace
    return item
