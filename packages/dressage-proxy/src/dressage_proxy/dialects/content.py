"""Content that several dialects share: text parts, and what is refused in their place."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from dressage_proxy.dialects import params
from dressage_proxy.dialects.params import short
from dressage_proxy.errors import RequestError

BLOCK_JOINER = "\n"
"""Between text blocks of one message, which the chat shape would print without a gap."""
SYSTEM_JOINER = "\n\n"
"""Between blocks of a system prompt; each stays a part of its own, so that a volatile one can be told."""
MARKS = params.names(
    "id status cache_control metadata annotations created_by parsed parsed_arguments parsed_output"
)
"""Fields of messages, items and blocks that name or mark them and say nothing to a model, and what clients'
helpers read out of a block's own text."""


def refused(where: str, problem: str, fix: str, code: str | None = None) -> RequestError:
    """A refusal that names the field."""
    return RequestError(f"{where} {problem}", field=where, fix=fix, code=code)


def mapping(value: object, where: str, what: str = "an object") -> Mapping[str, Any]:
    """A JSON object. Raises RequestError."""
    if not isinstance(value, Mapping):
        raise refused(where, f"is {short(value)}", f"send {what}")
    return value


def text_field(block: Mapping[str, Any], name: str, where: str, *, empty: bool = True) -> str:
    """A text of a block. Raises RequestError where it is missing or no text."""
    value = block.get(name)
    if not isinstance(value, str) or not (value or empty):
        raise refused(f"{where}.{name}", f"is {short(value)}", "send a text")
    return value


def known(block: Mapping[str, Any], fields: frozenset[str], where: str) -> None:
    """Raises RequestError for a field that would be lost, unless it is one of the marks that mean nothing to
    a model: those of :data:`MARKS`, and what a client calls internal or begins with ``_`` itself."""
    for name, value in block.items():
        if name in fields or name in MARKS or value in (None, "", [], {}, False):
            continue
        if not name.startswith(("internal_", "_")):
            raise refused(f"{where}.{name}", "is not supported", "leave it out")


def no_text(where: str, kind: object) -> RequestError:
    """The refusal of a part that is no text: images, audio, files."""
    return refused(
        f"{where}.type",
        f"is {short(kind)}; this model reads text alone: images, audio and files are not supported",
        "send a text part",
        "unsupported_content",
    )


def texts(content: object, where: str, kinds: Mapping[str, str], fields: frozenset[str]) -> list[str]:
    """The texts of a string or a list of text parts; ``kinds`` maps a part's type to the field of its text.

    Raises RequestError for a part of another type.
    """
    if content is None:
        return []
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        raise refused(where, f"is {short(content)}", "send a text or a list of text parts")
    found = []
    for index, item in enumerate(content):
        at = f"{where}[{index}]"
        part = mapping(item, at, "a text part")
        kind = part.get("type")
        if not isinstance(kind, str) or kind not in kinds:
            raise no_text(at, kind)
        known(part, fields, at)
        found.append(text_field(part, kinds[kind], at))
    return found


def chat_parts(blocks: Sequence[str], joiner: str = "") -> str | list[dict[str, str]]:
    """Texts as content of the chat shape: one as a string, several as parts with the joiner between them."""
    if len(blocks) < 2:
        return blocks[0] if blocks else ""
    parts: list[dict[str, str]] = []
    for text in blocks:
        if parts and joiner:
            parts.append({"type": "text", "text": joiner})
        parts.append({"type": "text", "text": text})
    return parts


def said_alone(blocks: Sequence[str], calls: Sequence[object]) -> str | list[dict[str, str]]:
    """The texts of an assistant message as content of the chat shape: apart where they are all of it, since a
    client may have put a later one behind what was sampled; beside calls as one."""
    return "".join(blocks) if calls else chat_parts(blocks)


def chat_call(call_id: str, name: str, arguments: str | Mapping[str, Any]) -> dict[str, Any]:
    """A tool call of the chat shape."""
    text = arguments if isinstance(arguments, str) else json.dumps(dict(arguments), ensure_ascii=False)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}


def function_tool(name: str, description: object, parameters: object) -> dict[str, Any]:
    """A function tool of the chat shape."""
    function: dict[str, Any] = {"name": name}
    if description:
        function["description"] = description
    function["parameters"] = {"type": "object", "properties": {}} if parameters is None else parameters
    return {"type": "function", "function": function}
