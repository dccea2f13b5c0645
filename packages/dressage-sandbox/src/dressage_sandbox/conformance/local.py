"""Networks and mounts: what is seen of the caller's own machine, for providers whose sandboxes run on it."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

from ..errors import SandboxFileError
from ..protocol import Mount, Sandbox, SandboxProvider, SandboxSpec
from ._base import expect, raises, sandbox_of

_FETCH = (
    "import urllib.request as u, sys; sys.stdout.write(u.urlopen(sys.argv[1], timeout=5).read().decode())"
)


@contextlib.asynccontextmanager
async def _server(name: bytes) -> AsyncIterator[str]:
    """An HTTP server of this machine that answers its name, and its address."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(
                b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(name) + name
            )
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def _fetch(box: Sandbox, url: str, **env: str) -> bytes:
    result = await box.run(["python3", "-c", _FETCH, url], timeout_s=20, env=env)
    return result.stdout if result.exit_code == 0 else b""


async def the_relay_is_reached_and_nothing_beside_it(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """By ``relay_url``; needs python3 inside."""
    async with _server(b"relay") as relay, _server(b"other") as other:
        async with sandbox_of(provider, replace(spec, relay=relay)) as box:
            expect(box.relay_url is not None, "a sandbox with a relay has no relay_url")
            expect(await _fetch(box, f"{box.relay_url}/x") == b"relay", "the relay is not reached")
            expect(await _fetch(box, f"http://{other}/") == b"", "another address of this machine is reached")
        async with sandbox_of(provider, spec) as box:
            expect(box.relay_url is None, "a sandbox without a relay has a relay_url")
            expect(await _fetch(box, f"http://{relay}/") == b"", "this machine is reached without a relay")


async def what_is_listed_is_reached_and_nothing_else(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """Through the proxy that the environment names, so by ordinary programs; needs python3 inside."""
    async with (
        _server(b"listed") as listed,
        _server(b"other") as other,
        sandbox_of(provider, replace(spec, egress=(listed,))) as box,
    ):
        all_by_proxy = {"NO_PROXY": "", "no_proxy": ""}
        expect(await _fetch(box, f"http://{listed}/", **all_by_proxy) == b"listed", "it is not reached")
        for url in (
            f"http://{other}/",
            "http://169.254.169.254/",
            "http://localhost:" + listed[10:] + "/",
        ):
            expect(await _fetch(box, url, **all_by_proxy) == b"", f"{url} is reached by the proxy")
        everything_direct = {"NO_PROXY": "*", "no_proxy": "*"}
        expect(await _fetch(box, f"http://{listed}/", **everything_direct) == b"", "it is reached directly")


async def mounts_are_read_only(provider: SandboxProvider, spec: SandboxSpec) -> None:
    """A folder of this machine can be read, and neither written nor left upwards."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "mounted")
        await asyncio.to_thread(_fill, folder)
        async with sandbox_of(provider, replace(spec, mounts=(Mount(folder, "/data"),))) as box:
            expect(await box.read("/data/file") == b"mounted", "a mounted file cannot be read")
            async with raises(SandboxFileError, "writing in a mount"):
                await box.write("/data/new", b"x")
            expect((await box.run("echo x >/data/file")).exit_code != 0, "a command writes in a mount")
            async with raises(SandboxFileError, "what lies beside a mount"):
                await box.read("/data/../beside")


def _fill(folder: Path) -> None:
    folder.mkdir()
    (folder / "file").write_bytes(b"mounted")
    (folder.parent / "beside").write_bytes(b"not for anyone")
    for path in (folder.parent, folder, folder / "file"):
        path.chmod(0o755)
