"""The one module that imports Ray: the actor of a node, and what is asked of the cluster."""

from __future__ import annotations

import asyncio
import math
import os
import tempfile
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    GetTimeoutError,
    ObjectLostError,
    RayActorError,
    RayError,
    TaskCancelledError,
)
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ..errors import ProviderUnavailable, SandboxError, SandboxGone, SandboxStartFailed
from ..pool import PooledProvider
from ..protocol import Sandbox, SandboxProvider, SandboxSpec, Service

__all__ = ["Node", "alive_nodes", "check_connected", "start_node"]

_KILL_S = 10.0
_LOST = (ActorDiedError, ActorUnavailableError, RayActorError, ObjectLostError)
_PASSED_ON = (SandboxError, OSError, TimeoutError, ValueError)


class NodeServer:
    """Runs on a node, and holds its provider and its sandboxes: the truth about them is here.

    All of it is done on an event loop of its own, of asyncio's plain kind: the actor's may be another one
    (Ray takes uvloop where it is installed), and is Ray's to keep busy.
    """

    def __init__(self, make: Callable[[], SandboxProvider]) -> None:
        self._loop = asyncio.SelectorEventLoop()
        threading.Thread(target=self._loop.run_forever, name="sandboxes", daemon=True).start()
        self._provider = asyncio.run_coroutine_threadsafe(_made(make), self._loop).result()
        self._sandboxes: dict[str, Sandbox] = {}
        self._services: dict[tuple[str, str], Service] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="dressage-ray-")

    async def ask(self, method: str, *arguments: Any, **named: Any) -> tuple[bool, Any]:
        """Whether it went well, and the result or the error, as it was raised."""
        work = getattr(self, method)(*arguments, **named)
        try:
            return True, await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))
        except _PASSED_ON as error:
            return False, error

    async def watch(self) -> None:
        """Never ends, but with this node."""
        await asyncio.Event().wait()

    async def where(self) -> tuple[str, int]:
        """The node's id as Ray tells it here, and this process."""
        return str(ray.get_runtime_context().get_node_id()), os.getpid()

    async def fill(self) -> None:
        """Wait until what the provider keeps ready is."""
        if isinstance(self._provider, PooledProvider):
            await self._provider.fill()

    async def create(self, spec: SandboxSpec) -> tuple[str, str | None]:
        """A sandbox's id and its relay as seen inside."""
        sandbox = await self._provider.create(spec)
        self._sandboxes[sandbox.id] = sandbox
        return sandbox.id, sandbox.relay_url

    async def call(self, sandbox_id: str, method: str, arguments: tuple[Any, ...], named: Any) -> Any:
        """A method of a sandbox."""
        return await getattr(self._sandbox(sandbox_id), method)(*arguments, **named)

    async def terminate(self, sandbox_id: str) -> None:
        """End a sandbox; one that is not here has ended."""
        sandbox = self._sandboxes.get(sandbox_id)
        if sandbox is not None:
            await sandbox.terminate()
            del self._sandboxes[sandbox_id]
            self._services = {key: s for key, s in self._services.items() if key[0] != sandbox_id}

    def _sandbox(self, sandbox_id: str) -> Sandbox:
        if sandbox_id not in self._sandboxes:
            raise SandboxGone("the sandbox was terminated")
        return self._sandboxes[sandbox_id]

    async def start(self, sandbox_id: str, arguments: tuple[Any, ...], named: Any) -> str:
        """A service's id."""
        service = await self._sandbox(sandbox_id).start(*arguments, **named)
        self._services[sandbox_id, service.id] = service
        return service.id

    async def of_service(self, sandbox_id: str, service_id: str, method: str, named: Any) -> Any:
        """A method of a service."""
        self._sandbox(sandbox_id)
        return await getattr(self._services[sandbox_id, service_id], method)(**named)

    # -- files of the caller's machine come and go in pieces --------------------------------------------
    async def new_file(self) -> str:
        """A file of this node, for pieces."""
        fd, name = await asyncio.to_thread(tempfile.mkstemp, dir=self._folder.name)
        os.close(fd)
        return name

    async def append(self, name: str, piece: bytes) -> None:
        """Add to such a file."""
        await asyncio.to_thread(_append, Path(name), piece)

    async def upload(self, sandbox_id: str, name: str, path: str, mode: int) -> int:
        """Bring such a file into a sandbox."""
        return await self._sandbox(sandbox_id).upload(Path(name), path, mode=mode)

    async def download(self, sandbox_id: str, path: str, name: str, max_bytes: int) -> int:
        """Fill such a file from a sandbox."""
        return await self._sandbox(sandbox_id).download(path, Path(name), max_bytes=max_bytes)

    async def piece(self, name: str, offset: int, size: int) -> bytes:
        """Read of such a file."""
        return await asyncio.to_thread(_piece, Path(name), offset, size)

    async def drop(self, name: str) -> None:
        """Remove such a file."""
        await asyncio.to_thread(Path(name).unlink, missing_ok=True)

    async def delete_snapshot(self, snapshot_id: str) -> None:
        """The provider's."""
        await self._provider.delete_snapshot(snapshot_id)

    async def close(self) -> None:
        """End everything of this node."""
        await self._provider.close()
        self._sandboxes.clear()
        self._folder.cleanup()


