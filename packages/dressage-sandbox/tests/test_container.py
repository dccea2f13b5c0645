"""The container provider: over a stand-in of the engine's API, and over a real one where it runs."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace

import pytest
from dressage_sandbox import (
    Feature,
    InvalidSpec,
    Limits,
    Mount,
    ProviderUnavailable,
    SandboxError,
    SandboxGone,
    SandboxSpec,
    SandboxStartFailed,
    Unsupported,
    conformance,
)
from dressage_sandbox.container import ContainerConfig, ContainerProvider, find_socket
from dressage_sandbox.container.standin import EngineStandIn
from dressage_sandbox.engines import ContainerNotes
from dressage_sandbox.owner import Owner
from dressage_sandbox.remote.owner import MADE_BY

pytestmark = pytest.mark.heavy

CHECKS = conformance.checks_for(ContainerProvider())
SPEC = SandboxSpec(limits=Limits(timeout_s=20.0))


@pytest.fixture
async def engine(provider, tmp_path):
    async with EngineStandIn(provider, tmp_path / "engine.sock") as standing_in:
        yield standing_in


@pytest.fixture
async def containers(engine):
    made = ContainerProvider(engine.config())
    yield made
    engine.faults.clear()
    await made.close()
    assert (made.live(), made.cleaning, engine.containers) == ([], 0, {})


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_containers_of_the_stand_in_conform(containers, check) -> None:
    await check(containers, conformance.DEFAULT_SPEC)


@pytest.mark.skipif(find_socket() is None, reason="no engine of Docker or Podman runs on this machine")
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_containers_of_a_real_engine_conform(check) -> None:
    provider = ContainerProvider()
    try:
        await check(provider, conformance.DEFAULT_SPEC)
    finally:
        await provider.close()


async def test_a_container_is_asked_for_with_nothing_open(containers, engine, tmp_path):
    limits = Limits(memory_bytes=64 << 20, pids=10, cpus=0.5, open_files=99, disk_bytes=1 << 20)
    spec = SandboxSpec(limits=limits, mounts=(Mount(tmp_path, "/mnt/in"),), owner="me", workdir="/work")
    await containers.create(spec)
    (made,) = engine.containers.values()
    host = made.body["HostConfig"]
    assert (host["NetworkMode"], host["CapDrop"], host["Privileged"]) == ("none", ["ALL"], False)
    assert (host["ReadonlyRootfs"], host["SecurityOpt"]) == (True, ["no-new-privileges"])
    assert (host["Memory"], host["MemorySwap"], host["NanoCpus"]) == (64 << 20, 64 << 20, 500_000_000)
    assert host["PidsLimit"] == 42
    assert host["Binds"] == [f"{tmp_path}:/mnt/in:ro"]
    assert set(host["Tmpfs"]) == {"/tmp", "/work"}
    assert "size=1048576" in host["Tmpfs"]["/work"]
    assert "uid=1000" in host["Tmpfs"]["/work"]
    assert made.body["User"] == "1000:1000"
    assert made.body["Labels"]["dressage_label"] == "me"


async def test_a_relay_needs_a_network_that_was_made_for_it(engine):
    plain = ContainerProvider(engine.config())
    with pytest.raises(Unsupported, match="relay"):
        await plain.create(replace(SPEC, relay="10.0.0.2:80"))
    await plain.close()
    provider = ContainerProvider(engine.config(network="models-only"))
    assert Feature.RELAY in provider.features
    box = await provider.create(replace(SPEC, relay="10.0.0.2:80"))
    assert box.relay_url == "http://10.0.0.2:80"
    assert engine.containers[box.id].body["HostConfig"]["NetworkMode"] == "models-only"
    without = await provider.create(SPEC)
    assert engine.containers[without.id].body["HostConfig"]["NetworkMode"] == "none"
    await provider.close()


@pytest.mark.parametrize("settings", [{"image": ""}, {"uid": 0}, {"request_timeout_s": 0}])
def test_a_configuration_that_cannot_hold_is_refused(settings):
    with pytest.raises(InvalidSpec, match=f"config.{next(iter(settings))}"):
        ContainerConfig(**settings)


async def test_no_engine_and_no_image_are_told_with_what_to_do(engine, tmp_path):
    nobody = ContainerProvider(ContainerConfig(socket=tmp_path / "none.sock"))
    with pytest.raises(ProviderUnavailable, match="start Docker or Podman"):
        await nobody.create(SPEC)
    await nobody.close()
    provider = ContainerProvider(engine.config(image="missing:1"))
    with pytest.raises(ProviderUnavailable, match="missing:1: pull the image"):
        await provider.create(SPEC)
    await provider.close()
    assert find_socket(tmp_path) is None


async def test_what_the_engine_refuses_is_told_in_its_words_and_leaves_nothing(containers, engine, until):
    engine.faults["POST /containers/create"] = 500
    with pytest.raises(SandboxStartFailed, match="a fault of the stand-in"):
        await containers.create(SPEC)
    engine.faults["POST /containers/dressage-"] = 500  # the start of one that was made
    with pytest.raises(SandboxStartFailed, match="could not be started"):
        await containers.create(SPEC)
    await until(lambda: containers.cleaning == 0)
    assert engine.containers == {}


@pytest.mark.parametrize("requests", range(5))
async def test_p7_a_create_that_is_cancelled_at_any_request_leaves_nothing(
    containers, engine, requests, until
):
    task = asyncio.create_task(containers.create(SPEC))
    await until(lambda: len(engine.requests) >= requests or task.done())
    task.cancel()
    try:
        await (await task).terminate()
    except asyncio.CancelledError:
        await until(lambda: containers.cleaning == 0)
    assert (containers.live(), engine.containers) == ([], {})


async def test_one_error_of_a_removal_does_not_leak_the_container(containers, engine):
    box = await containers.create(SPEC)
    engine.faults[f"DELETE /containers/{box.id}"] = 500
    with pytest.raises(SandboxError, match="could not be removed"):
        await box.terminate()
    assert containers.live() == [box.id]
    await box.terminate()
    assert (containers.live(), engine.containers) == ([], {})


async def test_a_container_that_was_removed_by_others_is_gone_for_every_call(containers, engine):
    box = await containers.create(SPEC)
    service = await box.start("sleep 60")
    gone = engine.containers.pop(box.id)
    await gone.box.terminate()
    with pytest.raises(SandboxGone):
        await box.run("true")
    with pytest.raises(SandboxGone):
        await service.wait(10)
    assert not (await box.status()).alive


async def test_what_a_killed_process_left_is_removed_by_the_next_one_and_peers_are_untouched(
    engine, dead_owner
):
    first = ContainerProvider(engine.config())
    dead, alive = await first.create(SPEC), await first.create(SPEC)
    engine.containers[dead.id].body["Labels"][MADE_BY] = dead_owner
    second = ContainerProvider(engine.config())
    await second.create(SPEC)
    assert dead.id not in engine.containers
    assert (await alive.run("echo hi")).stdout == b"hi\n"
    await second.close()
    await first.close()
    assert engine.containers == {}


async def test_a_sweep_that_failed_once_fails_one_create_and_not_the_next(containers, engine):
    engine.faults["GET /containers/json"] = 500
    with pytest.raises(SandboxError, match="could not be listed"):
        await containers.create(SPEC)
    assert (await (await containers.create(SPEC)).run("echo hi")).stdout == b"hi\n"


@pytest.mark.parametrize("requests", range(1, 5))
async def test_a_create_that_is_under_way_when_the_provider_closes_leaves_nothing(engine, requests, until):
    provider = ContainerProvider(engine.config())
    task = asyncio.create_task(provider.create(SPEC))
    await until(lambda: len(engine.requests) >= requests or task.done())
    await provider.close()
    await asyncio.wait({task})
    assert (provider.live(), provider.cleaning, engine.containers) == ([], 0, {})


async def test_one_whose_removal_fails_at_the_end_of_its_time_is_tried_again_by_itself(
    containers, engine, until, monkeypatch
):
    monkeypatch.setattr("dressage_sandbox.remote.sandbox._RETRY_S", 0.02)
    box = await containers.create(replace(SPEC, ttl_s=0.3))
    engine.faults[f"DELETE /containers/{box.id}"] = 500
    await until(lambda: containers.live() == [])
    assert (engine.containers, engine.faults) == ({}, {})


OWNER = """
import asyncio, sys
from pathlib import Path
from dressage_sandbox import SandboxSpec
from dressage_sandbox.container import ContainerConfig, ContainerProvider

