"""Messages in the OpenAI chat style, checked on the way in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dressage_tito.errors import MessageError
from dressage_tito.messages import Message, ToolCall

_ROLES = ("system", "developer", "user", "assistant", "tool")
_REASONING = ("reasoning_content", "reasoning")
_KNOWN = {"role", "content", "name", "tool_calls", "tool_call_id", "refusal", *_REASONING}
_IGNORED = {
    "annotations", "cache_breakpoint", "cache_control", "created_by", "extra", "id", "index", "metadata",
    "prompt_cache_breakpoint", "provider_specific_fields", "reasoning_details", "status",
}  # fmt: skip
"""Marks that clients attach and that say nothing to a model; so is what they call internal themselves, or
begin with ``_``."""


def message_from_json(obj: object, where: str = "messages[0]") -> Message:
    """A canonical message from an OpenAI-style one.

    Content may be text, null, missing, or a list of text parts (joined without a separator, as templates
    print them): absent content is "". Raises MessageError, which names the field by ``where`` and the fix.
    """
    if not isinstance(obj, Mapping):
        raise MessageError(where, f"is {_kind(obj)}; send an object with role and content")
    role = obj.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise MessageError(f"{where}.role", f"is {role!r}; send one of {', '.join(_ROLES)}")
    for key, value in obj.items():
        if key in _KNOWN or key in _IGNORED or value in (None, "", [], {}, False):
            continue
        if not str(key).startswith(("internal_", "_")):
            raise MessageError(f"{where}.{key}", "is not supported; leave it out")
    calls = _tool_calls(obj.get("tool_calls"), f"{where}.tool_calls")
    if calls and role != "assistant":
        raise MessageError(f"{where}.tool_calls", "only an assistant message makes calls; leave it out")
    call_id = _text(obj.get("tool_call_id"), f"{where}.tool_call_id")
    if role == "tool" and not call_id:
        raise MessageError(f"{where}.tool_call_id", "is missing; send the id of the call that this answers")
    reasoning = ""
    for key in _REASONING:
        reasoning = reasoning or _text(obj.get(key), f"{where}.{key}")
    content = _content(obj.get("content"), f"{where}.content")
    return Message(
        role=role,
        content=content or _text(obj.get("refusal"), f"{where}.refusal"),
        reasoning=reasoning,
        tool_calls=calls,
        tool_call_id=call_id,
        name=_text(obj.get("name"), f"{where}.name"),
    )


def message_to_json(message: Message) -> dict[str, Any]:
    """The OpenAI-style message; fields that are empty are left out, except content."""
    result: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning:
        result["reasoning_content"] = message.reasoning
    if message.name:
        result["name"] = message.name
    if message.tool_call_id:
        result["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        result["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": wire_arguments(call)},
            }
            for call in message.tool_calls
        ]
    return result


def wire_arguments(call: ToolCall) -> str:
    """A call's arguments as JSON text: the original text, unless the schema gave an argument another type.

    Text that is no JSON object is given as it was written, where there are no arguments beside it.
    """
    try:
        kept = _says(call)
    except RecursionError:
        return call.arguments_text  # what is nested so deeply can be written in no other way either
    return call.arguments_text if kept else json.dumps(dict(call.arguments), ensure_ascii=False)


def _says(call: ToolCall) -> bool:
    """Whether a call's text says what its arguments are."""
    try:
        said = json.loads(call.arguments_text)
    except ValueError:
        said = None
    if isinstance(said, dict):
        return said == dict(call.arguments)
    return bool(call.arguments_text) and not call.arguments


def _kind(value: object) -> str:
    names = {str: "a string", list: "a list", type(None): "null", bool: "a boolean", int: "a number"}
    return names.get(type(value), f"a {type(value).__name__}")


def _text(value: object, where: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise MessageError(where, f"is {_kind(value)}; send text")
    return _utf8(value, where)


def _utf8(value: str, where: str) -> str:
    try:
        if not value.isascii():
            value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise MessageError(
            where, f"holds half a surrogate pair at character {error.start}; send whole characters"
        ) from error
    return value


def _content(value: object, where: str) -> str:
    if not isinstance(value, list):
        if value is not None and not isinstance(value, str):
            raise MessageError(where, f"is {_kind(value)}; send text or a list of text parts")
        return _text(value, where)
    texts = []
    for index, part in enumerate(value):
        at = f"{where}[{index}]"
        if isinstance(part, str):
            texts.append(_utf8(part, at))
            continue
        kind = part.get("type") if isinstance(part, Mapping) else None
        if not isinstance(part, Mapping) or not isinstance(kind, str):
            raise MessageError(at, "is no content part; send {'type': 'text', 'text': …}")
        if kind not in ("text", "refusal"):
            raise MessageError(f"{at}.type", f"is {kind!r}; this model reads text alone: send a text part")
        if not isinstance(part.get(kind), str):
            raise MessageError(f"{at}.{kind}", "is missing; send the part's text")
        texts.append(_utf8(part[kind], f"{at}.{kind}"))
    return "".join(texts)


def _tool_calls(value: object, where: str) -> tuple[ToolCall, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise MessageError(where, f"is {_kind(value)}; send a list of calls")
    return tuple(_tool_call(item, f"{where}[{index}]") for index, item in enumerate(value))


def _tool_call(obj: object, where: str) -> ToolCall:
    if not isinstance(obj, Mapping):
        raise MessageError(where, f"is {_kind(obj)}; send an object with id, type and function")
    kind = obj.get("type", "function")
    if kind != "function":
        raise MessageError(f"{where}.type", f"is {kind!r}; only function calls are supported")
    function = obj.get("function")
    if not isinstance(function, Mapping):
        raise MessageError(f"{where}.function", "is missing; send an object with name and arguments")
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise MessageError(f"{where}.function.name", "is missing; send the function's name")
    call_id = _text(obj.get("id"), f"{where}.id")
    arguments, text = _arguments(function.get("arguments"), f"{where}.function.arguments")
    return ToolCall(call_id, _utf8(name, f"{where}.function.name"), arguments, text)


def _arguments(value: object, where: str) -> tuple[dict[str, Any], str]:
    """Parsed arguments and their text. Text that is no JSON object is kept as it is, with no arguments: a
    client may echo what another model wrote."""
    if value is None or value == "":
        return {}, "{}"
    if isinstance(value, Mapping):
        try:
            return dict(value), json.dumps(dict(value), ensure_ascii=False)
        except RecursionError as error:
            raise MessageError(where, "are nested too deeply; send them as text") from error
    if not isinstance(value, str):
        raise MessageError(where, f"is {_kind(value)}; send a JSON object as text")
    _utf8(value, where)
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError):
        return {}, value
    return (parsed, value) if isinstance(parsed, dict) else ({}, value)
