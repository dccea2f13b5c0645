"""The list of escapes, tried; and that an attempt succeeds where the wall it tries is taken away."""

from __future__ import annotations

import platform
import socket
from collections.abc import Callable

import pytest
from dressage_sandbox import seccomp, starting
from dressage_sandbox.arguments import Arguments, sandbox_arguments
from dressage_sandbox.escapes import ATTEMPTS, Attempt, try_one
from dressage_sandbox.inside import wire

pytestmark = pytest.mark.heavy

QUICK = [attempt for attempt in ATTEMPTS if not attempt.slow]


def named(name: str) -> Attempt:
    return next(attempt for attempt in ATTEMPTS if attempt.name == name)


@pytest.mark.parametrize("attempt", QUICK, ids=lambda attempt: attempt.name)
async def test_p7_an_escape_is_refused(attempt: Attempt) -> None:
    row = await try_one(attempt)
    assert row.refused, row.detail


def test_every_denied_call_is_tried() -> None:
    from dressage_sandbox.escapes import kernel

    tried = {name for names in kernel._GROUPS.values() for name in names.split()}
    assert tried == set(seccomp.DENIED)


def without(word: str) -> Callable[..., Arguments]:
    """Bubblewrap's arguments, for the first sandbox without this one."""
    walls = [word]

    def arguments(*args: object, **kwargs: object) -> Arguments:
        made = sandbox_arguments(*args, **kwargs)  # type: ignore[arg-type]
        if walls:
            made.words.remove(walls.pop())
        return made

    return arguments


@pytest.mark.parametrize(
    "name", ["host loopback and the control plane", "abstract sockets, and sockets of container engines"]
)
async def test_an_attempt_succeeds_where_the_network_namespace_is_missing(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:  # the proxy's port is one of the host's then
        monkeypatch.setattr(wire, "EGRESS_PORT", free.getsockname()[1])
    monkeypatch.setattr(starting, "sandbox_arguments", without("--unshare-net"))
    assert not (await try_one(named(name))).refused


@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="no filter on this architecture")
@pytest.mark.parametrize("name", ["keyctl", "a capability, or the filter taken off"])
async def test_an_attempt_succeeds_where_the_filter_is_missing(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(seccomp, "program", lambda machine=None: None)
    assert not (await try_one(named(name))).refused
