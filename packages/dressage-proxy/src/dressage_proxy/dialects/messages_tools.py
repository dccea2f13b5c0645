"""Tools of the Messages dialect: those that are offered, and those that are deferred.

A deferred tool is not in the prompt. Its agent has a tool that searches for others, and names what was found
in the result: there the model is told of it, and what was before stays as it was.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dressage_tito import Tool

from dressage_proxy.dialects import params
from dressage_proxy.dialects.content import function_tool, known, mapping, text_field
from dressage_proxy.dialects.messages_known import DEFINED
from dressage_proxy.dialects.params import names, short, unsupported

_TOOL_FIELDS = names(
    "type name description input_schema strict defer_loading eager_input_streaming input_examples "
    "allowed_callers"
)
_DEFINED_FIELDS = names(
    "type name strict defer_loading input_examples allowed_callers max_characters eager_input_streaming"
)
"""``max_characters`` is the client's own: how much of a file it shows."""
_REFERENCE = "tool_reference"
_REFERENCE_FIELDS = names("type tool_name")
_LOADED = "This tool can be called from now on:\n"


class Tools:
    """The tools of one request."""

    def __init__(self) -> None:
        self.offered: list[Tool] = []
        self.deferred: list[Tool] = []

    def add(self, item: object, at: str) -> None:
        """Take one tool. Raises RequestError for one that Anthropic's servers, or models that see, have."""
        tool = mapping(item, at, "a tool with name and input_schema")
        kind = tool.get("type")
        defined = DEFINED.get(kind) if isinstance(kind, str) else None
        if defined is None and kind not in (None, "custom"):
            raise unsupported(
                f"{at}.type",
                f"{at}.type is {short(kind)}: a tool of Anthropic's own servers or models",
                f"send tools with an input_schema, or of the types {', '.join(DEFINED)}",
            )
        known(tool, _TOOL_FIELDS if defined is None else _DEFINED_FIELDS, at)
        name = text_field(tool, "name", at, empty=False)
        if defined is None:
            description = params.shape(tool.get("description"), str, f"{at}.description", "")
            schema = params.shape(tool.get("input_schema"), dict, f"{at}.input_schema", None)
        else:
            description, schema = defined
        deferred = params.flag(tool, "defer_loading", f"{at}.")
        (self.deferred if deferred else self.offered).append(function_tool(name, description, schema))

    def told(self, part: object, at: str) -> object:
        """A part of a result, one that names a tool as the text that tells of it. Raises RequestError."""
        if not isinstance(part, Mapping) or part.get("type") != _REFERENCE:
            return part
        known(part, _REFERENCE_FIELDS, at)
        name = text_field(part, "tool_name", at, empty=False)
        found = next(
            (tool for tool in (*self.deferred, *self.offered) if tool["function"]["name"] == name), None
        )
        text = f"The tool {name} cannot be called any more."
        if found is not None:
            text = _LOADED + json.dumps(found, ensure_ascii=False)
        return {"type": "text", "text": text}


def read_tools(body: Mapping[str, Any]) -> Tools:
    """The tools of a request. Raises RequestError."""
    tools = Tools()
    for index, item in enumerate(params.shape(body.get("tools"), list, "tools", [])):
        tools.add(item, f"tools[{index}]")
    if _choice(body.get("tool_choice"), bool(tools.offered or tools.deferred)) == "none":
        tools.offered = []
    return tools


def _choice(value: object, offered: bool) -> str:
    if value is None:
        return "auto"
    choice: Mapping[str, Any] = mapping(value, "tool_choice", '{"type": "auto"} or {"type": "none"}')
    kind = choice.get("type")
    if kind not in ("auto", "none"):
        raise unsupported("tool_choice", f"tool_choice {short(kind)} is not supported", "send auto or none")
    if choice.get("disable_parallel_tool_use") and offered and kind == "auto":
        name = "tool_choice.disable_parallel_tool_use"
        raise unsupported(name, f"{name} is not supported: a model makes as many calls as it samples")
    return str(kind)
