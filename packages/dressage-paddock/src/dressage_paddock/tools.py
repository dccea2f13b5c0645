"""The whitebox agent's tools: shell, read and write, run inside the sandbox."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dressage_sandbox.errors import InvalidSpec, SandboxFileError
from dressage_sandbox.protocol import RunResult, Sandbox

from dressage_paddock.errors import ToolError
from dressage_paddock.messages import JsonObject


@dataclass(frozen=True, slots=True)
class ToolBounds:
    """Ceilings of one call: seconds, and bytes per stream."""

    timeout_s: float = 30.0
    output_bytes: int = 16 * 1024


class Tool(Protocol):
    """A tool: its name, its description and JSON schema as the prompt shows them, and what it does."""

    @property
    def name(self) -> str:
        """The name that the model calls."""

    @property
    def description(self) -> str:
        """One sentence for the model."""

    @property
    def parameters(self) -> JsonObject:
        """JSON schema of the arguments: an object with scalar properties."""

    async def call(self, sandbox: Sandbox, arguments: Mapping[str, Any], bounds: ToolBounds) -> str:
        """The text that the model gets. Raises :class:`ToolError` where the call is the model's mistake."""


def tool_schema(tool: Tool) -> JsonObject:
    """The OpenAI function-tool form. Its text is fixed, so that a session's prompt prefix is too."""
    return {
        "type": "function",
        "function": {
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.parameters,
        },
    }


class ShellTool:
    """Run a shell line."""

    name = "shell"
    description = "Run a shell command and get its output."
    parameters: JsonObject = {  # noqa: RUF012 - part of the prompt, never changed
        "type": "object",
        "properties": {"command": {"type": "string", "description": "The command line."}},
        "required": ["command"],
    }

    async def call(self, sandbox: Sandbox, arguments: Mapping[str, Any], bounds: ToolBounds) -> str:
        """Standard output, then standard error, then the exit code where it is not 0."""
        result = await sandbox.run(
            arguments["command"], timeout_s=bounds.timeout_s, output_bytes=bounds.output_bytes
        )
        return render_run(result)


class ReadTool:
    """Read a text file."""

    name = "read"
    description = "Read a file."
    parameters: JsonObject = {  # noqa: RUF012 - part of the prompt, never changed
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "The file's path."},
            "offset": {"type": "integer", "description": "First byte to read; default 0."},
        },
        "required": ["path"],
    }

    async def call(self, sandbox: Sandbox, arguments: Mapping[str, Any], bounds: ToolBounds) -> str:
        """The file's text from ``offset`` on, with a mark where more follows."""
        offset = arguments.get("offset", 0)
        if offset < 0:
            raise ToolError("offset is negative: give 0 or more")
        data = await sandbox.read(arguments["path"], offset=offset, max_bytes=bounds.output_bytes + 1)
        text = data[: bounds.output_bytes].decode(errors="replace")
        if len(data) > bounds.output_bytes:
            text += f"\n[cut: more follows at offset {offset + bounds.output_bytes}]"
        return text


class WriteTool:
    """Write a text file."""

    name = "write"
    description = "Write a file, replacing what is there."
    parameters: JsonObject = {  # noqa: RUF012 - part of the prompt, never changed
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "The file's path."},
            "content": {"type": "string", "description": "The whole content."},
        },
        "required": ["path", "content"],
    }

    async def call(self, sandbox: Sandbox, arguments: Mapping[str, Any], bounds: ToolBounds) -> str:
        """How many bytes were written."""
        data = arguments["content"].encode()
        await sandbox.write(arguments["path"], data)
        return f"wrote {len(data)} bytes to {arguments['path']}"


def default_tools() -> tuple[Tool, ...]:
    """shell, read and write."""
    return (ShellTool(), ReadTool(), WriteTool())


def render_run(result: RunResult) -> str:
    """A command's result as the model sees it; equal results give equal text."""
    parts = [result.stdout.decode(errors="replace").rstrip("\n")] if result.stdout else []
    if result.stderr:
        parts.append("[stderr]\n" + result.stderr.decode(errors="replace").rstrip("\n"))
    if result.timed_out:
        parts.append("[timed out: the command was ended]")
    elif result.exit_code:
        parts.append(f"[exit code {result.exit_code}]")
    return "\n".join(parts) if parts else "[no output]"


async def call_tool(
    tools: Sequence[Tool], sandbox: Sandbox, name: str, arguments: str, bounds: ToolBounds
) -> tuple[str, bool]:
    """Do one call. Gives its text and whether it was the model's mistake (unknown tool, bad arguments,
    a file that is not there). What is not the model's doing (the sandbox died) is raised."""
    tool = next((t for t in tools if t.name == name), None)
    if tool is None:
        return f"error: there is no tool {name!r}; the tools are {', '.join(t.name for t in tools)}", True
    try:
        return await tool.call(sandbox, check_arguments(tool.parameters, arguments), bounds), False
    except ToolError as error:
        return f"error: {error}", True
    except SandboxFileError as error:
        return f"error: {error.strerror or error}: {error.filename or ''}".rstrip(": "), True
    except InvalidSpec as error:
        return f"error: {error}", True


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
