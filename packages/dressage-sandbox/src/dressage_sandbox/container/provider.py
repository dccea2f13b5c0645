"""Makes containers, and leaves none."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING

from ..engines import ContainerNotes
from ..errors import ProviderUnavailable
from ..owner import Owner
from ..owners import Records, default_folder
from ..protocol import Feature, SandboxSpec
from ..remote import RemoteProvider, RemoteSandbox
from ..watch import Watch
from .config import ContainerConfig, find_socket
from .shape import container_body

if TYPE_CHECKING:
    from ._engine import Engine

__all__ = ["ContainerProvider"]


class ContainerProvider(RemoteProvider[RemoteSandbox]):
    """Containers of Docker or Podman.

    Each has no network (or the one network that the configuration names), no capabilities, no new
    privileges, a read-only root, private tmpfs for the work folder and /tmp, and limits of memory, processes
    and processors by the engine. It is as strong as the engine's isolation is: the kernel is shared.

    Containers of a process that was killed are removed by the same reaper as other sandboxes of this machine
    (see ``BubblewrapProvider``), by the next provider, or by ``reap``.
    """

    def __init__(self, config: ContainerConfig | None = None) -> None:
        self._config = config or ContainerConfig()
        super().__init__("a container", self._config.request_timeout_s)
        self._records = Records(self._config.runtime_dir or default_folder())
        self._notes = ContainerNotes(self._records.folder)
        self._watch = Watch(self._records.folder, wanted=self._config.reaper)
        self._owner = Owner.this_process()
        self._engine: Engine | None = None
        self._swept: asyncio.Task[None] | None = None

    @property
    def features(self) -> frozenset[Feature]:
        """What it can do."""
        relayed = {Feature.RELAY} if self._config.network is not None else set()
        return frozenset({Feature.SERVICES, Feature.MOUNTS, Feature.SNAPSHOTS, *relayed})

    def _connected(self) -> Engine:
        if self._engine is None:
            socket = self._config.socket or find_socket()
            if socket is None:
                raise ProviderUnavailable(
                    "no socket of Docker or Podman was found: start one, or give ContainerConfig.socket"
                )
            try:
                from ._engine import Engine
            except ImportError as error:
                raise ProviderUnavailable(
                    f"httpx is not installed ({error}): pip install 'dressage-sandbox[container]'"
                ) from error
            self._engine = Engine(socket, self._config.request_timeout_s)
        return self._engine

    async def create(self, spec: SandboxSpec) -> RemoteSandbox:
        """A ready sandbox. One whose create was cancelled is removed behind; ``close`` waits for that.

        Raises:
            InvalidSpec, Unsupported: a field, named.
            SandboxStartFailed: with what the engine said.
            ProviderUnavailable: no engine, or no such image.
        """
        self._check(spec)
        engine = self._connected()
        name = f"dressage-{uuid.uuid4().hex}"
        return await self._made(self._make(engine, name, spec), lambda: self._remove(name))

    async def _sweep(self) -> None:
        """Remove what killed processes left, once; a failure is this create's, and not every later one's."""
        if self._swept is None:
            self._swept = asyncio.ensure_future(self._first_look())
            self._swept.add_done_callback(self._unless_swept)
        await asyncio.shield(self._swept)

    async def _first_look(self) -> None:
        self._records.prepare()
        await asyncio.to_thread(self._watch.begin)
        await self.reap()

    def _unless_swept(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or task.exception() is not None:
            self._swept = None

    async def _make(self, engine: Engine, name: str, spec: SandboxSpec) -> RemoteSandbox:
        from ._engine import Container

        await self._sweep()
        self._check(spec)  # again: it may have been closed meanwhile
        self._records.prepare()
        self._notes.put(self._owner, name, engine.socket)  # first: so it is found even if we die here
        if self._watch.missing:
            self._go_on_behind(asyncio.to_thread(self._watch.ensure))
        labels = self._tags.metadata(name, spec.owner)
        await engine.create(name, container_body(self._config, spec, labels))
        container = Container(engine, name, f"{self._config.uid}:{self._config.uid}")
        relay = None if spec.relay is None else f"http://{spec.relay}"
        sandbox = RemoteSandbox(
            name, spec, container, on_end=self._ended, relay_url=relay, snapshots=self._snapshots
        )
        return await self._furnished(sandbox)

    async def _find(self, tags: dict[str, str]) -> list[tuple[str, dict[str, str]]]:
        return await self._connected().find([f"{key}={value}" for key, value in tags.items()])

    async def _remove(self, sandbox_id: str) -> None:
        await self._connected().remove(sandbox_id)
        self._notes.drop(self._owner, sandbox_id)

    def _ended(self, sandbox: RemoteSandbox) -> None:
        super()._ended(sandbox)
        self._notes.drop(self._owner, sandbox.id)

    async def _disconnect(self) -> None:
        if self._engine is not None:
            await self._engine.aclose()
        self._watch.end()
        self._records.tidy()
