"""Chat messages as a whitebox agent keeps them, and their OpenAI wire form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

JsonObject = dict[str, Any]
"""A JSON object at the edge of the wire; nothing in the core takes one."""


@dataclass(frozen=True, slots=True)
class CallRequest:
    """A tool call as the model wrote it: ``arguments`` is its JSON text, unparsed."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a conversation. ``role`` is system, user, assistant or tool."""

    role: str
    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[CallRequest, ...] = ()
    tool_call_id: str = ""

    def to_wire(self) -> JsonObject:
        """The OpenAI chat form. Arguments go back byte for byte as they came."""
        wire: JsonObject = {"role": self.role, "content": self.content}
        if self.reasoning:
            wire["reasoning_content"] = self.reasoning
        if self.tool_calls:
            wire["tool_calls"] = [
                {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
                for c in self.tool_calls
            ]
        if self.tool_call_id:
            wire["tool_call_id"] = self.tool_call_id
        return wire


def assistant_from_wire(message: Mapping[str, Any]) -> ChatMessage:
    """Read an assistant message of a chat completion. Raises KeyError or TypeError where it is malformed."""
    calls = tuple(
        CallRequest(_text(c, "id"), _text(c["function"], "name"), _text(c["function"], "arguments"))
        for c in message.get("tool_calls") or ()
    )
    content = message.get("content")
    if content is not None and not isinstance(content, str):
        raise TypeError(f"content is {type(content).__name__}, not text")
    reasoning = message.get("reasoning_content") or ""
    return ChatMessage("assistant", content or "", str(reasoning), calls)


def _text(part: Mapping[str, Any], name: str) -> str:
    value = part[name]
    if not isinstance(value, str):
        raise TypeError(f"{name} of a tool call is {type(value).__name__}, not text")
    return value


def model_text(transcript: Sequence[ChatMessage]) -> str:
    """What the model itself wrote as content, reply after reply: never tool output, never the prompt."""
    return "\n".join(m.content for m in transcript if m.role == "assistant" and m.content)


def final_text(transcript: Sequence[ChatMessage]) -> str:
    """The content of the model's last reply, or "" where there is none."""
    return next((m.content for m in reversed(transcript) if m.role == "assistant"), "")
