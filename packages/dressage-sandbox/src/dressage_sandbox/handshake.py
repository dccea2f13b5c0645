"""The first exchange with the agent inside, and what listens for it on the host's side."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket

from .accepting import Room
from .egress import AllowList, Egress
from .errors import SandboxStartFailed
from .inside import wire
from .launch import Process, readable
from .protocol import SandboxSpec
from .relay import Relay, parse_address

__all__ = ["START_S", "ready", "servers_of"]

START_S = 20.0
"""How long a sandbox may take to start."""


def servers_of(spec: SandboxSpec, room: Room | None = None) -> dict[int, Relay | Egress]:
    """What listens on ports inside, by port."""
    servers: dict[int, Relay | Egress] = {}
    if spec.relay is not None:
        host, port = parse_address(spec.relay)
        servers[wire.RELAY_PORT] = Relay(lambda: asyncio.open_connection(host, port), spec.relay, room=room)
    if spec.egress:
        servers[wire.EGRESS_PORT] = Egress(AllowList.parse(spec.egress), room=room)
    return servers


async def ready(process: Process, configuration: bytes, listeners: int) -> list[socket.socket]:
    """Wait for the agent's first frame; it brings the door, and listening sockets of the inside."""
    with contextlib.suppress(BrokenPipeError):  # it ended already: told below
        process.control.sendall(configuration)
    if not await readable(process.control.fileno(), START_S):
        raise SandboxStartFailed(f"the agent inside was not ready within {START_S} s")
    try:
        data, fds, _, _ = socket.recv_fds(process.control, wire.HEADER.size, 1 + listeners)
    except ConnectionError:
        data, fds = b"", []
    if len(data) != wire.HEADER.size or wire.HEADER.unpack(data)[1] != wire.READY:
        for fd in fds:
            os.close(fd)
        raise SandboxStartFailed(f"the agent inside did not start: {await process.last_words()}")
    passed = [socket.socket(fileno=fd) for fd in fds]
    if len(passed) != 1 + listeners:
        for each in passed:
            each.close()
        raise SandboxStartFailed("the agent inside gave too few sockets")
    for each in passed:
        each.setblocking(False)
    return passed
