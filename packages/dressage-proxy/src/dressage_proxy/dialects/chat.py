"""The OpenAI chat-completions dialect: its requests, replies, streams and errors."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import orjson
from dressage_tito import message_to_json, wire_arguments

from dressage_proxy.branches import kind_from_headers
from dressage_proxy.dialects.base import ModelReply, ModelRequest
from dressage_proxy.errors import RequestError

SAMPLING = ("temperature", "top_p", "top_k", "min_p", "seed", "frequency_penalty", "presence_penalty",
            "repetition_penalty")  # fmt: skip
READ = ("model", "messages", "tools", "stream", "stream_options", "max_tokens", "max_completion_tokens",
        "stop", "tool_choice", "chat_template_kwargs")  # fmt: skip
IGNORED = ("user", "metadata", "store", "service_tier", "prompt_cache_key",
           "safety_identifier", "prompt_cache_retention")  # fmt: skip
"""Parameters that change nothing of what is sampled."""

NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "n": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "logit_bias": ({},),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "functions": ([],),
    "parallel_tool_calls": (True,),
}
"""Parameters accepted at the value that asks for nothing; null is always such a value."""

_NUMBERS: Mapping[str, tuple[float, float]] = {
    "temperature": (0, 2),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "top_k": (-1, 2**30),
    "seed": (-(2.0**63), 2.0**63),
    "frequency_penalty": (-2, 2),
    "presence_penalty": (-2, 2),
    "repetition_penalty": (0, 2),
}
_WHOLE = ("top_k", "seed")
_NOT_ZERO = ("top_p", "top_k", "repetition_penalty")
"""Engines refuse 0 for these (contract: sglang)."""
_TEMPLATE_OWN = ("messages", "tools", "documents", "add_generation_prompt")
_STREAM_PIECE = 512


def parse_request(body: Mapping[str, Any], headers: Mapping[str, str]) -> ModelRequest:
    """A checked request. Every parameter is honoured or refused by name (RequestError)."""
    for name, value in body.items():
        if name in READ or name in SAMPLING or name in IGNORED or value is None:
            continue
        if any(type(value) is type(neutral) and value == neutral for neutral in NEUTRAL.get(name, ())):
            continue
        raise RequestError(
            f"the parameter {name!r} is not supported" + (f" with {value!r}" if name in NEUTRAL else ""),
            field=name,
            fix="leave it out",
            code="unsupported_parameter",
        )
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise RequestError("messages must be a non-empty list", field="messages", fix="send chat messages")
    asked: dict[str, Any] = {
        name: _number(name, body[name]) for name in SAMPLING if body.get(name) is not None
    }
    for name in ("max_tokens", "max_completion_tokens"):
        if body.get(name) is not None:
            asked["max_tokens"] = _positive(name, body[name])
    stop = _stop(body.get("stop"))
    if stop:
        asked["stop"] = stop
    return ModelRequest(
        raw=messages,
        tools=_tools(body),
        asked=asked,
        kind=kind_from_headers(headers),
        template_kwargs=_template_kwargs(body.get("chat_template_kwargs")),
    )


def _number(name: str, value: object) -> float | int:
    low, high = _NUMBERS[name]
    whole = name in _WHOLE
    if (
        isinstance(value, bool)
        or not isinstance(value, int if whole else (int, float))
        or not low <= value <= high
        or (value == 0 and name in _NOT_ZERO)
    ):
        kind = "whole number" if whole else "number"
        but = " but not 0" if name in _NOT_ZERO else ""
        raise RequestError(
            f"{name} is {value!r}", field=name, fix=f"send a {kind} from {low:g} to {high:g}{but}"
        )
    return value


def _positive(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise RequestError(f"{name} is {value!r}", field=name, fix="send a whole number of at least 1")
    return value


def _stop(value: object) -> list[str]:
    if value is None:
        return []
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
        raise RequestError(f"stop is {value!r}", field="stop", fix="send a text or a list of texts")
    return texts


def flag(body: Mapping[str, Any], name: str, where: str = "") -> bool:
    """A boolean parameter, false where it is absent. Raises RequestError."""
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise RequestError(f"{where}{name} is {value!r}", field=where + name, fix="send true or false")
    return bool(value)


def include_usage(body: Mapping[str, Any]) -> bool:
    """Whether a stream ends with its usage. Raises RequestError for options that are not known."""
    options = body.get("stream_options")
    if options is None:
        return False
    if not isinstance(options, dict):
        raise RequestError("stream_options must be an object", field="stream_options")
    for name, value in options.items():
        if name not in ("include_usage", "include_obfuscation") and value is not None:
            field = f"stream_options.{name}"
            raise RequestError(
                f"{field} is not supported", field=field, fix="leave it out", code="unsupported_parameter"
            )
    return flag(options, "include_usage", "stream_options.")


def _template_kwargs(value: object) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise RequestError("chat_template_kwargs must be an object", field="chat_template_kwargs")
    for name in _TEMPLATE_OWN:
        if name in value:
            field = f"chat_template_kwargs.{name}"
            raise RequestError(f"{field} is set by the proxy itself", field=field, fix="leave it out")
    return value


def _tools(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    tools = [] if body.get("tools") is None else body["tools"]
    if not isinstance(tools, list):
        raise RequestError("tools must be a list", field="tools")
    for index, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(function, dict) or tool.get("type") != "function" or not _name(name):
            raise RequestError(
                f"tools[{index}] is no function tool",
                field=f"tools[{index}]",
                fix='send {"type": "function", "function": {"name": …, "parameters": …}}',
            )
    choice = body.get("tool_choice")
    if choice == "none":
        return []
    if choice not in (None, "auto"):
        raise RequestError(
            f"tool_choice {choice!r} is not supported", field="tool_choice", fix='send "auto" or "none"'
        )
    return tools


def _name(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def reply_body(reply: ModelReply, model: str, reply_id: str) -> bytes:
    """A whole chat.completion object."""
    choice = {
        "index": 0,
        "message": _message(reply),
        "logprobs": None,
        "finish_reason": _finish(reply.finish_reason),
    }
    return orjson.dumps(
        {
            "id": reply_id,
            "object": "chat.completion",
            "created": int(time.time()),
            "model": model,
            "choices": [choice],
            "usage": _usage(reply),
        }
    )


def reply_events(reply: ModelReply, model: str, reply_id: str, *, include_usage: bool) -> Iterator[bytes]:
    """The same reply as server-sent events, up to and including [DONE]."""
    base = {"id": reply_id, "object": "chat.completion.chunk", "created": int(time.time()), "model": model}

    def chunk(delta: Mapping[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return _event({**base, "choices": [choice], **({"usage": None} if include_usage else {})})

    message = reply.message
    yield chunk({"role": "assistant", "content": ""})
    for piece in _pieces(message.reasoning):
        yield chunk({"reasoning_content": piece})
    for piece in _pieces(message.content):
        yield chunk({"content": piece})
    for index, call in enumerate(message.tool_calls):
        head = {"index": index, "id": call.id, "type": "function"}
        yield chunk({"tool_calls": [{**head, "function": {"name": call.name, "arguments": ""}}]})
        for piece in _pieces(wire_arguments(call)):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    yield chunk({}, _finish(reply.finish_reason))
    if include_usage:
        yield _event({**base, "choices": [], "usage": _usage(reply)})
    yield b"data: [DONE]\n\n"


def error_body(error: RequestError) -> bytes:
    """An error in OpenAI's shape."""
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    message = f"{error.message}. {error.fix}" if error.fix else error.message
    return orjson.dumps(
        {"error": {"message": message, "type": kind, "param": error.field, "code": error.code}}
    )


def error_event(error: RequestError) -> bytes:
    """An error after the stream's headers were sent."""
    return b"data: " + error_body(error) + b"\n\n"


def models_body(model: str) -> bytes:
    """``GET /v1/models``."""
    entry = {"id": model, "object": "model", "created": 0, "owned_by": "dressage"}
    return orjson.dumps({"object": "list", "data": [entry]})


def _message(reply: ModelReply) -> dict[str, Any]:
    message = reply.message
    shown = {**message_to_json(message), "refusal": None}
    if message.tool_calls and not message.content:
        shown["content"] = None
    return shown


def _usage(reply: ModelReply) -> dict[str, Any]:
    return {
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.completion_tokens,
        "total_tokens": reply.prompt_tokens + reply.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": reply.cached_tokens},
    }


def _finish(reason: str) -> str:
    return "length" if reason == "abort" else reason


def _event(payload: Mapping[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(payload) + b"\n\n"


def _pieces(text: str) -> Iterator[str]:
    for start in range(0, len(text), _STREAM_PIECE):
        yield text[start : start + _STREAM_PIECE]
