"""One call of a tool: what is asked of tools that others write, of calls that a model makes, of answers."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from types import FunctionType, MethodType
from typing import Any

from dressage_sandbox.errors import InvalidSpec, SandboxError, SandboxFileError
from dressage_sandbox.protocol import Sandbox

from dressage_paddock.errors import StageTimeoutError, TaskError, ToolError, ToolFailedError
from dressage_paddock.messages import JsonObject
from dressage_paddock.tools import Tool, ToolBounds
from dressage_paddock.waiting import within

GRACE_S = 5.0
"""How much longer than its bound a call may take: a tool ends its own command at the bound and tells so."""
_ANSWER_CHARACTERS = 2
"""An answer's characters for each byte of the bound: standard output and error have the bound each."""


async def call_tool(
    tools: Sequence[Tool], sandbox: Sandbox, name: str, arguments: str, bounds: ToolBounds
) -> tuple[str, bool]:
    """Do one call. Gives its text and whether it was the model's mistake (unknown tool, bad arguments,
    a file that is not there). What is not the model's doing is raised: a sandbox's error as it is, a tool's
    own failure as :class:`ToolFailedError`."""
    text, mistake = await _tried(tools, sandbox, name, arguments, bounds)
    most = _ANSWER_CHARACTERS * bounds.output_bytes + 1024
    if len(text) > most:
        text = f"{text[:most]}\n[cut: {len(text) - most} more characters]"
    return (text if _is_unicode(text) else text.encode(errors="replace").decode()), mistake


async def _tried(
    tools: Sequence[Tool], sandbox: Sandbox, name: str, arguments: str, bounds: ToolBounds
) -> tuple[str, bool]:
    """The call's text, of any length and letters, and whether it was the model's mistake."""
    tool = next((t for t in tools if t.name == name), None)
    if tool is None:
        return f"error: there is no tool {name!r}; the tools are {', '.join(t.name for t in tools)}", True
    try:
        given = check_arguments(tool.parameters, arguments)
        return await _answer(tool, sandbox, given, bounds), False
    except ToolError as error:
        return f"error: {error}", True
    except SandboxFileError as error:
        return f"error: {error.strerror or error}: {error.filename or ''}".rstrip(": "), True
    except InvalidSpec as error:
        return f"error: {error}", True


async def _answer(tool: Tool, sandbox: Sandbox, arguments: Mapping[str, Any], bounds: ToolBounds) -> str:
    """The tool's text, bounded in time. Its own defects are told by its name."""
    try:
        text: object = await within(
            bounds.timeout_s + GRACE_S, f"the tool {tool.name!r}", tool.call(sandbox, arguments, bounds)
        )
    except (ToolError, SandboxError, SandboxFileError):
        raise
    except StageTimeoutError as error:
        raise ToolFailedError(f"{error}: end what it waits for at bounds.timeout_s") from error
    except (Exception, SystemExit) as error:
        raise ToolFailedError(f"the tool {tool.name!r} failed: {type(error).__name__}: {error}") from error
    if not isinstance(text, str):
        raise ToolFailedError(f"the tool {tool.name!r} gave {type(text).__name__}: give text")
    return text


def check_tools(tools: Sequence[Tool]) -> None:
    """Hold tools against what their calls need, before a model calls them. Raises :class:`TaskError`."""
    names = set[str]()
    for tool in tools:
        said = f"the tool {getattr(tool, 'name', tool)!r}"
        if isinstance(tool, type):
            raise TaskError(f"tools holds the class {tool.__name__}: give an object, {tool.__name__}()")
        for part in ("name", "description"):
            if not isinstance(getattr(tool, part, None), str):
                raise TaskError(f"{said}: {part} is missing or no text")
        if not is_async(getattr(tool, "call", None)):
            raise TaskError(f"{said}: call is no `async def call(self, sandbox, arguments, bounds)`")
        if tool.name in names:
            raise TaskError(f"two tools have the name {tool.name!r}: rename one")
        names.add(tool.name)
        _check_parameters(said, getattr(tool, "parameters", None))


def is_async(given: object) -> bool:
    """Whether what it gives can be awaited, as far as is seen: a plain ``def`` says no."""
    plain = isinstance(given, FunctionType | MethodType) and not hasattr(given, "__wrapped__")
    return callable(given) and (inspect.iscoroutinefunction(given) or not plain)


def _check_parameters(said: str, schema: object) -> None:
    """An object of scalars: what :func:`check_arguments` holds calls against."""
    if not isinstance(schema, Mapping) or not isinstance(schema.get("properties"), Mapping):
        raise TaskError(f"{said}: parameters has no properties: give a JSON schema of an object")
    for name, kind in schema["properties"].items():
        given = kind.get("type") if isinstance(kind, Mapping) else kind
        if not isinstance(given, str) or given not in _TYPES:
            raise TaskError(f"{said}: the type of parameter {name!r} is {given!r}: give {', '.join(_TYPES)}")
    for name in schema.get("required", ()):
        if name not in schema["properties"]:
            raise TaskError(f"{said}: requires {name!r}, which is none of its properties")


_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}


def check_arguments(schema: JsonObject, text: str) -> dict[str, Any]:
    """Parse a call's argument text and hold it against ``schema`` (an object of scalars).

    Raises :class:`ToolError` that names the field, so that the model can mend its call.
    """
    try:
        value: Any = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise ToolError(f"the arguments are not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ToolError(f"the arguments are a JSON {type(value).__name__}: give an object")
    properties = schema["properties"]
    for name in schema.get("required", ()):
        if name not in value:
            raise ToolError(f"the argument {name!r} is missing")
    for name, given in value.items():
        if name not in properties:
            raise ToolError(f"unknown argument {name!r}; known: {', '.join(properties)}")
        wanted = properties[name]["type"]
        is_bool = isinstance(given, bool)
        if not isinstance(given, _TYPES[wanted]) or (is_bool and wanted != "boolean"):
            raise ToolError(f"the argument {name!r} is {type(given).__name__}: give a {wanted}")
        if isinstance(given, str) and not _is_unicode(given):
            raise ToolError(f"the argument {name!r} holds a lone surrogate: give valid Unicode")
    return value


def _is_unicode(text: str) -> bool:
    """JSON can spell what UTF-8 cannot: half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
