"""Life cycle and files."""

from __future__ import annotations

import asyncio
import math
import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from ..errors import (
    FileTooLarge,
    InvalidSpec,
    NotARegularFile,
    SandboxFileError,
    SandboxFileNotFound,
    SandboxGone,
)
from ..protocol import DirEntry, SandboxProvider, SandboxSpec
from ._base import GRACE_S, expect, raises, sandbox_of


async def written_bytes_are_read_back(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """Binary data, parents made, parts by offset, relative to the work folder."""
    data = bytes(range(256)) * 4096
    async with sandbox_of(provider, spec) as box:
        await box.write("a/b/data.bin", data)
        expect(await box.read("a/b/data.bin", max_bytes=1 << 22) == data, "bytes changed on their way")
        expect(
            await box.read(f"{spec.workdir}/a/b/data.bin", offset=255, max_bytes=2) == b"\xff\x00", "offset"
        )
        expect(await box.read("a/b/data.bin", offset=len(data)) == b"", "reading at the end gives nothing")
        await box.write("a/b/data.bin", b"")
        expect(await box.read("a/b/data.bin") == b"", "writing replaces the whole file")


async def folders_are_listed_by_name(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """Kinds and sizes, sorted."""
    async with sandbox_of(provider, spec) as box:
        for name, data in (("z", b"123"), ("a/x", b""), ("m", b"1")):
            await box.write(name, data)
        expected = [DirEntry("a", "dir", 0), DirEntry("m", "file", 1), DirEntry("z", "file", 3)]
        expect(await box.list(".") == expected, f"list gave {await box.list('.')}")


async def file_errors_are_typed(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """Missing files and folders in the place of files."""
    async with sandbox_of(provider, spec) as box:
        await box.write("dir/file", b"1")
        async with raises(SandboxFileNotFound, "reading a missing file"):
            await box.read("missing")
        async with raises(SandboxFileNotFound, "listing a missing folder"):
            await box.list("missing")
        async with raises(NotARegularFile, "reading a folder"):
            await box.read("dir")
        async with raises(SandboxFileError, "writing over a folder"):
            await box.write("dir", b"1")


async def terminate_is_idempotent_and_final(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """Twice, at once and after each other; then every call is refused."""
    box = await provider.create(spec)
    started = time.monotonic()
    await asyncio.gather(box.terminate(), box.terminate())
    await box.terminate()
    expect(time.monotonic() - started < GRACE_S, "terminate took longer than two seconds")
    async with raises(SandboxGone, "running in an ended sandbox"):
        await box.run(["true"])
    async with raises(SandboxGone, "reading in an ended sandbox"):
        await box.read("x")


async def ids_differ(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """Two sandboxes of one spec share neither id nor files."""
    async with sandbox_of(provider, spec) as one, sandbox_of(provider, spec) as two:
        expect(one.id != two.id, "two sandboxes have the same id")
        await one.write("mine", b"1")
        async with raises(SandboxFileNotFound, "a file of another sandbox"):
            await two.read("mine")


async def files_are_copied_in_and_out(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """Binary, larger than any frame, whole or not at all, and refused when longer than wanted."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "source"), Path(folder, "target")
        data = bytes(range(256)) * (12 << 10) + b"end"
        await asyncio.to_thread(source.write_bytes, data)
        async with sandbox_of(provider, spec) as box:
            expect(await box.upload(source, "in/big") == len(data), "upload tells another size")
            expect(await box.download("in/big", target) == len(data), "download tells another size")
            expect(
                await asyncio.to_thread(target.read_bytes) == data, "bytes changed on their way in and out"
            )
            await asyncio.to_thread(target.unlink)
            async with raises(FileTooLarge, "downloading more than max_bytes"):
                await box.download("in/big", target, max_bytes=len(data) - 1)
            async with raises(SandboxFileNotFound, "downloading a missing file"):
                await box.download("missing", target)
            async with raises(NotARegularFile, "downloading a folder"):
                await box.download("in", target)
            left = await asyncio.to_thread(os.listdir, folder)
            expect(left == ["source"], "a refused download left something behind")
            async with raises(InvalidSpec, "uploading a folder"):
                await box.upload(Path(folder), "x")
            async with raises(OSError, "uploading a missing file"):
                await box.upload(Path(folder, "missing"), "x")


async def status_and_expiry_are_told(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """Who owns it and how long it has; ``renew`` moves the end on; answers after the end too."""
    box = await provider.create(replace(spec, owner="conformance", ttl_s=600.0))
    status = await box.status()
    expect(status.alive and status.owner == "conformance" and not status.why, f"status is {status}")
    expect(0 < status.expires_in_s <= 600, f"it expires in {status.expires_in_s} s")
    await box.renew(1200.0)
    expect(600 < (await box.status()).expires_in_s <= 1200, "renew does not move the end on")
    expect((await box.status()).expires_in_s < math.inf, "an expiry was lost")
    await box.terminate()
    status = await box.status()
    expect(not status.alive and bool(status.why), f"after the end, status is {status}")
    async with raises(SandboxGone, "renewing an ended sandbox"):
        await box.renew(10.0)
