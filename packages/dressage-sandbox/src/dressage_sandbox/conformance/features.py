"""What a provider may offer: each feature that it names works, and each other one is refused."""

from __future__ import annotations

import asyncio
import time
import urllib.request
from dataclasses import replace
from pathlib import Path

from ..errors import InvalidSpec, SandboxGone, Unsupported
from ..protocol import Endpoint, Feature, Mount, Sandbox, SandboxProvider, SandboxSpec
from ._base import GRACE_S, NotConforming, expect, raises, sandbox_of

_SERVER = "python3 -m http.server --bind 127.0.0.1 8123"


async def output_streams_as_it_comes(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """The first piece arrives while the command runs, and the pieces are all that it wrote."""
    pieces: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
    first = asyncio.Event()

    def take(stream: str, data: bytes) -> None:
        pieces[stream].append(data)
        first.set()

    async with sandbox_of(provider, spec) as box:
        line = "echo one; echo err >&2; until [ -e go ]; do sleep 0.02; done; head -c 300000 /dev/zero"
        running = asyncio.ensure_future(box.run(line, on_output=take, output_bytes=1000, timeout_s=20))
        async with asyncio.timeout(10):
            await first.wait()
        expect(not running.done(), "the first piece came only at the end")
        await box.write("go", b"")
        result = await running
        expect(b"".join(pieces["stdout"]) == b"one\n" + bytes(300_000), "pieces of standard output were lost")
        expect(b"".join(pieces["stderr"]) == b"err\n", "pieces of standard error were lost")
        expect(len(result.stdout) <= 1000 and result.stdout_bytes == 300_004, "the result is not bounded")
        async with raises(_OwnError, "an exception of on_output"):
            await box.run("yes", on_output=_fail, timeout_s=20)


class _OwnError(Exception):
    pass


def _fail(stream: str, data: bytes) -> None:
    raise _OwnError(stream)


async def services_have_their_own_life(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """Beyond the default time-out, beside commands, ended with their whole tree and with the sandbox."""
    short = replace(spec, limits=replace(spec.limits, timeout_s=0.5))
    async with sandbox_of(provider, short) as box:
        service = await box.start("trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.05; done")
        async with raises(TimeoutError, "waiting for a service that runs"):
            await service.wait(0.8)
        expect(service.running, "a service ended at the commands' time-out")
        expect((await box.run(["echo", "ok"])).stdout == b"ok\n", "a service holds up a command")
        result = await service.stop()
        expect((result.exit_code, result.timed_out) == (3, False), f"a stopped service tells {result}")
        expect(result.stdout == b"up\nbye\n", f"its output is {result.stdout!r}")
        expect(await service.stop() == result and not service.running, "stop is not idempotent")
        ready = asyncio.Event()
        stubborn = await box.start(
            "trap '' TERM; (trap '' TERM; sleep 60) & echo up; sleep 60; sleep 60",
            on_output=(lambda stream, data: ready.set()) if Feature.STREAMS in provider.features else None,
        )
        if Feature.STREAMS not in provider.features:
            ready.set()
            await asyncio.sleep(0.5)
        async with asyncio.timeout(10):
            await ready.wait()
        started = time.monotonic()
        result = await stubborn.stop(grace_s=0.2)
        expect(time.monotonic() - started < GRACE_S, "stop took too long")
        expect(result.exit_code == 137, f"a killed service tells {result.exit_code}")
        missing = await box.start(["no-such-program"])
        expect((await missing.wait(5)).exit_code == 127, "a service that is missing does not tell 127")
        last = await box.start(["sleep", "60"])
    async with raises(SandboxGone, "waiting for a service of an ended sandbox"):
        await last.wait(5)


async def ports_are_reached_from_outside(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """A server of the inside answers requests of the caller, a large body too; needs python3 inside."""
    async with sandbox_of(provider, spec) as box:
        await box.write("page", bytes(1 << 20))
        service = await box.start(_SERVER)
        endpoint = await box.expose(8123)
        expect(await _fetched(endpoint, "/page") == bytes(1 << 20), "the server's bytes did not come")
        expect(await box.expose(8123) == endpoint, "expose is not idempotent")
        async with raises(InvalidSpec, "a port that does not exist"):
            await box.expose(0)
        await service.stop()


async def _fetched(endpoint: Endpoint, path: str) -> bytes:
    def get() -> bytes:
        request = urllib.request.Request(endpoint.url + path, headers=dict(endpoint.headers))
        with urllib.request.urlopen(request, timeout=5) as reply:
            body: bytes = reply.read()
        return body

    give_up = time.monotonic() + 15
    while True:
        try:
            return await asyncio.to_thread(get)
        except OSError as error:
            if time.monotonic() > give_up:
                raise NotConforming(f"a port of the inside is not reached: {error}") from error
            await asyncio.sleep(0.05)


async def snapshots_are_forked(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """Each fork begins with the work folder as it was; forks change neither it nor each other."""
    async with sandbox_of(provider, spec) as box:
        await box.write("a/b.bin", bytes(range(256)) * 999, mode=0o755)
        snapshot = await box.snapshot()
        await box.write("a/b.bin", b"changed")
    fork = replace(spec, snapshot=snapshot.id)
    async with sandbox_of(provider, fork) as one, sandbox_of(provider, fork) as two:
        await one.write("a/b.bin", b"one")
        await one.write("new", b"one")
        expect(await two.read("a/b.bin") == bytes(range(256)) * 999, "a fork's file is not as it was")
        expect([entry.name for entry in await two.list(".")] == ["a"], "a fork has files of another")
        expect(await one.read("a/b.bin") == b"one", "a fork cannot change its files")
    await provider.delete_snapshot(snapshot.id)
    await provider.delete_snapshot(snapshot.id)
    async with raises(InvalidSpec, "a snapshot that was deleted"):
        await (await provider.create(fork)).terminate()


async def what_runs_is_ended_and_files_stay(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """Daemons that cleared their environment too; commands work afterwards, and can be quieted again."""
    async with sandbox_of(provider, spec) as box:
        await box.run("(setsid env -i sh -c 'while :; do date >>beat; sleep 0.05; done' &) >/dev/null 2>&1")
        running = asyncio.ensure_future(box.run(["sleep", "60"], timeout_s=60))
        await asyncio.sleep(0.3)
        await box.quiet()
        expect((await running).exit_code == 137, "a command that ran does not end as killed")
        size = len(await box.read("beat"))
        expect(size > 0, "the daemon of this check never ran")
        await asyncio.sleep(0.3)
        expect(len(await box.read("beat")) == size, "a daemon lives on")
        await box.quiet()
        expect((await box.run(["echo", "ok"])).stdout == b"ok\n", "no command runs afterwards")


async def what_is_not_offered_is_refused(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """By ``Unsupported``, both in a spec and in a call."""
    specs = {
        Feature.RELAY: replace(spec, relay="127.0.0.1:9"),
        Feature.EGRESS: replace(spec, egress=("example.org:443",)),
        Feature.MOUNTS: replace(spec, mounts=(Mount(Path("/usr"), "/mnt/usr"),)),
        Feature.ROOT: replace(spec, root=Path("/usr")),
        Feature.SNAPSHOTS: replace(spec, snapshot="snap-none"),
    }
    for feature in set(specs) - provider.features:
        async with raises(Unsupported, f"{feature} in a spec"):
            await (await provider.create(specs[feature])).terminate()
    async with sandbox_of(provider, spec) as box:
        for feature in {
            Feature.SERVICES, Feature.EXPOSE, Feature.SNAPSHOTS, Feature.QUIET,
        } - provider.features:  # fmt: skip
            async with raises(Unsupported, f"a call for {feature}"):
                await _call(box, feature)


async def _call(box: Sandbox, feature: Feature) -> None:
    if feature is Feature.SERVICES:
        await box.start(["true"])
    elif feature is Feature.EXPOSE:
        await box.expose(8123)
    elif feature is Feature.QUIET:
        await box.quiet()
    else:
        await box.snapshot()
