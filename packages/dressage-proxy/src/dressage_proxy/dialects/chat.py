"""The OpenAI chat-completions dialect: its requests, replies, streams and errors."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from dressage_tito import message_to_json, wire_arguments

from dressage_proxy.branches import kind_from_headers, thread_from_headers
from dressage_proxy.dialects import params
from dressage_proxy.dialects.base import Dialect, ModelReply, ModelRequest, Writer, error_text
from dressage_proxy.dialects.memo import Memo
from dressage_proxy.dialects.params import dumps, names, pieces, short
from dressage_proxy.errors import RequestError
from dressage_proxy.fresh import fresh_id

PARAMETERS = params.Parameters(
    read=names(
        "model messages tools stream stream_options max_tokens max_completion_tokens stop "
        "tool_choice parallel_tool_calls chat_template_kwargs"
    ),
    accepted={
        "user": "names the end user",
        "metadata": "the client's own notes",
        "store": "nothing is kept for the client to read back",
        "service_tier": "there is one tier",
        "prompt_cache_key": "engines find cached prefixes by themselves",
        "prompt_cache_retention": "engines find cached prefixes by themselves",
        "prompt_cache_options": "engines find cached prefixes by themselves",
        "safety_identifier": "names the end user",
        "reasoning_effort": "how much a model thinks is the rollout's setting, not the agent's",
        "reasoning": "how much a model thinks is the rollout's setting, not the agent's",
        "thinking": "how much a model thinks is the rollout's setting, not the agent's",
        "enable_thinking": "whether a model thinks is the rollout's setting, not the agent's",
        "thinking_budget": "how much a model thinks is the rollout's setting, not the agent's",
        "include_reasoning": "a reply tells its reasoning anyhow",
        "tool_stream": "a stream tells its calls anyhow",
        "usage": "a reply tells its usage anyhow",
        "verbosity": "how a model writes is the rollout's setting, not the agent's",
    },
    neutral={
        "n": (1,),
        "logprobs": (False,),
        "top_logprobs": (0,),
        "logit_bias": ({},),
        "response_format": ({"type": "text"},),
        "modalities": (["text"],),
        "functions": ([],),
        "reasoning_split": (True,),
        "search_parameters": ({"mode": "off"},),
        **dict.fromkeys(names("add_generation_prompt separate_reasoning skip_special_tokens"), (True,)),
        **dict.fromkeys(
            names(
                "continue_final_message echo ignore_eos include_stop_str_in_output no_stop_trim "
                "return_hidden_states return_token_ids return_tokens_as_token_ids use_beam_search"
            ),
            (False,),
        ),
        **dict.fromkeys(names("bad_words stop_token_ids"), ([],)),
        **dict.fromkeys(names("min_tokens priority"), (0,)),
        "best_of": (1,),
        "length_penalty": (1, 1.0),
    },
)
"""Of engines' own parameters the defaults are taken: there are clients that always say them."""


class ChatDialect(Dialect):
    """``/v1/chat/completions``."""

    name = "chat"

    def parse(self, body: Mapping[str, Any], headers: Mapping[str, str], memo: Memo) -> ModelRequest:
        """See :meth:`Dialect.parse`."""
        accepted = PARAMETERS.check(body)
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            raise RequestError(
                "messages must be a non-empty list", field="messages", fix="send chat messages"
            )
        asked = params.sampling(body, ("max_tokens", "max_completion_tokens"))
        stop = params.stop_texts(body.get("stop"), "stop")
        if stop:
            asked["stop"] = stop
        return ModelRequest(
            raw=_answers(messages),
            tools=_tools(body),
            asked=asked,
            kind=kind_from_headers(headers),
            thread=thread_from_headers(headers),
            template_kwargs=params.template_kwargs(body.get("chat_template_kwargs")),
            accepted=accepted,
            model=params.model_name(body),
            stream=params.flag(body, "stream"),
            include_usage=params.stream_options(body),
        )

    def writer(self, request: ModelRequest, model: str) -> Writer:
        """See :meth:`Dialect.writer`."""
        return ChatWriter(model, include_usage=request.include_usage)

    def error_body(self, error: RequestError) -> bytes:
        """See :meth:`Dialect.error_body`."""
        return openai_error(error)


