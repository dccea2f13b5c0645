"""What the OpenAI Responses dialect reads: its parameters, input items and tools, as the chat shape.

A model's turn travels as several items. They are joined to one assistant message: reasoning, then text, then
calls; an item that goes back in this order begins the next turn, but for one behind calls without an output:
no turn begins before those are answered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dressage_proxy.dialects import params
from dressage_proxy.dialects.base import FREEFORM_ARGUMENT, WireTool
from dressage_proxy.dialects.content import (
    BLOCK_JOINER,
    SYSTEM_JOINER,
    chat_call,
    chat_parts,
    known,
    mapping,
    refused,
    said_alone,
    text_field,
    texts,
)
from dressage_proxy.dialects.memo import Memo, Reading
from dressage_proxy.dialects.params import names, short, unsupported
from dressage_proxy.dialects.responses_items import handle_of, output_items
from dressage_proxy.dialects.responses_tools import model_tool_name
from dressage_proxy.errors import RequestError

PARAMETERS = params.Parameters(
    read=names(
        "model input instructions tools tool_choice stream stream_options max_output_tokens text "
        "include parallel_tool_calls stop chat_template_kwargs previous_response_id conversation "
        "prompt"
    ),
    accepted={
        "user": "names the end user",
        "metadata": "the client's own notes",
        "client_metadata": "the client's own notes",
        "store": "nothing is kept for the client to read back: a request brings, or names, its conversation",
        "service_tier": "there is one tier",
        "prompt_cache_key": "engines find cached prefixes by themselves",
        "prompt_cache_retention": "engines find cached prefixes by themselves",
        "prompt_cache_options": "engines find cached prefixes by themselves",
        "safety_identifier": "names the end user",
        "reasoning": "whether and how much a model thinks is the rollout's setting, not the agent's",
        "context_management": "a conversation is append-only: what a model sampled stays in its context",
        "truncation": "a conversation is append-only: one that is too long is refused, and never cut",
    },
    neutral={
        "background": (False,),
        "top_logprobs": (0,),
        "access_programs": ([],),
    },
)

_TEXT = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
_TEXT_FIELDS = names("type text refusal logprobs prompt_cache_breakpoint")
_MESSAGE_FIELDS = names("type role content phase end_turn")
_REASONING_FIELDS = names("type summary content encrypted_content")
_CALL_FIELDS = names("type call_id name namespace arguments input caller async async_")
_OUTPUT_FIELDS = names("type call_id output name namespace caller success")
_INCLUDED = (
    "reasoning.encrypted_content", "file_search_call.results", "web_search_call.results",
    "web_search_call.action.sources", "code_interpreter_call.outputs", "message.input_image.image_url",
    "computer_call_output.output.image_url",
)  # fmt: skip
"""The first is told anyhow; the others are of items that there never are."""
_NOT_KEPT = "the proxy keeps no responses: send the whole conversation as input"
"""But for the items of a session's turns: its log has them."""

ORPHAN_NOTE = "a reasoning item without its turn was left out: the agent asks again for a turn that was cut"


@dataclass(slots=True)
class _Turn:
    """The items of one assistant message."""

    thought: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    handle: str = ""
    spoke: bool = False
    """It has a message item, be it an empty one."""

    @property
    def ended(self) -> bool:
        """Whether it said something that needs no answer: what is thought next is another turn."""
        return self.spoke and not self.calls

    @property
    def thinking_alone(self) -> bool:
        """Whether nothing followed its reasoning yet."""
        return not self.spoke and not self.calls


