"""A sandbox over nothing but "run this script" and "put this file": it conforms like any other."""

from __future__ import annotations

import asyncio
import base64
import errno

import pytest
from dressage_sandbox import (
    BubblewrapProvider,
    Feature,
    FileTooLarge,
    Limits,
    SandboxFileError,
    SandboxGone,
    SandboxSpec,
    conformance,
)
from dressage_sandbox.remote import RemoteSandbox, Snapshots
from dressage_sandbox.remote.reports import data_of, entries_of, result_of
from dressage_sandbox.specs import check_features, check_spec
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.heavy

HOST = SandboxSpec(limits=Limits(pids=512, timeout_s=3600.0, output_bytes=1 << 26, disk_bytes=1 << 32))


class LocalTransport:
    """The place is a bubblewrap sandbox; ``lost`` makes it unreachable, ``calls`` counts scripts."""

    def __init__(self, box) -> None:
        self.box = box
        self.calls = 0

    async def run(self, script, *, timeout_s, as_root=False):
        self.calls += 1
        return (await self.box.run(["/bin/sh", "-c", script], timeout_s=timeout_s or 3600.0)).stdout

    async def put(self, path, data):
        await self.box.write(path, data)

    async def end(self):
        await self.box.terminate()


class RemoteProvider:
    """Remote sandboxes over local ones."""

    features = frozenset({Feature.SERVICES, Feature.SNAPSHOTS})

    def __init__(self, inner) -> None:
        self.inner = inner
        self.live: list[RemoteSandbox] = []
        self.snapshots = Snapshots()

    async def create(self, spec):
        check_spec(spec)
        check_features(spec, self.features, "a remote sandbox")
        self.snapshots.check(spec.snapshot)
        box = await self.inner.create(HOST)
        transport = LocalTransport(box)
        sandbox = RemoteSandbox(box.id, spec, transport, on_end=self.live.remove, snapshots=self.snapshots)
        self.live.append(sandbox)
        await sandbox.begin_with_snapshot()
        return sandbox

    async def delete_snapshot(self, snapshot_id):
        self.snapshots.delete(snapshot_id)

    async def close(self):
        for sandbox in list(self.live):
            await sandbox.terminate()
        await self.snapshots.close()


@pytest.fixture
async def remote(provider: BubblewrapProvider):
    made = RemoteProvider(provider)
    yield made
    await made.close()
    assert made.live == []


CHECKS = conformance.checks_for(RemoteProvider(None))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_a_remote_sandbox_conforms(remote, check) -> None:
    await check(remote, conformance.DEFAULT_SPEC)


async def test_a_command_leaves_no_file_of_ours_behind(remote):
    box = await remote.create(SandboxSpec())
    await box.run("cat", stdin=b"x" * 200_000)
    await box.write("big", b"x" * 200_000)
    await box.run(["true", *["x" * 100_000] * 3])
    service = await box.start("cat; echo hi", stdin=b"in")
    assert (await service.wait(10)).stdout == b"inhi\n"
    names = [entry.name for folder in ("/tmp", "/workspace") for entry in await box.list(folder)]
    assert [name for name in names if name != "big"] == []


async def test_arguments_beyond_one_script_and_bytes_that_are_no_utf8_arrive(remote):
    box = await remote.create(SandboxSpec())
    long = "y" * 100_000
    result = await box.run(["sh", "-c", 'printf %s "$1$2$3" | wc -c', "sh", long, long, long])
    assert result.stdout.strip() == b"300000"
    result = await box.run(["printf", "%s", b"\xff\xfe".decode(errors="surrogateescape")])
    assert result.stdout == b"\xff\xfe"


async def test_a_snapshot_keeps_modes_and_links_and_one_that_is_too_long_is_refused(remote):
    small = Limits(disk_bytes=1 << 20)
    box = await remote.create(SandboxSpec())
    await box.run("mkdir d; echo hi >d/x; chmod 750 d/x; ln -s d/x link; mkfifo pipe")
    fork = await remote.create(SandboxSpec(snapshot=(await box.snapshot()).id))
    told = await fork.run("readlink link; stat -c '%a %F' d/x pipe; cat link")
    assert told.stdout.decode() == "d/x\n750 regular file\n644 fifo\nhi\n"
    tight = await remote.create(SandboxSpec(limits=small))
    await tight.run("head -c 40000000 /dev/zero >big")
    with pytest.raises(FileTooLarge):
        await tight.snapshot()
    assert await tight.list("/tmp") == []


async def test_a_cancelled_command_is_ended_with_all_that_it_started(remote):
    box = await remote.create(SandboxSpec())
    line = "setsid sh -c 'while :; do echo x >>grown; sleep 0.02; done' & sleep 60"
    task = asyncio.create_task(box.run(line))
    while not any(entry.name == "grown" for entry in await box.list(".")):
        await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    for _ in range(100):
        size = len(await box.read("grown"))
        await asyncio.sleep(0.1)
        if len(await box.read("grown")) == size:
            return
    pytest.fail("a process of a cancelled command still writes")


async def test_a_daemon_that_clears_its_environment_ends_with_the_sandbox_at_the_latest(remote):
    box = await remote.create(SandboxSpec())
    await box.run("env -i setsid sleep 1000 >/dev/null 2>&1 &")
    await box.terminate()
    assert remote.inner.live() == []


async def test_a_write_that_fails_has_the_errno_of_the_inside_and_leaves_what_was_there(remote):
    box = await remote.create(SandboxSpec())
    await box.write("x", b"1")
    await box.run("mkdir closed; chmod 500 closed")
    for path, code in (("x/y", errno.ENOTDIR), ("closed/z", errno.EACCES), ("/usr/z", None), ("x/", None)):
        with pytest.raises(SandboxFileError) as caught:
            await box.write(path, b"2" * 50_000)
        assert code is None or caught.value.errno == code, path
    assert (await box.read("x"), await box.list("closed"), await box.list("/tmp")) == (b"1", [], [])


@given(st.binary(max_size=200))
def test_no_report_of_a_tampered_inside_is_taken_for_a_result(report):
    for read in (
        lambda: result_of(report, 100, 0.0, "/", timed_out=False),
        lambda: data_of(report, "p"),
        lambda: entries_of(report, "p"),
    ):
        try:
            read()
        except (SandboxGone, SandboxFileError):
            continue


@given(st.binary(max_size=400), st.binary(max_size=400), st.integers(1, 5000))
def test_a_report_gives_back_what_was_written_and_keeps_its_bound(out, err, limit):
    parts = [out[:limit], out[-limit:], err[:limit], err[-limit:]]
    body = b"".join(base64.encodebytes(part) + b":\n" for part in parts)
    result = result_of(b"DRESSAGE 3 %d %d\n" % (len(out), len(err)) + body, limit, 1.0, "/", timed_out=False)
    assert (result.exit_code, result.stdout_bytes, result.stderr_bytes) == (3, len(out), len(err))
    assert len(result.stdout) <= limit
    if len(out) <= limit:
        assert result.stdout == out
