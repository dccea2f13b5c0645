"""How a sandbox comes to be: group, record and process, then the first exchange with its agent."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from dataclasses import dataclass, replace
from pathlib import Path

from . import seccomp
from .accepting import Room
from .arguments import base_env, file_sizes, rlimits, sandbox_arguments
from .bwrap import find_bubblewrap
from .cgroups import Cgroups, detect
from .channel import Channel
from .errors import SandboxStartFailed
from .handshake import START_S, ready, servers_of
from .inside import wire
from .interpreter import Interpreter, find_interpreter
from .launch import Launcher
from .owner import Owner, boot_time, group_name, start_time
from .owners import Record, Records
from .probe import Capabilities, check_machine, describe, nproc_is_per_sandbox
from .protocol import SandboxSpec
from .roots import Rooted
from .sandbox import BubblewrapSandbox, Home
from .shelf import Overlay, Shelf, make_shelf

__all__ = ["Machine", "connect", "launch", "look_at_machine"]


@dataclass(frozen=True, slots=True)
class Machine:
    """What was found out once about this machine."""

    launcher: Launcher
    interpreter: Interpreter
    cgroups: Cgroups
    filter: bytes | None
    owner: Owner

    @property
    def capabilities(self) -> Capabilities:
        """What holds a sandbox here."""
        return describe(self.launcher, self.cgroups, self.interpreter.path, self.filter is not None)


def look_at_machine(choice: str, *, use_cgroups: bool) -> Machine:
    """Find out by trying. Blocks: for a thread.

    Raises:
        BubblewrapMissing, UserNamespacesForbidden, ProviderUnavailable: each says how to fix it.
    """
    interpreter = find_interpreter(choice)
    launcher = Launcher(find_bubblewrap(), interpreter.path)
    check_machine(launcher)
    cgroups = detect() if use_cgroups else Cgroups(0, {})
    return Machine(launcher, interpreter, cgroups, seccomp.program(), Owner.this_process())


def launch(
    machine: Machine, records: Records, spec: SandboxSpec, rooted: Rooted | None, home: Home
) -> BubblewrapSandbox:
    """Group, record and process; no await in between, so that a cancellation cannot fall in.

    Raises:
        InvalidSpec, LimitNotEnforceable, SandboxStartFailed: nothing is left then.
    """
    interpreter = machine.interpreter if rooted is None else rooted.interpreter
    image = None if rooted is None else rooted.image
    shelf = _shelf_of(machine, spec, rooted)
    sandbox_id = f"sb-{secrets.token_hex(6)}"
    name = group_name(machine.owner, sandbox_id)
    record = Record(
        id=sandbox_id, owner=machine.owner, label=spec.owner, created=time.time(), ttl_s=spec.ttl_s,
        cgroups=tuple(str(folder) for folder in machine.cgroups.folders(name, spec.limits)),
    )  # fmt: skip
    groups: tuple[Path, ...] = ()
    try:
        records.put(record)  # first: what follows is found by the reaper even if we die here
        groups = machine.cgroups.make(name, spec.limits)
        arguments = sandbox_arguments(spec, interpreter, machine.filter, shelf, image)
        process = machine.launcher.start(
            arguments, shelf.outer, () if rooted is None else interpreter.command
        )
    except BaseException as error:
        for folder in groups:
            folder.rmdir()
        records.drop(record)
        if isinstance(error, OSError):
            raise SandboxStartFailed(f"{error.filename or 'start'}: {error.strerror or error}") from error
        raise
    env, quota = base_env(spec, interpreter), machine.cgroups.quota(name, spec.limits)
    return BubblewrapSandbox(record, spec, env, process, groups, home, quota)


def _shelf_of(machine: Machine, spec: SandboxSpec, rooted: Rooted | None) -> Shelf:
    """Where bubblewrap finds what it mounts."""
    interpreter = machine.interpreter if rooted is None else rooted.interpreter
    image = None if rooted is None else rooted.image
    sources = [*(mount.source for mount in spec.mounts), *(s for s, _ in interpreter.mounts)]
    sources += [] if spec.root is None else [spec.root]
    overlay = None
    if spec.root is not None and image is not None and image.overlay and image.workdir is not None:
        user = image.workdir.stat().st_uid
        overlay = Overlay(spec.root, spec.workdir, user, file_sizes(spec.limits)[0])
    return make_shelf(sources, drops_root=machine.launcher.drops_root, overlay=overlay)


async def connect(machine: Machine, records: Records, sandbox: BubblewrapSandbox, room: Room) -> None:
    """Process 1 goes into its group, gets its configuration, and answers that it is ready."""
    spec, process = sandbox.spec, sandbox.process
    pid = await process.learn_inner(START_S)
    try:
        if spec.limits.cpus is None:
            machine.cgroups.enter(sandbox.groups, pid)
        else:  # this waits in the kernel, and the loop must not
            await asyncio.to_thread(machine.cgroups.enter, sandbox.groups, pid)
    except ProcessLookupError:
        raise SandboxStartFailed(await process.last_words()) from None
    started = start_time(pid) or 0
    expires = boot_time() + spec.ttl_s
    sandbox.record = replace(sandbox.record, pid=pid, started=started, expires=expires)
    records.put(sandbox.record)
    servers = servers_of(spec, room)
    door, *listeners = await ready(process, _configuration(machine, spec), len(servers))
    try:
        for server, listener in zip(servers.values(), listeners, strict=True):
            await server.start(listener)
        channel = await Channel.open(process.control, sandbox.channel_ended, sandbox.death, sandbox.quota)
    except BaseException:
        # Not the sandbox's yet, so its end would not reach them.
        for server in servers.values():
            server.stop()
        for passed in (door, *listeners):
            passed.close()
        raise
    port = wire.RELAY_PORT if wire.RELAY_PORT in servers else None
    sandbox.attach(channel, door, tuple(servers.values()), port)


def _configuration(machine: Machine, spec: SandboxSpec) -> bytes:
    cgroups = machine.cgroups
    limits = rlimits(
        spec.limits,
        memory=not cgroups.enforces("memory"),
        pids=not cgroups.enforces("pids") and nproc_is_per_sandbox(machine.launcher.drops_root),
    )
    pairs = [b"%d" % number for item in limits.items() for number in item]
    ports = b" ".join(b"%d" % port for port in servers_of(spec))
    return wire.frame(wire.CONFIG, 0, wire.pack(os.fsencode(spec.workdir), ports, *pairs))