class ChatWriter(Writer):
    """Writes one chat.completion."""

    def __init__(self, model: str, *, include_usage: bool) -> None:
        self._id = "chatcmpl-" + fresh_id()
        self._model = model
        self._include_usage = include_usage
        self._created = int(time.time())

    def keep_alive(self) -> bytes:
        """A comment: clients of this dialect expect nothing else."""
        return b": working\n\n"

    def body(self, reply: ModelReply) -> bytes:
        """See :meth:`Writer.body`."""
        choice = {
            "index": 0,
            "message": _message(reply),
            "logprobs": None,
            "finish_reason": _finish(reply.finish_reason),
        }
        return dumps({**self._base("chat.completion"), "choices": [choice], "usage": _usage(reply)})

    def events(self, reply: ModelReply) -> Iterator[bytes]:
        """Up to and including [DONE]."""
        message = reply.message
        yield self._chunk({"role": "assistant", "content": ""})
        for piece in pieces(message.reasoning):
            yield self._chunk({"reasoning_content": piece})
        for piece in pieces(message.content):
            yield self._chunk({"content": piece})
        for index, call in enumerate(message.tool_calls):
            head = {"index": index, "id": call.id, "type": "function"}
            yield self._chunk({"tool_calls": [{**head, "function": {"name": call.name, "arguments": ""}}]})
            for piece in pieces(wire_arguments(call)):
                yield self._chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
        yield self._chunk({}, _finish(reply.finish_reason))
        if self._include_usage:
            yield _event({**self._base("chat.completion.chunk"), "choices": [], "usage": _usage(reply)})
        yield b"data: [DONE]\n\n"

    def failed(self, error: RequestError) -> bytes:
        """See :meth:`Writer.failed`."""
        return b"data: " + openai_error(error) + b"\n\n"

    def _base(self, kind: str) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model}

    def _chunk(self, delta: Mapping[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        usage = {"usage": None} if self._include_usage else {}
        return _event({**self._base("chat.completion.chunk"), "choices": [choice], **usage})


def _answers(messages: list[Any]) -> list[Any]:
    """Messages in which a result that names its call by its own id, as Qwen-Agent's do, says so. Who does it
    once does it always: the last result tells."""
    newest = reversed(messages)
    if not _names_none(next((said for said in newest if _role(said) == "tool"), None)):
        return messages
    listed = [message.get("tool_calls") for message in messages if isinstance(message, Mapping)]
    calls = [call for made in listed if isinstance(made, list) for call in made]
    ids = (call.get("id") for call in calls if isinstance(call, Mapping))
    known = {wire for wire in ids if isinstance(wire, str)}
    return [
        {**message, "tool_call_id": message["id"]}
        if _names_none(message) and message["id"] in known
        else message
        for message in messages
    ]


def _names_none(message: object) -> bool:
    """Whether a message is a result that names no call, but has an id."""
    return (
        isinstance(message, Mapping)
        and _role(message) == "tool"
        and not message.get("tool_call_id")
        and isinstance(message.get("id"), str)
    )


def _role(message: object) -> object:
    return message.get("role") if isinstance(message, Mapping) else None


def _tools(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    tools = [] if body.get("tools") is None else body["tools"]
    if not isinstance(tools, list):
        raise RequestError("tools must be a list", field="tools")
    for index, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(function, dict) or tool.get("type") != "function" or not params.is_name(name):
            raise RequestError(
                f"tools[{index}] is no function tool",
                field=f"tools[{index}]",
                fix='send {"type": "function", "function": {"name": …, "parameters": …}}',
            )
    choice = body.get("tool_choice")
    if choice not in (None, "auto", "none"):
        raise params.unsupported(
            "tool_choice", f"tool_choice {short(choice)} is not supported", 'send "auto" or "none"'
        )
    offered = [] if choice == "none" else tools
    params.parallel_calls(body, offered=bool(offered))
    return offered


def openai_error(error: RequestError) -> bytes:
    """An error in OpenAI's shape."""
    kinds = {401: "authentication_error", 429: "rate_limit_error"}
    kind = kinds.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
    shown = {"message": error_text(error), "type": kind, "param": error.field, "code": error.code}
    return dumps({"error": shown})


def models_body(model: str) -> bytes:
    """``GET /v1/models``."""
    return dumps({"object": "list", "data": [model_entry(model)]})


def model_entry(model: str) -> dict[str, Any]:
    """``GET /v1/models/{id}``."""
    return {"id": model, "object": "model", "created": 0, "owned_by": "dressage"}


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
        "completion_tokens_details": {"reasoning_tokens": reply.reasoning_tokens},
    }


def _finish(reason: str) -> str:
    return "length" if reason == "abort" else reason


def _event(payload: Mapping[str, Any]) -> bytes:
    return b"data: " + dumps(payload) + b"\n\n"


CHAT = ChatDialect()
