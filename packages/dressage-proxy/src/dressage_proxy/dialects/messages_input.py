"""What the Anthropic Messages dialect reads: its parameters and blocks, as the chat shape.

A user message that holds tool results and text becomes the results, in the order of their blocks (agents send
them as they complete), and then one user message with the text. System messages stay where they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dressage_proxy.dialects import params
from dressage_proxy.dialects.content import (
    BLOCK_JOINER,
    SYSTEM_JOINER,
    chat_call,
    chat_parts,
    known,
    mapping,
    no_text,
    refused,
    said_alone,
    text_field,
    texts,
)
from dressage_proxy.dialects.memo import Memo, Reading
from dressage_proxy.dialects.messages_tools import Tools
from dressage_proxy.dialects.params import names, short, unsupported
from dressage_proxy.errors import RequestError

PARAMETERS = params.Parameters(
    read=names(
        "model messages system tools tool_choice stream max_tokens stop_sequences output_config "
        "chat_template_kwargs thread"
    ),
    accepted={
        "metadata": "the client's own notes",
        "service_tier": "there is one tier",
        "inference_geo": "there is one place",
        "speed": "there is one speed",
        "cache_control": "engines find cached prefixes by themselves",
        "context_management": "a conversation is append-only: what a model sampled stays in its context",
        "thinking": "whether and how much a model thinks is the rollout's setting, not the agent's",
        "betas": "names of what a client can read",
        "anthropic_beta": "names of what a client can read",
        "anthropic_version": "there is one version",
        "user_profile_id": "names the end user",
        "workspace_id": "names the end user",
        "diagnostics": "the client's own notes",
        "billing_policy": "nobody is billed",
    },
    neutral={"mcp_servers": ([],), "fallbacks": ([],)},
)

NO_THREADS = "thread_unsupported_request"
"""The code by which clients know that a conversation is not kept for them: they send all of it each time."""

ERROR_PREFIX = "[error] "
"""Before the text of a tool result with ``is_error``: templates have no other place for it."""

_TEXT = {"text": "text"}
_TEXT_FIELDS = names("type text citations")
_MESSAGE_FIELDS = names(
    "role content output_config type model stop_reason stop_sequence stop_details usage container "
    "context_management diagnostics"
)
"""Fields of a message: its own, and those of a reply that a client sends back whole."""
_RESULT_FIELDS = names("type tool_use_id content is_error")
_CALL_FIELDS = names("type name input caller index")
_THINKING_FIELDS = names("type thinking signature")

Raw = list[Mapping[str, Any]]


class Conversation:
    """Messages on their way to the chat shape, with the turn handles that their thinking carries."""

    def __init__(self, reading: Reading, tools: Tools) -> None:
        self.raw = reading.raw
        self.handles = reading.handles
        self._tools = tools

    def message(self, item: object, where: str) -> None:
        """One of ``messages``. Raises RequestError."""
        message = mapping(item, where, "an object with role and content")
        known(message, _MESSAGE_FIELDS, where)
        role, content = message.get("role"), message.get("content")
        if role == "user":
            self._user(content, f"{where}.content")
        elif role == "assistant":
            self._assistant(content, f"{where}.content")
        elif role in ("system", "developer"):
            blocks = texts(content, f"{where}.content", _TEXT, _TEXT_FIELDS)
            self.raw.append({"role": role, "content": chat_parts(blocks, SYSTEM_JOINER)})
        else:
            raise refused(f"{where}.role", f"is {short(role)}", "send user, assistant or system")

    def _user(self, content: object, where: str) -> None:
        if not isinstance(content, list):
            blocks = texts(content, where, _TEXT, _TEXT_FIELDS)
            self.raw.append({"role": "user", "content": chat_parts(blocks, BLOCK_JOINER)})
            return
        results: Raw = []
        said: list[str] = []
        for index, item in enumerate(content):
            at = f"{where}[{index}]"
            block = mapping(item, at, "a content block")
            kind = block.get("type")
            if kind == "tool_result":
                results.append(_result(block, at, self._tools))
            elif kind == "text":
                known(block, _TEXT_FIELDS, at)
                said.append(text_field(block, "text", at))
            else:
                raise no_text(at, kind)
        self.raw.extend(results)
        if said or not results:
            self.raw.append({"role": "user", "content": chat_parts(said, BLOCK_JOINER)})

    def _assistant(self, content: object, where: str) -> None:
        turn = _AssistantTurn()
        if isinstance(content, list):
            for index, item in enumerate(content):
                at = f"{where}[{index}]"
                turn.block(mapping(item, at, "a content block"), at)
        else:
            turn.said = texts(content, where, _TEXT, _TEXT_FIELDS)
        if turn.handle:
            self.handles[len(self.raw)] = turn.handle
        self.raw.append(turn.message())


class _AssistantTurn:
    """The blocks of one assistant message."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.thought: list[str] = []
        self.calls: list[dict[str, Any]] = []
        self.handle = ""

    def block(self, block: Mapping[str, Any], at: str) -> None:
        """Take one block. Raises RequestError."""
        kind = block.get("type")
        if kind == "text":
            known(block, _TEXT_FIELDS, at)
            self.said.append(text_field(block, "text", at))
        elif kind == "thinking":
            known(block, _THINKING_FIELDS, at)
            self.thought.append(text_field(block, "thinking", at))
            self._signed(block.get("signature"))
        elif kind == "redacted_thinking":
            self._signed(block.get("data"))
        elif kind == "tool_use":
            known(block, _CALL_FIELDS, at)
            given = block.get("input")
            arguments = given if isinstance(given, str) else mapping({} if given is None else given, at)
            name = text_field(block, "name", at, empty=False)
            self.calls.append(chat_call(text_field(block, "id", at), name, arguments))
        else:
            raise no_text(at, kind)

    def _signed(self, signature: object) -> None:
        if isinstance(signature, str) and signature:
            self.handle = signature

    def message(self) -> dict[str, Any]:
        """The message of the chat shape."""
        message: dict[str, Any] = {"role": "assistant", "content": said_alone(self.said, self.calls)}
        if self.thought:
            message["reasoning_content"] = BLOCK_JOINER.join(self.thought)
        if self.calls:
            message["tool_calls"] = self.calls
        return message