class Conversation:
    """Input items on their way to the chat shape, with the turn handles that their reasoning carries."""

    def __init__(self, reading: Reading, memo: Memo, wire_tools: Mapping[str, WireTool]) -> None:
        self.raw = reading.raw
        self.handles = reading.handles
        self.notes = reading.notes
        self._recall = memo.recall
        self._wire_tools = wire_tools
        self._turn: _Turn | None = None

    @property
    def between_turns(self) -> bool:
        """Whether no turn of the model is open: what comes next cannot join it."""
        return self._turn is None

    def item(self, value: object, where: str) -> None:
        """Take one item of ``input``. Raises RequestError naming it."""
        item = mapping(value, where, "an input item")
        kind = item.get("type")
        if kind is None and "role" in item:
            kind = "message"
        if kind == "message":
            self._message(item, where)
        elif kind == "reasoning":
            self._reasoning(item, where)
        elif kind in ("function_call", "custom_tool_call"):
            self._call(item, kind, where)
        elif kind in ("function_call_output", "custom_tool_call_output"):
            self._output(item, where)
        elif kind == "item_reference" or (kind is None and item.keys() == {"id"}):
            self._reference(item, where)
        else:
            raise unsupported(f"{where}.type", f"{where}.type is {short(kind)}: not supported")

    def _reference(self, item: Mapping[str, Any], where: str) -> None:
        """An item that this session handed out, named in its place: it is written again."""
        named = text_field(item, "id", where, empty=False)
        handle = handle_of(named)
        message = self._recall(handle) if handle else None
        items = (
            []
            if message is None
            else output_items(message, handle, self._wire_tools, "completed", summarised=False)
        )
        found = next((one for one in items if one["id"] == named), None)
        if found is None:
            raise refused(where, f"refers to {short(named)}, no item of this session", _NOT_KEPT)
        if self._turn is not None and self._turn.handle not in ("", handle):
            self._next_turn()
        self.item(found, where)
        if self._turn is not None:
            self._turn.handle = handle

    def end(self) -> None:
        """After the last item."""
        self._close(again=True)

    def _message(self, item: Mapping[str, Any], where: str) -> None:
        known(item, _MESSAGE_FIELDS, where)
        blocks = texts(item.get("content"), f"{where}.content", _TEXT, _TEXT_FIELDS)
        role = item.get("role")
        if role == "assistant":
            turn = self._turn
            if turn is None or (turn.spoke and not turn.calls):
                turn = self._next_turn()
            turn.spoke = True
            turn.said += blocks
            return
        if role not in ("user", "system", "developer"):
            raise refused(f"{where}.role", f"is {short(role)}", "send user, assistant, system or developer")
        self._close(again=False)
        joiner = BLOCK_JOINER if role == "user" else SYSTEM_JOINER
        self.raw.append({"role": role, "content": chat_parts(blocks, joiner)})

    def _reasoning(self, item: Mapping[str, Any], where: str) -> None:
        known(item, _REASONING_FIELDS, where)
        kinds = {"reasoning_text": "text", "summary_text": "text", "text": "text"}
        fields = names("type text")
        thought = texts(item.get("content"), f"{where}.content", kinds, fields)
        summary = texts(item.get("summary"), f"{where}.summary", kinds, fields)
        handle = params.shape(item.get("encrypted_content"), str, f"{where}.encrypted_content", "")
        turn = self._turn
        if turn is None or turn.ended or (handle and turn.handle and handle != turn.handle):
            turn = self._next_turn()
        turn.thought += [text for text in thought or summary if not turn.calls or text not in turn.thought]
        turn.handle = handle or turn.handle

    def _call(self, item: Mapping[str, Any], kind: str, where: str) -> None:
        known(item, _CALL_FIELDS, where)
        name = text_field(item, "name", where, empty=False)
        namespace = params.shape(item.get("namespace"), str, f"{where}.namespace", "")
        call_id = text_field(item, "call_id", where, empty=False)
        if kind == "function_call":
            arguments: str | Mapping[str, Any] = text_field(item, "arguments", where)
        else:
            arguments = {FREEFORM_ARGUMENT: text_field(item, "input", where)}
        turn = self._turn or self._next_turn()
        turn.calls.append(chat_call(call_id, model_tool_name(namespace, name), arguments))

    def _output(self, item: Mapping[str, Any], where: str) -> None:
        known(item, _OUTPUT_FIELDS, where)
        self._close(again=False)
        said = texts(item.get("output"), f"{where}.output", _TEXT, _TEXT_FIELDS)
        answers = text_field(item, "call_id", where, empty=False)
        self.raw.append({"role": "tool", "tool_call_id": answers, "content": BLOCK_JOINER.join(said)})

    def _next_turn(self) -> _Turn:
        self._close(again=True)
        self._turn = _Turn()
        return self._turn

    def _close(self, *, again: bool) -> None:
        """The open turn is whole. ``again``: what follows is another turn of the model, or its request."""
        turn, self._turn = self._turn, None
        if turn is None:
            return
        if turn.thinking_alone and again:
            self.notes.append(ORPHAN_NOTE)
            return
        message: dict[str, Any] = {"role": "assistant", "content": said_alone(turn.said, turn.calls)}
        if turn.thought:
            message["reasoning_content"] = BLOCK_JOINER.join(turn.thought)
        if turn.calls:
            message["tool_calls"] = turn.calls
        if turn.handle:
            self.handles[len(self.raw)] = turn.handle
        self.raw.append(message)


def read_input(
    body: Mapping[str, Any], memo: Memo, wire_tools: Mapping[str, WireTool]
) -> tuple[list[Mapping[str, Any]], Reading]:
    """The whole conversation, ``instructions`` first, and its reading. Raises RequestError."""
    for name in ("previous_response_id", "conversation", "prompt"):
        if body.get(name) is not None:
            raise unsupported(name, f"{name} is not supported: {_NOT_KEPT}")
    lead: list[Mapping[str, Any]] = []
    instructions = params.shape(body.get("instructions"), str, "instructions", "")
    if instructions:
        lead.append({"role": "system", "content": instructions})
    given = body.get("input")
    if isinstance(given, str) and given:
        return [*lead, {"role": "user", "content": given}], Reading()
    if not isinstance(given, list) or not given:
        raise RequestError("input must be a text or a non-empty list", field="input", fix="send input items")
    reading, read = memo.start(given)
    conversation = Conversation(reading, memo, wire_tools)
    for index in range(read, len(given)):
        conversation.item(given[index], f"input[{index}]")
        if conversation.between_turns:
            reading.mark(index + 1)
    conversation.end()
    if not reading.raw:
        raise RequestError("input has no message", field="input", fix="send at least one message")
    memo.keep(reading)
    return lead + reading.raw, reading


def check_options(body: Mapping[str, Any]) -> dict[str, Any]:
    """``text`` and ``include`` as they are recorded. Raises RequestError for what is not supported."""
    if body.get("truncation") not in (None, "auto", "disabled"):
        value = short(body["truncation"])
        raise RequestError(f"truncation is {value}", field="truncation", fix='send "auto" or "disabled"')
    text: Mapping[str, Any] = params.shape(body.get("text"), dict, "text", {})
    for name, value in text.items():
        if name == "verbosity" or value is None or (name == "format" and value == {"type": "text"}):
            continue
        raise unsupported(f"text.{name}", f"text.{name} is not supported: nothing constrains sampling")
    include: list[Any] = params.shape(body.get("include"), list, "include", [])
    for index, value in enumerate(include):
        if value not in _INCLUDED:
            raise unsupported(f"include[{index}]", f"include[{index}] is {short(value)}: not supported")
    return {name: value for name, value in (("text", text), ("include", include)) if value}
