"""Tool hooks: what else wants to know of a tool call before the agent makes it, and of its result after.

A hook observes; it cannot change what was sampled or what the agent says. Packages offer hooks under the
entry point group ``dressage_proxy.tool_hooks``: the name is what ``--tool-hook`` takes, the object a callable
without arguments that makes the hook.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any, Protocol, runtime_checkable

from dressage_segments import SessionInfo
from dressage_tito import ToolCall

from dressage_proxy.errors import ConfigError, HookError

GROUP = "dressage_proxy.tool_hooks"
_TIMEOUT_S = 10.0
log = logging.getLogger("dressage.proxy")


@dataclass(frozen=True, slots=True)
class ToolEvent:
    """A tool call of a session, and its result once the agent brought it. ``call_id`` is the one on the wire,
    unique in the session: with ``session_id`` it names the event after a restart too, when a hook may be
    told of it again."""

    session_id: str
    instance_id: str
    rollout_id: str
    labels: Mapping[str, str]
    call_id: str
    name: str = ""
    """Of the tool; "" where a result answers a call that this session never made."""
    arguments: object = None
    result: object = None
    """The content of the agent's message; None before."""


@runtime_checkable
class ToolHook(Protocol):
    """Told of each call and result once, in rising ``order``. One that raises is told again when the request
    is made again; where it is ``required`` the request fails until it does not."""

    name: str
    order: int
    required: bool

    async def before(self, event: ToolEvent) -> None:
        """The model asked for a call, and the agent does not know it yet."""
        ...

    async def after(self, event: ToolEvent) -> None:
        """The agent brought the result, and the model does not know it yet."""
        ...


@dataclass(slots=True)
class HookMemory:
    """What the hooks of one session were told already, and the calls that it made."""

    told: set[tuple[str, str, str]] = field(default_factory=set)
    calls: dict[str, ToolCall] = field(default_factory=dict)


class Hooks:
    """The hooks of one proxy."""

    def __init__(self, hooks: Iterable[ToolHook] = (), timeout_s: float = _TIMEOUT_S) -> None:
        self._hooks = sorted(hooks, key=lambda hook: (hook.order, hook.name))
        self._timeout_s = timeout_s
        names = [hook.name for hook in self._hooks]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigError(f"--tool-hook: {', '.join(twice)} is there twice")

    def __bool__(self) -> bool:
        return bool(self._hooks)

    async def before(
        self, info: SessionInfo, labels: Mapping[str, str], memory: HookMemory, calls: Sequence[ToolCall]
    ) -> None:
        """Tell of the calls of a reply that is about to be released. Raises HookError."""
        for call in calls:
            memory.calls[call.id] = call
            await self._tell("before", memory, _event(info, labels, call.id, call, None))

    async def after(
        self,
        info: SessionInfo,
        labels: Mapping[str, str],
        memory: HookMemory,
        messages: Iterable[Mapping[str, Any]],
    ) -> None:
        """Tell of the results among messages (chat shape) that a request adds. Raises HookError."""
        for message in messages:
            if message.get("role") == "tool":
                call_id = str(message.get("tool_call_id", ""))
                call = memory.calls.get(call_id)
                await self._tell("after", memory, _event(info, labels, call_id, call, message.get("content")))

    async def _tell(self, phase: str, memory: HookMemory, event: ToolEvent) -> None:
        for hook in self._hooks:
            key = (phase, hook.name, event.call_id)
            if key in memory.told:
                continue
            try:
                async with asyncio.timeout(self._timeout_s):
                    await (hook.before(event) if phase == "before" else hook.after(event))
            except Exception as error:
                log.exception("tool hook %s failed %s call %s", hook.name, phase, event.call_id)
                if hook.required:
                    message = f"the required tool hook {hook.name} failed {phase} call {event.call_id}"
                    raise HookError(message, retry_after_s=1) from error
            else:
                memory.told.add(key)


def _event(
    info: SessionInfo, labels: Mapping[str, str], call_id: str, call: ToolCall | None, result: object
) -> ToolEvent:
    name, arguments = (call.name, call.arguments) if call is not None else ("", None)
    return ToolEvent(
        info.session_id, info.instance_id, info.rollout_id, labels, call_id, name, arguments, result
    )


def load_hooks(names: Sequence[str]) -> list[ToolHook]:
    """The hooks of these entry points. Raises ConfigError for a name that no package offers, and for what
    does not load, fails, or makes no hook."""
    offered = {point.name: point for point in entry_points(group=GROUP)}
    hooks = []
    for name in names:
        if name not in offered:
            known = ", ".join(sorted(offered)) or "none is installed"
            raise ConfigError(f"--tool-hook {name}: no package offers it under {GROUP} ({known})")
        try:
            hook = offered[name].load()()
        except Exception as error:
            where = offered[name].value
            raise ConfigError(f"--tool-hook {name}: {where}: {type(error).__name__}: {error}") from error
        if not isinstance(hook, ToolHook):
            raise ConfigError(
                f"--tool-hook {name}: {hook!r} is no ToolHook: name, order, required, before, after"
            )
        hooks.append(hook)
    return hooks
