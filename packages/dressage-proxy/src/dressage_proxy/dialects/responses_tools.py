"""Tools of the Responses dialect as the function tools that a chat template prints.

A namespaced tool is offered as ``namespace__name``, a freeform one as a function of one text. What the model
calls is told to the agent under the agent's own names again (:class:`WireTool`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dressage_proxy.dialects import params
from dressage_proxy.dialects.base import FREEFORM_ARGUMENT, WireTool
from dressage_proxy.dialects.content import function_tool, known, mapping, refused, text_field
from dressage_proxy.dialects.params import names, short, unsupported

HOSTED = {
    "web_search": "the proxy searches nothing",
    "web_search_preview": "the proxy searches nothing",
    "tool_search": "what is not offered from the start is not found",
    "image_generation": "the proxy draws nothing",
}
"""Tools of OpenAI's own servers that agents offer by default: left out, and noted with the turn."""
_DAY = re.compile(r"_\d{4}_\d{2}_\d{2}$")
"""Versions of such a tool are named by their day."""

_FUNCTION_FIELDS = names(
    "type name description parameters strict defer_loading async async_ allowed_callers output_schema"
)
_CUSTOM_FIELDS = names("type name description format defer_loading async async_ allowed_callers")
_NAMESPACE_FIELDS = names("type name description tools")


def model_tool_name(namespace: str, name: str) -> str:
    """The name under which the model knows a tool."""
    return f"{namespace}__{name}" if namespace else name


class Tools:
    """The tools of one request."""

    def __init__(self) -> None:
        self.offered: list[Mapping[str, Any]] = []
        self.wire: dict[str, WireTool] = {}
        self.notes: list[str] = []
        self._names: set[str] = set()

    def add(self, value: object, at: str, namespace: str = "") -> None:
        """Take one tool. Raises RequestError naming it."""
        tool = mapping(value, at, "a tool")
        kind = tool.get("type")
        if kind == "function":
            self._function(tool, at, namespace)
        elif kind == "custom":
            self._custom(tool, at, namespace)
        elif kind == "namespace" and not namespace:
            known(tool, _NAMESPACE_FIELDS, at)
            name = text_field(tool, "name", at, empty=False)
            inner = params.shape(tool.get("tools"), list, f"{at}.tools", [])
            for index, item in enumerate(inner):
                self.add(item, f"{at}.tools[{index}]", name)
        elif isinstance(kind, str) and _DAY.sub("", kind) in HOSTED:
            self.notes.append(f"{at} ({kind}) was left out: {HOSTED[_DAY.sub('', kind)]}")
        else:
            raise unsupported(
                f"{at}.type",
                f"{at}.type is {short(kind)}: not supported",
                "offer function, custom or namespace tools",
            )

    def _function(self, tool: Mapping[str, Any], at: str, namespace: str) -> None:
        known(tool, _FUNCTION_FIELDS, at)
        name = text_field(tool, "name", at, empty=False)
        description = params.shape(tool.get("description"), str, f"{at}.description", "")
        schema = params.shape(tool.get("parameters"), dict, f"{at}.parameters", None)
        called = self._named(namespace, name, at)
        self.offered.append(function_tool(called, description, schema))
        if namespace:
            self.wire[called] = WireTool(name, namespace)

    def _custom(self, tool: Mapping[str, Any], at: str, namespace: str) -> None:
        known(tool, _CUSTOM_FIELDS, at)
        name = text_field(tool, "name", at, empty=False)
        description = params.shape(tool.get("description"), str, f"{at}.description", "")
        form: Mapping[str, Any] = params.shape(tool.get("format"), dict, f"{at}.format", {})
        about = "The whole input as plain text."
        if form.get("type") == "grammar":
            syntax, definition = form.get("syntax"), form.get("definition")
            about += f" It follows this {syntax} grammar:\n{definition}"
        argument = {"type": "string", "description": about}
        schema = {
            "type": "object",
            "properties": {FREEFORM_ARGUMENT: argument},
            "required": [FREEFORM_ARGUMENT],
        }
        called = self._named(namespace, name, at)
        self.offered.append(function_tool(called, description, schema))
        self.wire[called] = WireTool(name, namespace, freeform=True)

    def _named(self, namespace: str, name: str, at: str) -> str:
        called = model_tool_name(namespace, name)
        if called in self._names:
            raise refused(f"{at}.name", f"is {called!r} a second time", "give each tool a name of its own")
        self._names.add(called)
        return called


def read_tools(body: Mapping[str, Any]) -> Tools:
    """The tools to offer. Raises RequestError."""
    tools = Tools()
    for index, item in enumerate(params.shape(body.get("tools"), list, "tools", [])):
        tools.add(item, f"tools[{index}]")
    choice = body.get("tool_choice")
    if choice not in (None, "auto", "none"):
        raise unsupported(
            "tool_choice", f"tool_choice {short(choice)} is not supported", 'send "auto" or "none"'
        )
    if choice == "none":
        tools.offered = []
    params.parallel_calls(body, offered=bool(tools.offered))
    return tools
