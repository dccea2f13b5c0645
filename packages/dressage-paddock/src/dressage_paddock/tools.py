"""The whitebox agent's tools: shell, read, write, edit and search, run inside the sandbox."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

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


_REAL_FILE = 'p=$(readlink -f -- "$1" && echo .) && p=${p%??} && stat -c %a -- "$p" && printf %s "$p"'
"""The mode of a file and its path behind all links: a write replaces a link, and an edit must not. The dot
keeps line ends of the name, which a shell takes off."""


class EditTool:
    """Replace a piece of a text file."""

    name = "edit"
    description = "Replace a piece of text in a file. The old text must be there exactly once."
    parameters: JsonObject = {  # noqa: RUF012 - part of the prompt, never changed
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "The file's path."},
            "old": {"type": "string", "description": "The text to replace, exactly as it is."},
            "new": {"type": "string", "description": "The text to put in its place."},
            "all": {"type": "boolean", "description": "Replace every occurrence; default false."},
        },
        "required": ["path", "old", "new"],
    }

    def __init__(self, *, max_bytes: int = 1 << 20) -> None:
        self._max_bytes = max_bytes

    async def call(self, sandbox: Sandbox, arguments: Mapping[str, Any], bounds: ToolBounds) -> str:
        """How many places were changed. The file keeps its mode, and a link stays one."""
        old, new = arguments["old"].encode(), arguments["new"].encode()
        if not old:
            raise ToolError("'old' is empty: give the text to replace, or use write for a whole file")
        if old == new:
            raise ToolError("'old' and 'new' are the same: nothing would change")
        data = await sandbox.read(arguments["path"], max_bytes=self._max_bytes + 1)
        if len(data) > self._max_bytes:
            raise ToolError(f"{arguments['path']} is longer than {self._max_bytes} bytes: edit it by shell")
        found = data.count(old)
        if found == 0:
            raise ToolError(f"'old' is not in {arguments['path']}: read the file and give its exact text")
        if found > 1 and not arguments.get("all", False):
            raise ToolError(f"'old' is there {found} times: give more of its surroundings, or all=true")
        mode, path = await self._real_file(sandbox, arguments["path"], bounds)
        await sandbox.write(path, data.replace(old, new), mode=mode)
        return f"replaced {found} {'place' if found == 1 else 'places'} in {arguments['path']}"

    async def _real_file(self, sandbox: Sandbox, path: str, bounds: ToolBounds) -> tuple[int, str]:
        told = await sandbox.run(["sh", "-c", _REAL_FILE, "sh", path], timeout_s=bounds.timeout_s)
        mode, _, real = told.stdout.partition(b"\n")
        if told.exit_code != 0 or not mode.isdigit() or not real:
            return 0o644, path
        return int(mode, 8), os.fsdecode(real)


_SEARCH = """[ -e "$2" ] || { printf 'no such file or folder: %s\n' "$2" >&2; exit 3; }
grep -E -e "$1" </dev/null >/dev/null; [ $? -le 1 ] || exit 3
find -H "$2" -name .git -prune -o -type f -print0 | LC_ALL=C sort -z |
xargs -0 -r grep -nIHE -e "$1" -- 2>/dev/null | cut -b 1-"$4" | head -c "$3"
"""


class SearchTool:
    """Search files for a regular expression."""

    name = "search"
    description = "Search the text files below a folder for a regular expression (as of grep -E)."
    parameters: JsonObject = {  # noqa: RUF012 - part of the prompt, never changed
        "type": "object",
        "properties": {
            "pattern": {"type": "string", "description": "The regular expression."},
            "path": {"type": "string", "description": "Folder or file; default the work folder."},
        },
        "required": ["pattern"],
    }

    def __init__(self, *, line_bytes: int = 400) -> None:
        self._line_bytes = line_bytes

    async def call(self, sandbox: Sandbox, arguments: Mapping[str, Any], bounds: ToolBounds) -> str:
        """Lines as ``path:number:text``, by path and number, with a mark where there are more."""
        path = arguments.get("path", ".")
        if not arguments["pattern"] or not path:
            raise ToolError("'pattern' and 'path' must not be empty")
        if not path.startswith("/"):
            path = f"./{path}" if path != "." else path
        cap = bounds.output_bytes
        limits = [str(cap + 1), str(self._line_bytes)]
        command = ["sh", "-c", _SEARCH, "sh", arguments["pattern"], path, *limits]
        result = await sandbox.run(command, timeout_s=bounds.timeout_s, output_bytes=cap + 1)
        if result.exit_code == 3:
            raise ToolError(result.stderr.decode(errors="replace").strip() or "the search failed")
        if result.timed_out or result.exit_code:
            return render_run(result)
        text = result.stdout[:cap].decode(errors="replace").rstrip("\n")
        if len(result.stdout) > cap:
            text += "\n[cut: more matches follow; narrow the pattern or the path]"
        return text or "[no match]"


def default_tools() -> tuple[Tool, ...]:
    """shell, read, write, edit and search."""
    return (ShellTool(), ReadTool(), WriteTool(), EditTool(), SearchTool())


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