async def main():
    provider = ContainerProvider(ContainerConfig(socket=Path(sys.argv[1]), runtime_dir=Path(sys.argv[2])))
    await asyncio.gather(*(provider.create(SandboxSpec()) for _ in range(2)))
    print("ready", flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


async def test_containers_of_an_owner_that_was_killed_are_removed_unasked_and_a_peers_are_not(
    engine, tmp_path, until
):
    notes = tmp_path / "shared"
    peer = ContainerProvider(engine.config(runtime_dir=notes))
    mine = await peer.create(SPEC)
    command = [sys.executable, "-c", OWNER, str(engine.socket), str(notes)]
    owner = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert await owner.stdout.readline() == b"ready\n"
    assert len(engine.containers) == 3
    engine.faults["DELETE /containers/"] = 500  # the first attempt at one
    owner.kill()
    await owner.wait()
    await until(lambda: set(engine.containers) == {mine.id}, 15.0)
    assert (await mine.run("echo hi")).stdout == b"hi\n"
    await peer.close()
    assert engine.containers == {}
    await until(lambda: not notes.exists(), 10.0)


def test_a_note_of_nobodys_container_and_an_engine_that_does_not_answer_are_borne(tmp_path):
    me = Owner.this_process()
    dead = Owner(me.pid, me.started + 1, me.boot)
    notes = ContainerNotes(tmp_path)
    notes.put(dead, "dressage-1", tmp_path / "no-engine.sock")
    notes.put(me, "dressage-2", tmp_path / "no-engine.sock")
    (tmp_path / f"dressage-3.{dead.text}.container").write_text("{")
    assert notes.reap() == []
    assert sorted(path.name.split(".")[0] for path in tmp_path.iterdir()) == ["dressage-1", "dressage-2"]
