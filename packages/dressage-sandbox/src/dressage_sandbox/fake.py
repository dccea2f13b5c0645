"""A provider without processes, for the tests of whatever uses sandboxes.

Files are a dictionary; commands answer what a script says.
"""

from __future__ import annotations

import itertools
import os
import posixpath
from collections.abc import Iterable, Mapping

from ._fake_sandbox import FakeSandbox, FakeService, Invocation, Script, completed
from .errors import InvalidSpec
from .protocol import Feature, RunResult, SandboxSpec, Snapshot
from .specs import check_features

__all__ = ["FakeProvider", "FakeSandbox", "FakeService", "Invocation", "Script", "completed"]


class FakeProvider:
    """Makes fake sandboxes and remembers them.

    Args:
        script: a function that answers commands, or results that are given out in order over all
            sandboxes; the default answers exit code 0 without output.
        files: what every sandbox begins with.
        errors: raised by ``create`` in order before it succeeds.
    """

    def __init__(
        self,
        script: Script | Iterable[RunResult] | None = None,
        *,
        files: Mapping[str, bytes] | None = None,
        errors: Iterable[Exception] = (),
    ) -> None:
        self._script = _script(script)
        self._files = dict(files or {})
        self._errors = list(errors)
        self._numbers = itertools.count(1)
        self._snapshots: dict[str, dict[str, bytes]] = {}
        self.created: list[FakeSandbox] = []
        self.live: list[FakeSandbox] = []

    @property
    def features(self) -> frozenset[Feature]:
        """No programs run in a fake, so no ports, networks or mounts; it takes a relay, and reaches none."""
        return frozenset(
            {
                Feature.STREAMS,
                Feature.SERVICES,
                Feature.SNAPSHOTS,
                Feature.RELAY,
                Feature.MOUNTS,
                Feature.QUIET,
            }
        )

    async def create(self, spec: SandboxSpec) -> FakeSandbox:
        """A fake sandbox, or the next of ``errors``."""
        check_features(spec, self.features, "FakeProvider")
        if spec.snapshot is not None and spec.snapshot not in self._snapshots:
            raise InvalidSpec(f"snapshot={spec.snapshot!r}: this provider has no such snapshot")
        if self._errors:
            raise self._errors.pop(0)
        name = f"fake-{os.getpid()}-{next(self._numbers)}"
        files = self._files | self._snapshots.get(spec.snapshot or "", {})
        sandbox = FakeSandbox(
            spec, self._script, name, files, on_end=self.live.remove, on_snapshot=self._keep, ttl_s=spec.ttl_s
        )
        self.created.append(sandbox)
        self.live.append(sandbox)
        return sandbox

    def _keep(self, sandbox: FakeSandbox) -> Snapshot:
        prefix = posixpath.normpath(sandbox.spec.workdir) + "/"
        files = {path: data for path, data in sandbox.files.items() if path.startswith(prefix)}
        snapshot = Snapshot(f"snap-{next(self._numbers)}", sum(map(len, files.values())))
        self._snapshots[snapshot.id] = files
        return snapshot

    async def delete_snapshot(self, snapshot_id: str) -> None:
        """Forget it."""
        self._snapshots.pop(snapshot_id, None)

    async def close(self) -> None:
        """Terminate all."""
        self._snapshots.clear()
        for sandbox in list(self.live):
            await sandbox.terminate()


def _script(script: Script | Iterable[RunResult] | None) -> Script:
    if script is None:
        return lambda sandbox, invocation: completed()
    if callable(script):
        return script
    results = iter(script)

    def in_order(sandbox: FakeSandbox, invocation: Invocation) -> RunResult:
        try:
            return next(results)
        except StopIteration:
            raise AssertionError(f"no result left for {invocation.command!r}") from None

    return in_order
