"""Commands: exit codes, arguments, output, time-outs."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import replace

from ..errors import InvalidSpec, NotARegularFile, SandboxError, SandboxFileNotFound
from ..protocol import SandboxProvider, SandboxSpec
from ._base import GRACE_S, expect, raises, sandbox_of


async def exit_codes_are_the_programs_own(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """Non-zero is a result and not an exception; signals and missing programs as a shell says them."""
    async with sandbox_of(provider, spec) as box:
        for command, code in (("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), (["no-such-program"], 127)):
            result = await box.run(command)
            expect(result.exit_code == code, f"{command!r} gave {result.exit_code}, not {code}")
            expect(not result.timed_out, f"{command!r} counts as timed out")


async def arguments_arrive_as_given(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """A sequence meets no shell; streams are apart; folder, variables and input arrive."""
    odd = ["a b", "$HOME", "'", '"', "*", "", "ü\n", "-n"]
    async with sandbox_of(provider, spec) as box:
        result = await box.run(["printf", "%s|", *odd])
        expect(result.stdout.decode() == "".join(f"{word}|" for word in odd), "arguments were changed")
        result = await box.run("echo out; echo err >&2; cat", stdin=b"\x00\xff in")
        expect((result.stdout, result.stderr) == (b"out\n\x00\xff in", b"err\n"), "streams are mixed up")
        await box.write("sub/x", b"")
        result = await box.run("pwd; echo $VALUE", cwd=f"{spec.workdir}/sub", env={"VALUE": "a b"})
        expect(result.stdout.decode() == f"{spec.workdir}/sub\na b\n", "cwd or env did not arrive")
        async with raises(SandboxFileNotFound, "a missing cwd"):
            await box.run(["true"], cwd="/no/such/folder")
        async with raises(InvalidSpec, "an argument of 128 KiB or more"):
            await box.run(["echo", "x" * (128 << 10)])
        result = await box.run("wc -c", stdin=b"x" * (256 << 10))
        expect(result.stdout.strip() == b"262144", "a long standard input did not arrive whole")


async def output_is_bounded_and_counted(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """Head and tail are kept, the count is the true one, and the result is the same each time."""
    async with sandbox_of(provider, spec) as box:
        line = "i=0; while [ $i -lt 4000 ]; do echo line $i; i=$((i+1)); done"
        results = [await box.run(line, output_bytes=2000) for _ in range(2)]
        first = results[0]
        expect(len(first.stdout) <= 2000, "more than output_bytes came back")
        expect(first.stdout_bytes == sum(len(f"line {i}\n") for i in range(4000)), "the count is not true")
        expect(first.truncated, "a cut result does not say so")
        expect(first.stdout.startswith(b"line 0\n"), "the head is missing")
        expect(first.stdout.endswith(b"line 3999\n"), "the tail is missing")
        expect(first.stdout == results[1].stdout, "the same output was cut in two ways")


async def timeouts_end_the_whole_tree(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """Whoever holds the pipes, and whoever left the session; what was written so far is kept."""
    async with sandbox_of(provider, spec) as box:
        daemon = "setsid sh -c 'while :; do echo x >>grown; sleep 0.02; done' >/dev/null 2>&1 &"
        for command in (
            "echo early; sleep 60 & wait",
            "echo early; (sleep 60 &)",
            f"echo early; {daemon} sleep 60",
        ):
            started = time.monotonic()
            result = await box.run(command, timeout_s=0.5)
            expect(time.monotonic() - started < 0.5 + GRACE_S, f"{command!r} came back late")
            expect(result.timed_out and result.exit_code != 0, f"{command!r} does not count as timed out")
            expect(result.stdout == b"early\n", "output before the time-out was lost")
        size = len(await box.read("grown"))
        await asyncio.sleep(0.2)
        expect(len(await box.read("grown")) == size, "a process of a timed-out command still writes")


async def commands_run_at_the_same_time(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """A slow command holds up neither another one nor a file."""
    async with sandbox_of(provider, spec) as box:
        slow = asyncio.ensure_future(box.run(["sleep", "30"]))
        started = time.monotonic()
        result = await box.run(["echo", "hi"])
        await box.write("x", b"1")
        expect(result.stdout == b"hi\n" and not slow.done(), "the second command waited for the first")
        expect(time.monotonic() - started < GRACE_S, "a slow command holds up others")
        slow.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await slow


async def odd_files_block_nothing(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """FIFOs and devices are refused at once; a huge sparse file costs only what is asked for."""
    async with sandbox_of(provider, replace(spec, limits=replace(spec.limits, disk_bytes=4 << 30))) as box:
        await box.run("mkfifo fifo; ln -s /etc/passwd link; head -c 0 >sparse; truncate -s 3G sparse")
        started = time.monotonic()
        async with raises(NotARegularFile, "reading a FIFO"):
            await box.read("fifo")
        async with raises(NotARegularFile, "reading a device"):
            await box.read("/dev/zero")
        expect(await box.read("sparse", max_bytes=10) == bytes(10), "the head of a sparse file")
        await box.write("link", b"mine")
        await box.write("fifo", b"mine")
        expect(time.monotonic() - started < GRACE_S, "odd files held up the file calls")
        expect(await box.read("link") == b"mine" and await box.read("fifo") == b"mine", "a write was lost")
        async with raises(SandboxError, "writing where nobody may"):
            await box.write("/usr/x", b"1")


async def output_of_any_bytes_comes_back_as_it_was(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """NULs and what is no UTF-8."""
    async with sandbox_of(provider, spec) as box:
        result = await box.run(r"printf '\000\377\376a\303'; printf '\200\000' >&2")
        expect(result.stdout == b"\x00\xff\xfea\xc3", f"standard output became {result.stdout!r}")
        expect(result.stderr == b"\x80\x00", f"standard error became {result.stderr!r}")


async def an_expired_sandbox_ends(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """By itself, and also where a command runs."""
    box = await provider.create(replace(spec, ttl_s=1.0))
    started = time.monotonic()
    async with raises(SandboxError, "running beyond the sandbox's time to live"):
        await box.run(["sleep", "60"], timeout_s=50)
    expect(time.monotonic() - started < 1.0 + 2 * GRACE_S, "the expiry came late")
    expect(not (await box.status()).alive, "an expired sandbox says that it lives")
    await box.terminate()
