"""What every dialect turns its requests into, what it makes its replies from, and the rules they share."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dressage_segments import BranchKind
from dressage_tito import Message, Tool, ToolCall

from dressage_proxy.dialects.memo import Memo
from dressage_proxy.errors import RequestError
from dressage_proxy.records import record

FREEFORM_ARGUMENT = "input"
"""The one argument of a freeform tool."""


@dataclass(frozen=True, slots=True)
class WireTool:
    """How a dialect names a tool that the model knows by another name."""

    name: str
    namespace: str = ""
    freeform: bool = False
    """Its one argument travels as plain text and not as JSON."""


@record
class ModelRequest:
    """A model call in no dialect. ``raw`` are its messages in the chat shape, checked when they are read."""

    raw: Sequence[Mapping[str, Any]]
    tools: Sequence[Tool]
    asked: Mapping[str, Any]
    """Sampling parameters that the agent names (names of :class:`dressage_proxy.config.Sampling`)."""
    kind: BranchKind | None = None
    """What the agent's headers say that the call is for."""
    thread: str = ""
    """The agent's own name of the sub-agent, where a header gives one."""
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    handles: Mapping[int, str] = field(default_factory=dict)
    """Index of a message -> the turn handle that its reasoning carries."""
    notes: tuple[str, ...] = ()
    """What was left out of the request by a declared rule; recorded with the turn."""
    wire_tools: Mapping[str, WireTool] = field(default_factory=dict)
    """The model's name of a tool -> how the dialect names it, where the two differ."""
    accepted: Mapping[str, Any] = field(default_factory=dict)
    """Parameters that change nothing of what is sampled, as the agent sent them; recorded with the turn."""
    model: str = ""
    """The model that the agent names."""
    deferred: Sequence[Tool] = ()
    """Tools that the model may call once a result told of them; they are not in the prompt."""
    stream: bool = False
    include_usage: bool = True
    """Whether a stream tells its usage."""
    prefilled: bool = False
    """A last message that is the assistant's would be the beginning of the reply, and not another one."""


@record
class ModelReply:
    """A committed reply: the message as every dialect shows it, and the counts."""

    message: Message
    finish_reason: str
    """``stop``, ``length``, ``abort`` or ``tool_calls``."""
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    turn: int
    warnings: tuple[str, ...] = ()
    reasoning_tokens: int = 0
    handle: str = ""
    """Names the turn; travels where a dialect keeps a signature of the reasoning."""
    stop_sequence: str = ""
    """The stop string that ended the reply."""


class Writer(ABC):
    """Writes the reply to one request. ``head`` is written once, before anything else of a stream."""

    def head(self, prompt_tokens: int = 0) -> bytes:
        """What a stream starts with, before anything is sampled; 0 tokens: not known yet."""
        return b""

    @abstractmethod
    def keep_alive(self) -> bytes:
        """What keeps an idle stream alive; after ``head``."""

    @abstractmethod
    def body(self, reply: ModelReply) -> bytes:
        """The whole reply as one JSON object."""

    @abstractmethod
    def events(self, reply: ModelReply) -> Iterator[bytes]:
        """The whole reply as server-sent events, after ``head``."""

    @abstractmethod
    def failed(self, error: RequestError) -> bytes:
        """An error after the stream's headers were sent; after ``head``."""


class Dialect(ABC):
    """One agent API: its requests, replies and errors."""

    name: str

    @abstractmethod
    def parse(self, body: Mapping[str, Any], headers: Mapping[str, str], memo: Memo) -> ModelRequest:
        """A checked request; header names are lower case. Every parameter is honoured, accepted by a
        declared list, or refused by name (RequestError). ``memo`` is the session's own: what it has of the
        conversation is not read again."""

    @abstractmethod
    def writer(self, request: ModelRequest, model: str) -> Writer:
        """What writes the reply to ``request``; ``model`` is the name to show."""

    @abstractmethod
    def error_body(self, error: RequestError) -> bytes:
        """An error in the dialect's own shape."""


def freeform_input(call: ToolCall) -> str:
    """What a freeform tool is given: its one text, else the arguments as the model wrote them."""
    value = call.arguments.get(FREEFORM_ARGUMENT)
    if isinstance(value, str) and len(call.arguments) == 1:
        return value
    return call.arguments_text or json.dumps(dict(call.arguments), ensure_ascii=False)


def as_sent_back(message: Message, wire_tools: Mapping[str, WireTool]) -> Message:
    """A reply's message as it is read again when an agent sends it back unchanged."""
    if not any(call.name in wire_tools and wire_tools[call.name].freeform for call in message.tool_calls):
        return message
    calls = [
        replace(call, arguments={FREEFORM_ARGUMENT: freeform_input(call)})
        if call.name in wire_tools and wire_tools[call.name].freeform
        else call
        for call in message.tool_calls
    ]
    return replace(message, tool_calls=tuple(calls))


def error_text(error: RequestError) -> str:
    """The message with its fix."""
    return f"{error.message}. {error.fix}" if error.fix else error.message
