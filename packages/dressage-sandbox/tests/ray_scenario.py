"""Run by test_ray.py in a process of its own: a cluster of two nodes on this machine, and what must hold.

Prints one JSON line a check: its name, and what went wrong (null: nothing).
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import shutil
import tempfile
import time
import traceback
from dataclasses import replace
from pathlib import Path

import ray
from dressage_sandbox import (
    BubblewrapProvider,
    Full,
    InvalidSpec,
    Limits,
    SandboxFileNotFound,
    SandboxGone,
    SandboxSpec,
    Unsupported,
    conformance,
)
from dressage_sandbox.owners import Records
from dressage_sandbox.ray import NodePool, RayConfig, RayProvider
from ray.cluster_utils import Cluster

MB = 1 << 20
SPEC = SandboxSpec(limits=Limits(timeout_s=20.0))


def expect(condition, sentence):
    if not condition:
        raise AssertionError(sentence)


async def raises(kind, work):
    try:
        await work
    except kind as error:
        return error
    raise AssertionError(f"expected {kind.__name__}")


async def end(provider):
    """Every sandbox of a provider that goes on."""
    for sandbox in list(provider._sandboxes.values()):
        await sandbox.terminate()


async def conforms(provider):
    slow = {"timeouts_end_the_whole_tree", "commands_run_at_the_same_time"}
    for check in conformance.checks_for(provider):
        if check.__name__ not in slow:  # these are of the node's own provider
            await check(provider, conformance.DEFAULT_SPEC)


async def places_by_capacity_and_refuses_what_has_no_room(cluster, config):
    """Two nodes of 2 and 1 processors, one sandbox a processor."""
    provider = RayProvider(RayConfig(make=config.make, per_cpu=1.0, queue_s=1.0))
    boxes = await asyncio.gather(*(provider.create(SPEC) for _ in range(3)))
    expect(sorted(provider.placed().values()) == [1, 2], f"placed {provider.placed()}")
    await raises(Full, provider.create(SPEC))
    waiting = asyncio.ensure_future(provider.create(SPEC))
    await asyncio.sleep(0.3)
    expect(not waiting.done(), "a create beyond the capacity did not wait")
    await boxes[0].terminate()
    expect((await waiting).alive, "a create that waited did not get the place that was given back")
    await provider.close()
    expect((provider.placed(), provider.live()) == ({}, []), "places are left")


async def pools_are_kept_on_every_node(cluster, config):
    provider = RayProvider(RayConfig(make=NodePool(SPEC, 2, config.make)))
    await provider.warm()
    boxes = [await provider.create(replace(SPEC, owner=f"box-{n}")) for n in range(2)]
    expect(len({box.node.id for box in boxes}) == 2, "one node holds all")
    owners = [(await box.status()).owner for box in boxes]
    expect(owners == ["box-0", "box-1"], f"owners are {owners}")
    expect([(await box.run("echo hi")).stdout for box in boxes] == [b"hi\n"] * 2, "a pooled one does not run")
    await provider.close()


async def data_goes_straight_to_the_node_that_holds_the_sandbox(provider):
    boxes = [await provider.create(SPEC) for _ in range(4)]
    expect(len({box.node.id for box in boxes}) == 2, "one node holds all")
    data = os.urandom(8 * MB)
    await asyncio.gather(*(box.write("big", data) for box in boxes))
    expect(all([await box.read("big", max_bytes=9 * MB) == data for box in boxes]), "bytes changed")
    where = {box.node.id: await box.node.ask("where") for box in boxes}
    expect(all(told == node_id for node_id, (told, _) in where.items()), f"a node is another one: {where}")
    expect(len({pid for _, pid in where.values()} - {os.getpid()}) == 2, f"not one process a node: {where}")
    names = [actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)]
    expect(names == [], f"there is a central actor: {names}")
    await end(provider)


async def errors_cross_nodes_as_they_were(provider):
    box = await provider.create(SPEC)
    error = await raises(SandboxFileNotFound, box.read("missing"))
    told = (error.errno, error.filename)
    expect(told == (2, "missing"), f"errno and name are {told}")
    await raises(InvalidSpec, box.run([]))
    await raises(Unsupported, box.expose(80))
    await raises(Unsupported, box.run("true", on_output=print))
    await raises(InvalidSpec, provider.create(SandboxSpec(workdir="relative")))
    await raises(InvalidSpec, provider.create(SandboxSpec(relay="127.0.0.1:80")))
    expect(sum(provider.placed().values()) == 1, "a refused create holds a place")
    await end(provider)


async def a_cancelled_create_and_a_cancelled_command_leave_nothing(provider):
    for delay in (0.0, 0.01, 0.05):
        task = asyncio.ensure_future(provider.create(SPEC))
        await asyncio.sleep(delay)
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():  # it was faster
            await task.result().terminate()
    give_up = time.monotonic() + 15
    while provider.placed() or provider.live():
        expect(time.monotonic() < give_up, f"places are left: {provider.placed()}")
        await asyncio.sleep(0.05)
    box = await provider.create(SPEC)
    task = asyncio.ensure_future(box.run("while :; do echo x >>grown; sleep 0.02; done", timeout_s=60))
    await asyncio.sleep(1.0)
    task.cancel()
    await asyncio.wait({task})
    await asyncio.sleep(0.5)
    size = len(await box.read("grown"))
    await asyncio.sleep(0.3)
    expect(len(await box.read("grown")) == size, "a cancelled command still writes")
    await end(provider)


async def a_lost_node_ends_its_leases_and_they_are_made_elsewhere(cluster, config):
    provider = RayProvider(config)
    boxes = [await provider.create(SPEC) for _ in range(6)]
    doomed_node = cluster.worker_nodes.copy().pop()
    doomed = [box for box in boxes if box.node.id == doomed_node.node_id]
    kept = [box for box in boxes if box.node.id != doomed_node.node_id]
    expect(len(doomed) > 1 and bool(kept), f"placed {provider.placed()}")
    running = asyncio.ensure_future(doomed[0].run("sleep 60", timeout_s=59))
    idle_service = await doomed[0].start("sleep 60")
    await asyncio.sleep(0.5)
    await asyncio.to_thread(cluster.remove_node, doomed_node, False)
    await raises(SandboxGone, asyncio.wait_for(running, 40))
    give_up = time.monotonic() + 20
    while set(provider.live()) != {box.id for box in kept}:
        expect(time.monotonic() < give_up, f"live are {provider.live()}")
        await asyncio.sleep(0.05)
    status = await doomed[1].status()  # nothing was asked of it when the node was lost
    expect(not status.alive and "lost" in status.why, f"status is {status}")
    await raises(SandboxGone, idle_service.wait(5))
    await doomed[0].terminate()
    again = [await provider.recreate(box) for box in doomed]
    expect({box.node.id for box in again} == {kept[0].node.id}, "they were not made elsewhere")
    expect([(await box.run("echo hi")).stdout for box in (*again, *kept)] == [b"hi\n"] * 6, "it does not run")
    await provider.close()
    expect(provider.live() == [], "sandboxes are left")


ON_ONE = (
    conforms,
    data_goes_straight_to_the_node_that_holds_the_sandbox,
    errors_cross_nodes_as_they_were,
    a_cancelled_create_and_a_cancelled_command_leave_nothing,
)
"""Checks that share a provider."""
WITH_THEIR_OWN = (
    places_by_capacity_and_refuses_what_has_no_room,
    pools_are_kept_on_every_node,
    a_lost_node_ends_its_leases_and_they_are_made_elsewhere,  # the last: it takes a node away
)


async def tell(check, *arguments):
    try:
        await check(*arguments)
        error = None
    except Exception:  # noqa: BLE001 - told to the test
        error = traceback.format_exc()
    print(json.dumps({"name": check.__name__, "error": error}), flush=True)


async def scenario(cluster, config):
    provider = RayProvider(config)
    for check in ON_ONE:
        await tell(check, provider)
    await provider.close()
    for check in WITH_THEIR_OWN:
        await tell(check, cluster, config)


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="dray-"))
    (folder / "ray").mkdir()
    os.environ["RAY_TMPDIR"] = str(folder)  # it notes the cluster there, not in a shared place
    runtime = folder / "run"
    make = functools.partial(BubblewrapProvider, runtime_dir=runtime)
    memory = {"object_store_memory": 80 * MB}
    head = {"num_cpus": 2, "include_dashboard": False, "temp_dir": str(folder / "ray"), **memory}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    cluster.add_node(num_cpus=1, **memory)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
    try:
        asyncio.run(scenario(cluster, RayConfig(make=make)))
    finally:
        ray.shutdown()
        cluster.shutdown()
    give_up = time.monotonic() + 10
    while (left := list(runtime.glob("*.json"))) and time.monotonic() < give_up:
        Records(runtime).reap()  # a node that was killed could not do it itself
        time.sleep(0.1)
    error = f"sandboxes are left: {left}" if left else None
    print(json.dumps({"name": "nothing_is_left", "error": error}), flush=True)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
