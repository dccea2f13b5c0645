"""The adapters that are known here: ours, and those that other packages bring by entry point."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points

from dressage_blackbox_server.adapter import AgentAdapter
from dressage_blackbox_server.command import COMMAND
from dressage_blackbox_server.errors import AdapterError, UnknownAgentError
from dressage_blackbox_server.programs import PROGRAMS

ENTRY_POINT_GROUP = "dressage.agents"
"""An entry point of this group names an :class:`AgentAdapter`."""

BUILT_IN = (COMMAND, *PROGRAMS)
_VERSION_S = 20.0


def known_agents() -> dict[str, AgentAdapter]:
    """Adapters by name. Raises :class:`AdapterError` where an entry point is not an adapter or a name is
    taken twice."""
    found = {adapter.name: adapter for adapter in BUILT_IN}
    for point in entry_points(group=ENTRY_POINT_GROUP):
        adapter = point.load()
        if not isinstance(adapter, AgentAdapter):
            raise AdapterError(f"entry point {point.value} is {type(adapter).__name__}, not an AgentAdapter")
        if adapter.name in found:
            raise AdapterError(f"two adapters are named {adapter.name!r}: one is {point.value}")
        found[adapter.name] = adapter
    return found


def find_agent(name: str, agents: Mapping[str, AgentAdapter]) -> AgentAdapter:
    """The adapter of that name. Raises :class:`UnknownAgentError`."""
    try:
        return agents[name]
    except KeyError:
        raise UnknownAgentError(f"agent {name!r} is not known; known: {', '.join(sorted(agents))}") from None


@dataclass(frozen=True, slots=True)
class AgentStatus:
    """One agent as found on this machine. ``version`` is "" where it is not installed or has no program."""

    name: str
    dialects: tuple[str, ...]
    version: str
    path: str
    install: str


async def agent_status(adapter: AgentAdapter) -> AgentStatus:
    """Look for the agent's program and ask it for its version."""
    program = adapter.version_argv[0] if adapter.version_argv else ""
    path = shutil.which(program) or "" if program else ""
    version = await _version(path, adapter.version_argv[1:]) if path else ""
    return AgentStatus(adapter.name, tuple(map(str, adapter.dialects)), version, path, adapter.install)


async def _version(path: str, args: tuple[str, ...]) -> str:
    pipe, none = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(path, *args, stdin=none, stdout=pipe, stderr=none)
    try:
        async with asyncio.timeout(_VERSION_S):
            out, _ = await process.communicate()
    except TimeoutError:
        return ""
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    found = re.search(rb"\d+(?:\.\d+)+\S*", out)
    return found.group(0).decode(errors="replace") if found else ""
