"""The Anthropic Messages dialect: its replies, streams and errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qs

from dressage_tito import ToolCall, wire_arguments

from dressage_proxy.branches import kind_from_headers, thread_from_headers
from dressage_proxy.dialects import params
from dressage_proxy.dialects.base import Dialect, ModelReply, ModelRequest, Writer, error_text
from dressage_proxy.dialects.memo import Memo
from dressage_proxy.dialects.messages_input import (
    NO_THREADS,
    PARAMETERS,
    check_output_config,
    read_messages,
)
from dressage_proxy.dialects.messages_tools import read_tools
from dressage_proxy.dialects.params import dumps, pieces
from dressage_proxy.errors import ContextOverflowError, RequestError
from dressage_proxy.fresh import fresh_id

_STOP_REASONS = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens", "abort": "max_tokens"}
_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    529: "overloaded_error",
}
_PAGES = ("after_id", "before_id")


class MessagesDialect(Dialect):
    """``/v1/messages`` and ``/v1/messages/count_tokens``."""

    name = "messages"

    def parse(self, body: Mapping[str, Any], headers: Mapping[str, str], memo: Memo) -> ModelRequest:
        """See :meth:`Dialect.parse`."""
        accepted = PARAMETERS.check(body)
        config = check_output_config(body)
        tools = read_tools(body)
        raw, handles = read_messages(body, memo, tools)
        asked = params.sampling(body, ("max_tokens",))
        stop = params.stop_texts(body.get("stop_sequences"), "stop_sequences")
        if stop:
            asked["stop"] = stop
        return ModelRequest(
            raw=raw,
            tools=tools.offered,
            deferred=tools.deferred if tools.offered else (),
            asked=asked,
            kind=kind_from_headers(headers),
            thread=thread_from_headers(headers),
            template_kwargs=params.template_kwargs(body.get("chat_template_kwargs")),
            handles=handles,
            accepted={**accepted, "output_config": config} if config else accepted,
            model=params.model_name(body),
            stream=params.flag(body, "stream"),
            prefilled=True,
        )

    def writer(self, request: ModelRequest, model: str) -> Writer:
        """See :meth:`Dialect.writer`."""
        return MessagesWriter(model)

    def error_body(self, error: RequestError) -> bytes:
        """See :meth:`Dialect.error_body`."""
        default = "invalid_request_error" if error.status < 500 else "api_error"
        kind = _ERROR_TYPES.get(error.status, default)
        shown: dict[str, Any] = {"type": kind, "message": _message(error)}
        if error.code == NO_THREADS:
            shown["details"] = {"error_code": error.code}
        return dumps({"type": "error", "error": shown, "request_id": "req_" + fresh_id()})

    def count_body(self, tokens: int) -> bytes:
        """The reply of count_tokens."""
        return dumps({"input_tokens": tokens})

    def models_body(self, model: str, query: str = "") -> bytes:
        """``GET /v1/models``: all on one page. Before and after a model that ``query`` names there is none:
        there are clients that turn pages until one is empty."""
        turned = any(name in parse_qs(query) for name in _PAGES)
        first = None if turned else model
        data = [] if turned else [self.model_entry(model)]
        return dumps({"data": data, "has_more": False, "first_id": first, "last_id": first})

    def model_entry(self, model: str) -> dict[str, Any]:
        """``GET /v1/models/{id}``."""
        return {"type": "model", "id": model, "display_name": model, "created_at": "1970-01-01T00:00:00Z"}


class MessagesWriter(Writer):
    """Writes one message. A stream that is kept alive starts before anything is sampled: ``head`` tells
    the whole prompt as its input, for clients that read no more; ``message_delta`` tells every count."""

    def __init__(self, model: str) -> None:
        self._id = "msg_" + fresh_id()
        self._model = model
        self._headed = False

    def head(self, prompt_tokens: int = 0) -> bytes:
        """A ``message_start`` that tells what is known: not yet how much of the prompt was cached."""
        self._headed = True
        return self._start({"input_tokens": prompt_tokens, "output_tokens": 0})

    def keep_alive(self) -> bytes:
        """A ping."""
        return _event("ping", {})

    def body(self, reply: ModelReply) -> bytes:
        """See :meth:`Writer.body`."""
        reason, sequence = _stop(reply)
        message = self._envelope(_blocks(reply), _usage(reply))
        return dumps({**message, "stop_reason": reason, "stop_sequence": sequence})

    def events(self, reply: ModelReply) -> Iterator[bytes]:
        """From ``message_start``, where it was not sent yet, to ``message_stop``."""
        if not self._headed:
            yield self._start({**_input_usage(reply), "output_tokens": 0})
        for index, block in enumerate(_blocks(reply)):
            yield from _block_events(index, block, reply)
        reason, sequence = _stop(reply)
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        yield _event("message_delta", {"delta": delta, "usage": _usage(reply)})
        yield _event("message_stop", {})

    def failed(self, error: RequestError) -> bytes:
        """An error event: the client sends its request again."""
        return b"event: error\ndata: " + MESSAGES.error_body(error) + b"\n\n"

    def _start(self, usage: Mapping[str, Any]) -> bytes:
        return _event("message_start", {"message": self._envelope([], usage)})

    def _envelope(self, content: list[dict[str, Any]], usage: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }


def _blocks(reply: ModelReply) -> list[dict[str, Any]]:
    message = reply.message
    blocks: list[dict[str, Any]] = []
    if message.reasoning:
        blocks.append({"type": "thinking", "thinking": message.reasoning, "signature": reply.handle})
    if message.content:
        blocks.append({"type": "text", "text": message.content})
    for call in message.tool_calls:
        blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": _input(call)})
    return blocks


def _input(call: ToolCall) -> dict[str, Any]:
    return dict(call.arguments)


def _block_events(index: int, block: Mapping[str, Any], reply: ModelReply) -> Iterator[bytes]:
    kind = block["type"]
    if kind == "thinking":
        start: Mapping[str, Any] = {"type": kind, "thinking": "", "signature": ""}
        deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(block["thinking"])]
        deltas.append({"type": "signature_delta", "signature": block["signature"]})
    elif kind == "text":
        start = {"type": kind, "text": ""}
        deltas = [{"type": "text_delta", "text": piece} for piece in pieces(block["text"])]
    else:
        start = {**block, "input": {}}
        (call,) = (call for call in reply.message.tool_calls if call.id == block["id"])
        deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces(_json(call))]
    yield _event("content_block_start", {"index": index, "content_block": start})
    for delta in deltas:
        yield _event("content_block_delta", {"index": index, "delta": delta})
    yield _event("content_block_stop", {"index": index})


def _json(call: ToolCall) -> str:
    """The arguments' own text, where it is the object that clients are told."""
    return wire_arguments(call) if call.arguments else "{}"


def _stop(reply: ModelReply) -> tuple[str, str | None]:
    if reply.finish_reason == "stop" and reply.stop_sequence:
        return "stop_sequence", reply.stop_sequence
    return _STOP_REASONS[reply.finish_reason], None


def _input_usage(reply: ModelReply) -> dict[str, Any]:
    """Anthropic's input tokens leave out what was read from a cache."""
    return {
        "input_tokens": reply.prompt_tokens - reply.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": reply.cached_tokens,
    }


def _usage(reply: ModelReply) -> dict[str, Any]:
    return {
        **_input_usage(reply),
        "output_tokens": reply.completion_tokens,
        "output_tokens_details": {"thinking_tokens": reply.reasoning_tokens},
    }


def _message(error: RequestError) -> str:
    """Claude Code compacts a conversation, and does not end, by this text of an overflow."""
    if isinstance(error, ContextOverflowError) and error.window is not None:
        return f"prompt is too long: {error.tokens} tokens > {error.window} maximum"
    return error_text(error)


def _event(name: str, payload: Mapping[str, Any]) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + dumps({"type": name, **payload}) + b"\n\n"


MESSAGES = MessagesDialect()
