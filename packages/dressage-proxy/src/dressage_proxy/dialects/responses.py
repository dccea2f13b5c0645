"""The OpenAI Responses dialect: its replies and errors. The stream is in :mod:`responses_stream`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dressage_proxy.branches import kind_from_headers, thread_from_headers
from dressage_proxy.dialects import params
from dressage_proxy.dialects.base import (
    Dialect,
    ModelReply,
    ModelRequest,
    Writer,
    error_text,
)
from dressage_proxy.dialects.chat import openai_error
from dressage_proxy.dialects.memo import Memo
from dressage_proxy.dialects.params import dumps
from dressage_proxy.dialects.responses_input import PARAMETERS, check_options, read_input
from dressage_proxy.dialects.responses_items import output_items
from dressage_proxy.dialects.responses_stream import EventStream, item_events
from dressage_proxy.dialects.responses_tools import read_tools
from dressage_proxy.errors import RequestError
from dressage_proxy.fresh import fresh_id

_CUT = ("length", "abort")
_SHOWN = ("instructions", "metadata", "temperature", "top_p", "max_output_tokens", "reasoning", "text")
"""Parameters that a response repeats."""


class ResponsesDialect(Dialect):
    """``/v1/responses``."""

    name = "responses"

    def parse(self, body: Mapping[str, Any], headers: Mapping[str, str], memo: Memo) -> ModelRequest:
        """See :meth:`Dialect.parse`."""
        accepted = PARAMETERS.check(body)
        tools = read_tools(body)
        raw, reading = read_input(body, memo, tools.wire)
        lead = len(raw) - len(reading.raw)
        options = check_options(body)
        params.stream_options(body)
        asked = params.sampling(body, ("max_output_tokens",))
        stop = params.stop_texts(body.get("stop"), "stop")
        if stop:
            asked["stop"] = stop
        return ModelRequest(
            raw=raw,
            tools=tools.offered,
            asked=asked,
            kind=kind_from_headers(headers),
            thread=thread_from_headers(headers),
            template_kwargs=params.template_kwargs(body.get("chat_template_kwargs")),
            handles={index + lead: handle for index, handle in reading.handles.items()},
            notes=(*reading.notes, *tools.notes),
            wire_tools=tools.wire,
            accepted={**accepted, **options},
            model=params.model_name(body),
            stream=params.flag(body, "stream"),
        )

    def writer(self, request: ModelRequest, model: str) -> Writer:
        """See :meth:`Dialect.writer`."""
        return ResponsesWriter(request, model)

    def error_body(self, error: RequestError) -> bytes:
        """See :meth:`Dialect.error_body`."""
        return openai_error(error)


class ResponsesWriter(Writer):
    """Writes one response."""

    def __init__(self, request: ModelRequest, model: str) -> None:
        self._request = request
        self._id = "resp_" + fresh_id()
        self._created = int(time.time())
        self._model = model
        self._stream = EventStream()
        self._headed = False

    def head(self, prompt_tokens: int = 0) -> bytes:
        """``response.created`` and ``response.in_progress``."""
        self._headed = True
        response = self._response("in_progress", [], None)
        return self._stream.event("response.created", response=response) + self.keep_alive()

    def keep_alive(self) -> bytes:
        """``response.in_progress``: comments do not reset the idle timers of agents."""
        return self._stream.event("response.in_progress", response=self._response("in_progress", [], None))

    def body(self, reply: ModelReply) -> bytes:
        """See :meth:`Writer.body`."""
        return dumps(self._whole(reply, self._items(reply)))

    def events(self, reply: ModelReply) -> Iterator[bytes]:
        """Each item from its first event to its last, then what ended the response."""
        if not self._headed:
            yield self.head()
        items = self._items(reply)
        for index, item in enumerate(items):
            yield from item_events(self._stream, index, item)
        whole = self._whole(reply, items)
        yield self._stream.event(f"response.{whole['status']}", response=whole)

    def failed(self, error: RequestError) -> bytes:
        """``response.failed``."""
        response = self._response("failed", [], None)
        response["error"] = {"code": _error_code(error), "message": error_text(error)}
        return self._stream.event("response.failed", response=response)

    def _whole(self, reply: ModelReply, items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        cut = reply.finish_reason in _CUT
        response = self._response("incomplete" if cut else "completed", items, _usage(reply))
        if cut:
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        else:
            response["completed_at"] = int(time.time())
        return response

    def _response(
        self, status: str, output: Sequence[Mapping[str, Any]], usage: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        asked = {**self._request.accepted, **self._request.asked}
        asked["max_output_tokens"] = asked.get("max_tokens")
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "model": self._model,
            "output": output,
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "store": False,
            "tool_choice": "auto",
            "tools": [],
            "truncation": "disabled",
            **{name: asked.get(name) for name in _SHOWN},
            "usage": usage,
        }

    def _summarised(self) -> bool:
        """Whether the agent asked for summaries of the reasoning: it is told the reasoning itself."""
        reasoning = self._request.accepted.get("reasoning")
        return isinstance(reasoning, Mapping) and bool(
            reasoning.get("summary") or reasoning.get("generate_summary")
        )

    def _items(self, reply: ModelReply) -> list[dict[str, Any]]:
        status = "incomplete" if reply.finish_reason in _CUT else "completed"
        return output_items(
            reply.message, reply.handle, self._request.wire_tools, status, summarised=self._summarised()
        )


def _usage(reply: ModelReply) -> dict[str, Any]:
    return {
        "input_tokens": reply.prompt_tokens,
        "input_tokens_details": {"cached_tokens": reply.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": reply.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": reply.reasoning_tokens},
        "total_tokens": reply.prompt_tokens + reply.completion_tokens,
    }


def _error_code(error: RequestError) -> str:
    """The codes that agents know: an overflow is final, another may be tried again."""
    if error.code == "context_length_exceeded":
        return error.code
    if error.status == 429:
        return "rate_limit_exceeded"
    return "server_error" if error.status >= 500 else "invalid_prompt"


RESPONSES = ResponsesDialect()