async def _made(make: Callable[[], SandboxProvider]) -> SandboxProvider:
    """On the loop where it will be used."""
    return make()


def _append(path: Path, piece: bytes) -> None:
    with path.open("ab") as file:
        file.write(piece)


def _piece(path: Path, offset: int, size: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(size)


class Node:
    """A node as this process reaches it: calls and their data go from here straight to its actor."""

    def __init__(self, node_id: str, actor: Any, call_s: float) -> None:
        self.id = node_id
        self._actor = actor
        self._call_s = call_s

    async def ask(self, method: str, *arguments: Any, patience_s: float | None = None, **named: Any) -> Any:
        """The result of a method of ``NodeServer``. A caller that is cancelled cancels it over there too.

        Raises:
            SandboxGone: the node is lost.
            SandboxError: it did not answer in time.
        """
        seconds = self._call_s if patience_s is None else patience_s
        reference = self._actor.ask.remote(method, *arguments, **named)
        try:
            async with asyncio.timeout(None if seconds == math.inf else seconds):
                well, result = await reference
        except TimeoutError as error:
            ray.cancel(reference)
            raise SandboxError(f"node {self.id[:12]} did not answer {method} within {seconds:g} s") from error
        except asyncio.CancelledError:
            ray.cancel(reference)
            raise
        except _LOST as error:
            raise SandboxGone(f"node {self.id[:12]} is lost: {type(error).__name__}") from error
        except (TaskCancelledError, GetTimeoutError, RayError) as error:
            raise SandboxError(f"node {self.id[:12]} did not answer {method}: {error}") from error
        if well:
            return result
        raise result

    async def until_lost(self) -> None:
        """Wait until the node is lost."""
        try:
            await self._actor.watch.remote()
        except RayError:
            return

    async def kill(self) -> None:
        """End the actor; bounded, since the cluster may not answer."""
        try:
            async with asyncio.timeout(_KILL_S):
                await asyncio.to_thread(ray.kill, self._actor)
        except (TimeoutError, RayError, ValueError):
            return  # it ends with this process's job at the latest


def check_connected() -> None:
    """Raise where this process is in no cluster."""
    if not ray.is_initialized():
        raise ProviderUnavailable("this process is in no Ray cluster: call ray.init() first")


async def alive_nodes(resource: str | None) -> dict[str, float]:
    """Processors of each live node, by its id."""

    listed: Callable[[], list[dict[str, Any]]] = ray.nodes

    def look() -> dict[str, float]:
        return {
            node["NodeID"]: float(node["Resources"].get("CPU", 0.0))
            for node in listed()
            if node["Alive"] and (resource is None or node["Resources"].get(resource, 0) > 0)
        }

    return await asyncio.to_thread(look)


async def start_node(node_id: str, make: Callable[[], SandboxProvider], call_s: float) -> Node:
    """The actor of a node.

    Raises:
        SandboxStartFailed: it could not be started there.
    """
    options: dict[str, Any] = {
        "num_cpus": 0,
        "max_restarts": 0,
        "max_concurrency": 10_000,
        "scheduling_strategy": NodeAffinitySchedulingStrategy(node_id, soft=False),
    }
    actor: Any = ray.remote(NodeServer).options(**options).remote(make)
    node = Node(node_id, actor, call_s)
    ready: Awaitable[Any] = actor.ask.remote("new_file")
    try:
        async with asyncio.timeout(call_s):
            await ready
    except (TimeoutError, RayError) as error:
        await node.kill()
        raise SandboxStartFailed(f"node {node_id[:12]} could not be used: {error}") from error
    except BaseException:
        await node.kill()
        raise
    return node