def _result(block: Mapping[str, Any], at: str, tools: Tools) -> dict[str, Any]:
    known(block, _RESULT_FIELDS, at)
    content = block.get("content")
    if isinstance(content, list):
        content = [tools.told(part, f"{at}.content[{index}]") for index, part in enumerate(content)]
    said = BLOCK_JOINER.join(texts(content, f"{at}.content", _TEXT, _TEXT_FIELDS))
    if params.flag(block, "is_error", f"{at}."):
        said = ERROR_PREFIX + said
    answers = text_field(block, "tool_use_id", at, empty=False)
    return {"role": "tool", "tool_call_id": answers, "content": said}


def check_output_config(body: Mapping[str, Any]) -> dict[str, Any]:
    """``output_config`` as it is recorded. Raises RequestError for a format: nothing constrains sampling."""
    config: dict[str, Any] = params.shape(body.get("output_config"), dict, "output_config", {})
    for name, value in config.items():
        if name != "effort" and value is not None:
            field = f"output_config.{name}"
            raise unsupported(field, f"{field} is not supported")
    return config


def read_messages(body: Mapping[str, Any], memo: Memo, tools: Tools) -> tuple[Raw, dict[int, str]]:
    """The whole conversation and its turn handles. Raises RequestError."""
    if body.get("thread") is not None:
        raise RequestError(
            "thread is not supported: the proxy keeps no conversation",
            field="thread",
            fix="leave it out and send all messages",
            code=NO_THREADS,
        )
    items = body.get("messages")
    if not isinstance(items, list) or not items:
        raise RequestError("messages must be a non-empty list", field="messages", fix="send messages")
    lead: Raw = []
    blocks = texts(body.get("system"), "system", _TEXT, _TEXT_FIELDS)
    if any(blocks):
        lead.append({"role": "system", "content": chat_parts(blocks, SYSTEM_JOINER)})
    reading, read = memo.start(items)
    conversation = Conversation(reading, tools)
    for index in range(read, len(items)):
        conversation.message(items[index], f"messages[{index}]")
        reading.mark(index + 1)
    memo.keep(reading)
    return lead + reading.raw, {index + len(lead): handle for index, handle in reading.handles.items()}
