"""What every sandbox provider must do, as checks that can be run against any of them.

::

    for check in conformance.CHECKS:          # or FILE_CHECKS for a provider that runs no programs
        await check(provider, conformance.DEFAULT_SPEC)

A check raises ``NotConforming`` with a sentence about what is wrong. The image needs /bin/sh and the usual
small programs (cat, sleep, head, mkfifo, ln, kill).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

from .errors import (
    InvalidSpec,
    NotARegularFile,
    SandboxError,
    SandboxFileError,
    SandboxFileNotFound,
    SandboxGone,
)
from .protocol import DirEntry, Sandbox, SandboxProvider, SandboxSpec

__all__ = ["CHECKS", "COMMAND_CHECKS", "DEFAULT_SPEC", "FILE_CHECKS", "Check", "NotConforming"]

Check = Callable[[SandboxProvider, SandboxSpec], Awaitable[None]]
DEFAULT_SPEC = SandboxSpec()
_GRACE_S = 2.0


class NotConforming(AssertionError):  # noqa: N818
    """A provider does not do what the protocol says."""


def _expect(condition: bool, sentence: str) -> None:
    if not condition:
        raise NotConforming(sentence)


@contextlib.asynccontextmanager
async def _sandbox(provider: SandboxProvider, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
    sandbox = await provider.create(spec)
    try:
        yield sandbox
    finally:
        await sandbox.terminate()


@contextlib.asynccontextmanager
async def _raises(kind: type[Exception], sentence: str) -> AsyncIterator[None]:
    try:
        yield
    except kind:
        return
    raise NotConforming(f"{sentence}: expected {kind.__name__}")


async def written_bytes_are_read_back(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """Binary data, parents made, parts by offset, relative to the work folder."""
    data = bytes(range(256)) * 4096
    async with _sandbox(provider, spec) as box:
        await box.write("a/b/data.bin", data)
        _expect(await box.read("a/b/data.bin", max_bytes=1 << 22) == data, "bytes changed on their way")
        _expect(
            await box.read(f"{spec.workdir}/a/b/data.bin", offset=255, max_bytes=2) == b"\xff\x00", "offset"
        )
        _expect(await box.read("a/b/data.bin", offset=len(data)) == b"", "reading at the end gives nothing")
        await box.write("a/b/data.bin", b"")
        _expect(await box.read("a/b/data.bin") == b"", "writing replaces the whole file")


async def folders_are_listed_by_name(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """Kinds and sizes, sorted."""
    async with _sandbox(provider, spec) as box:
        for name, data in (("z", b"123"), ("a/x", b""), ("m", b"1")):
            await box.write(name, data)
        expected = [DirEntry("a", "dir", 0), DirEntry("m", "file", 1), DirEntry("z", "file", 3)]
        _expect(await box.list(".") == expected, f"list gave {await box.list('.')}")


async def file_errors_are_typed(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """Missing files and folders in the place of files."""
    async with _sandbox(provider, spec) as box:
        await box.write("dir/file", b"1")
        async with _raises(SandboxFileNotFound, "reading a missing file"):
            await box.read("missing")
        async with _raises(SandboxFileNotFound, "listing a missing folder"):
            await box.list("missing")
        async with _raises(NotARegularFile, "reading a folder"):
            await box.read("dir")
        async with _raises(SandboxFileError, "writing over a folder"):
            await box.write("dir", b"1")


async def terminate_is_idempotent_and_final(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """Twice, at once and after each other; then every call is refused."""
    box = await provider.create(spec)
    started = time.monotonic()
    await asyncio.gather(box.terminate(), box.terminate())
    await box.terminate()
    _expect(time.monotonic() - started < _GRACE_S, "terminate took longer than two seconds")
    async with _raises(SandboxGone, "running in an ended sandbox"):
        await box.run(["true"])
    async with _raises(SandboxGone, "reading in an ended sandbox"):
        await box.read("x")


async def ids_differ(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """Two sandboxes of one spec share neither id nor files."""
    async with _sandbox(provider, spec) as one, _sandbox(provider, spec) as two:
        _expect(one.id != two.id, "two sandboxes have the same id")
        await one.write("mine", b"1")
        async with _raises(SandboxFileNotFound, "a file of another sandbox"):
            await two.read("mine")


async def exit_codes_are_the_programs_own(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """Non-zero is a result and not an exception; signals and missing programs as a shell says them."""
    async with _sandbox(provider, spec) as box:
        for command, code in (("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), (["no-such-program"], 127)):
            result = await box.run(command)
            _expect(result.exit_code == code, f"{command!r} gave {result.exit_code}, not {code}")
            _expect(not result.timed_out, f"{command!r} counts as timed out")


async def arguments_arrive_as_given(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """A sequence meets no shell; streams are apart; folder, variables and input arrive."""
    odd = ["a b", "$HOME", "'", '"', "*", "", "ü\n", "-n"]
    async with _sandbox(provider, spec) as box:
        result = await box.run(["printf", "%s|", *odd])
        _expect(result.stdout.decode() == "".join(f"{word}|" for word in odd), "arguments were changed")
        result = await box.run("echo out; echo err >&2; cat", stdin=b"\x00\xff in")
        _expect((result.stdout, result.stderr) == (b"out\n\x00\xff in", b"err\n"), "streams are mixed up")
        await box.write("sub/x", b"")
        result = await box.run("pwd; echo $VALUE", cwd=f"{spec.workdir}/sub", env={"VALUE": "a b"})
        _expect(result.stdout.decode() == f"{spec.workdir}/sub\na b\n", "cwd or env did not arrive")
        async with _raises(SandboxFileNotFound, "a missing cwd"):
            await box.run(["true"], cwd="/no/such/folder")
        async with _raises(InvalidSpec, "an argument of 128 KiB or more"):
            await box.run(["echo", "x" * (128 << 10)])
        result = await box.run("wc -c", stdin=b"x" * (256 << 10))
        _expect(result.stdout.strip() == b"262144", "a long standard input did not arrive whole")


async def output_is_bounded_and_counted(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """Head and tail are kept, the count is the true one, and the result is the same each time."""
    async with _sandbox(provider, spec) as box:
        line = "i=0; while [ $i -lt 4000 ]; do echo line $i; i=$((i+1)); done"
        results = [await box.run(line, output_bytes=2000) for _ in range(2)]
        first = results[0]
        _expect(len(first.stdout) <= 2000, "more than output_bytes came back")
        _expect(first.stdout_bytes == sum(len(f"line {i}\n") for i in range(4000)), "the count is not true")
        _expect(first.truncated, "a cut result does not say so")
        _expect(first.stdout.startswith(b"line 0\n"), "the head is missing")
        _expect(first.stdout.endswith(b"line 3999\n"), "the tail is missing")
        _expect(first.stdout == results[1].stdout, "the same output was cut in two ways")


async def timeouts_end_the_whole_tree(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """Whoever holds the pipes, and whoever left the session; what was written so far is kept."""
    async with _sandbox(provider, spec) as box:
        daemon = "setsid sh -c 'while :; do echo x >>grown; sleep 0.02; done' >/dev/null 2>&1 &"
        for command in (
            "echo early; sleep 60 & wait",
            "echo early; (sleep 60 &)",
            f"echo early; {daemon} sleep 60",
        ):
            started = time.monotonic()
            result = await box.run(command, timeout_s=0.5)
            _expect(time.monotonic() - started < 0.5 + _GRACE_S, f"{command!r} came back late")
            _expect(result.timed_out and result.exit_code != 0, f"{command!r} does not count as timed out")
            _expect(result.stdout == b"early\n", "output before the time-out was lost")
        size = len(await box.read("grown"))
        await asyncio.sleep(0.2)
        _expect(len(await box.read("grown")) == size, "a process of a timed-out command still writes")


async def commands_run_at_the_same_time(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """A slow command holds up neither another one nor a file."""
    async with _sandbox(provider, spec) as box:
        slow = asyncio.ensure_future(box.run(["sleep", "30"]))
        started = time.monotonic()
        result = await box.run(["echo", "hi"])
        await box.write("x", b"1")
        _expect(result.stdout == b"hi\n" and not slow.done(), "the second command waited for the first")
        _expect(time.monotonic() - started < _GRACE_S, "a slow command holds up others")
        slow.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await slow


async def odd_files_block_nothing(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """FIFOs and devices are refused at once; a huge sparse file costs only what is asked for."""
    async with _sandbox(provider, replace(spec, limits=replace(spec.limits, disk_bytes=4 << 30))) as box:
        await box.run("mkfifo fifo; ln -s /etc/passwd link; head -c 0 >sparse; truncate -s 3G sparse")
        started = time.monotonic()
        async with _raises(NotARegularFile, "reading a FIFO"):
            await box.read("fifo")
        async with _raises(NotARegularFile, "reading a device"):
            await box.read("/dev/zero")
        _expect(await box.read("sparse", max_bytes=10) == bytes(10), "the head of a sparse file")
        await box.write("link", b"mine")
        await box.write("fifo", b"mine")
        _expect(time.monotonic() - started < _GRACE_S, "odd files held up the file calls")
        _expect(await box.read("link") == b"mine" and await box.read("fifo") == b"mine", "a write was lost")
        async with _raises(SandboxError, "writing where nobody may"):
            await box.write("/usr/x", b"1")


FILE_CHECKS: tuple[Check, ...] = (
    written_bytes_are_read_back,
    folders_are_listed_by_name,
    file_errors_are_typed,
    terminate_is_idempotent_and_final,
    ids_differ,
)
"""Life cycle and files."""
COMMAND_CHECKS: tuple[Check, ...] = (
    exit_codes_are_the_programs_own,
    arguments_arrive_as_given,
    output_is_bounded_and_counted,
    timeouts_end_the_whole_tree,
    commands_run_at_the_same_time,
    odd_files_block_nothing,
)
"""What needs real programs."""
CHECKS = FILE_CHECKS + COMMAND_CHECKS
