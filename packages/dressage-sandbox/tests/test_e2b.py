"""The E2B provider, by the real SDK, over a stand-in that speaks its protocol."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import pytest
from dressage_sandbox import (
    InvalidSpec,
    LimitNotEnforceable,
    Limits,
    ProviderUnavailable,
    SandboxError,
    SandboxGone,
    SandboxSpec,
    SandboxStartFailed,
    Unsupported,
    conformance,
)
from dressage_sandbox.e2b import E2BConfig, E2BProvider, PrewarmedE2B
from dressage_sandbox.e2b.retry import is_transient, wait_s
from dressage_sandbox.e2b.standin import E2BStandIn, Fault
from dressage_sandbox.remote.owner import MADE_BY, Tags
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.heavy

SPEC = SandboxSpec(limits=Limits(timeout_s=20.0))


@pytest.fixture
async def cloud(provider):
    async with E2BStandIn(provider) as standing_in:
        yield standing_in


@pytest.fixture
async def e2b(cloud):
    made = E2BProvider(cloud.config())
    yield made
    cloud.faults.clear()
    await made.close()
    assert (made.live(), made.cleaning, cloud.machines) == ([], 0, {})


@pytest.mark.parametrize("check", conformance.checks_for(E2BProvider()), ids=lambda check: check.__name__)
async def test_e2b_conforms(e2b, check) -> None:
    await check(e2b, conformance.DEFAULT_SPEC)


# -- create ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
async def test_a_busy_or_broken_answer_is_tried_again(cloud, e2b, status):
    cloud.faults.append(Fault("POST /v2/sandboxes", status, times=3))
    box = await e2b.create(SPEC)
    assert (await box.run("echo hi")).stdout == b"hi\n"
    assert cloud.requests.count("POST /v2/sandboxes") == 4
    assert len(cloud.machines) == 1


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, InvalidSpec),
        (401, ProviderUnavailable),
        (403, SandboxStartFailed),
        (404, SandboxStartFailed),
        (409, SandboxStartFailed),
    ],
)
async def test_another_refusal_is_not_tried_again(cloud, e2b, status, kind):
    cloud.faults.append(Fault("POST /v2/sandboxes", status, times=9))
    with pytest.raises(kind):
        await e2b.create(SPEC)
    assert cloud.requests.count("POST /v2/sandboxes") == 1


async def test_attempts_come_to_an_end(cloud, e2b):
    cloud.faults.append(Fault("POST /v2/sandboxes", 503, times=99))
    with pytest.raises(SandboxStartFailed, match="503"):
        await e2b.create(SPEC)
    assert cloud.requests.count("POST /v2/sandboxes") == E2BConfig().attempts


@pytest.mark.parametrize("honours_keys", [True, False])
async def test_c56_a_sandbox_that_exists_although_its_create_was_answered_504_is_found_by_its_tag(
    cloud, e2b, honours_keys
):
    cloud.honours_keys = honours_keys
    cloud.faults.append(Fault("POST /v2/sandboxes", 504, after=True))
    box = await e2b.create(SPEC)
    assert list(cloud.machines) == [box.id]
    assert (await box.run("echo hi")).stdout == b"hi\n"


async def test_c56_a_create_that_is_cancelled_leaves_no_sandbox_once_its_answer_has_come(cloud, e2b, until):
    cloud.faults.append(Fault("POST /v2/sandboxes", 504, after=True, delay_s=0.2))
    task = asyncio.create_task(e2b.create(SPEC))
    await until(lambda: cloud.requests)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert e2b.cleaning == 1
    await until(lambda: e2b.cleaning == 0)
    assert (e2b.live(), cloud.machines) == ([], {})


@pytest.mark.parametrize("requests", range(6))
async def test_p7_a_create_that_is_cancelled_at_any_request_leaves_nothing(cloud, e2b, requests, until):
    task = asyncio.create_task(e2b.create(SPEC))
    await until(lambda: len(cloud.requests) >= requests or task.done())
    task.cancel()
    try:
        await (await task).terminate()
    except asyncio.CancelledError:
        await until(lambda: e2b.cleaning == 0)
    assert (e2b.live(), cloud.machines) == ([], {})


async def test_a_spec_is_refused_by_the_name_of_what_e2b_cannot_hold(e2b, cloud):
    for spec, kind, told in (
        (SandboxSpec(relay="8.8.8.8:80"), Unsupported, "relay"),
        (SandboxSpec(egress=("example.org:443",)), Unsupported, "egress"),
        (SandboxSpec(limits=Limits(cpus=1.0)), LimitNotEnforceable, "cpus"),
        (SandboxSpec(workdir="work"), InvalidSpec, "workdir"),
    ):
        with pytest.raises(kind, match=told):
            await e2b.create(spec)
    with pytest.raises(InvalidSpec, match="snapshot"):
        await e2b.create(SandboxSpec(snapshot="snap-none"))
    assert cloud.requests == []


async def test_a_relay_opens_its_whole_host_only_where_that_was_agreed_to(cloud):
    provider = E2BProvider(cloud.config(whole_host_rules=True))
    try:
        for address in ("127.0.0.1:80", "10.1.2.3:80", "localhost:80", "proxy.internal:80", "[::1]:80"):
            with pytest.raises(InvalidSpec, match="not reached from E2B"):
                await provider.create(SandboxSpec(relay=address))
        box = await provider.create(SandboxSpec(relay="proxy.example.org:8000"))
        (machine,) = cloud.machines.values()
        assert machine.asked["network"] == {"allowOut": ["proxy.example.org"], "denyOut": ["0.0.0.0/0"]}
        assert box.relay_url == "http://proxy.example.org:8000"
    finally:
        await provider.close()


async def test_without_a_relay_nothing_outside_is_open(cloud, e2b):
    await e2b.create(SPEC)
    (machine,) = cloud.machines.values()
    assert machine.asked["allow_internet_access"] is False


# -- life ------------------------------------------------------------------------------------------------
async def test_a_sandbox_exists_longer_than_its_time_to_live_by_construction(cloud, e2b):
    await e2b.create(SandboxSpec(ttl_s=1000.0))
    (machine,) = cloud.machines.values()
    assert machine.timeouts == [1060.0]


async def test_what_must_live_longer_than_the_plan_allows_is_extended_by_heartbeat(cloud, until):
    provider = E2BProvider(cloud.config(max_lifetime_s=3.0, margin_s=1.0))
    try:
        box = await provider.create(SandboxSpec(ttl_s=3600.0))
        (machine,) = cloud.machines.values()
        cloud.faults.append(Fault(f"POST /sandboxes/{machine.id}/timeout", 503, times=2))
        await until(lambda: len(machine.timeouts) >= 4, 20.0)
        assert set(machine.timeouts) == {3.0}
        assert (await box.run("echo hi")).stdout == b"hi\n"
    finally:
        await provider.close()


async def test_a_renewal_is_told_to_e2b_at_once(cloud, e2b):
    box = await e2b.create(SandboxSpec(ttl_s=100.0))
    (machine,) = cloud.machines.values()
    await box.renew(500.0)
    assert machine.timeouts == [160.0, 560.0]
    assert 499 < (await box.status()).expires_in_s <= 500


async def test_a_machine_that_ended_over_there_is_infrastructure_and_ends_here(cloud, e2b):
    box = await e2b.create(SPEC)
    service = await box.start("sleep 60")
    running = asyncio.create_task(box.run("sleep 60"))
    await asyncio.sleep(0.3)
    await cloud.end(box.id)
    with pytest.raises(SandboxError):
        await asyncio.wait_for(running, 10)
    with pytest.raises(SandboxGone):
        await box.run("true")
    with pytest.raises(SandboxGone):
        await service.wait(10)
    assert not (await box.status()).alive


async def test_a_paused_sandbox_keeps_its_files_and_services_and_its_time_runs_on(cloud, e2b):
    box = await e2b.create(SandboxSpec(ttl_s=600.0))
    await box.write("a", b"1")
    service = await box.start("until [ -e go ]; do sleep 0.05; done; echo went")
    await box.pause()
    await box.pause()
    assert box.paused
    with pytest.raises(SandboxError, match="resume"):
        await box.run("true")
    left = (await box.status()).expires_in_s
    await box.resume()
    await box.resume()
    assert (await box.read("a"), box.paused) == (b"1", False)
    await box.write("go", b"")
    assert (await service.wait(15)).stdout == b"went\n"
    (machine,) = cloud.machines.values()
    assert left < 600.0
    assert machine.timeouts[-1] <= 660.0


# -- whose it is -----------------------------------------------------------------------------------------
async def test_c56_what_a_killed_process_left_is_found_and_ended_and_peers_are_untouched(
    cloud, e2b, dead_owner
):
    boxes = [await e2b.create(SandboxSpec(owner=f"box-{number}")) for number in range(3)]
    dead_one, elsewhere = (cloud.machines[box.id] for box in boxes[:2])
    dead_one.asked["metadata"][MADE_BY] = dead_owner
    elsewhere.asked["metadata"][MADE_BY] = "another-boot/pid:[1]/1/1"
    await cloud.make({"metadata": {"other": "software"}}, None)
    sweeper = E2BProvider(cloud.config())
    assert [(o.id, o.label) for o in await sweeper.orphans()] == [(boxes[0].id, "box-0")]
    assert await sweeper.reap() == [boxes[0].id]
    assert await sweeper.reap() == []
    assert len(cloud.machines) == 3
    assert (await boxes[2].run("echo hi")).stdout == b"hi\n"
    await sweeper.close()
    (other,) = [machine_id for machine_id in cloud.machines if machine_id not in {b.id for b in boxes}]
    await cloud.end(other)


async def test_c56_an_orphan_can_be_adopted_with_its_files_and_another_ones_sandbox_cannot(
    cloud, e2b, dead_owner
):
    box = await e2b.create(SPEC)
    await box.write("a", b"1")
    heir = E2BProvider(cloud.config())
    with pytest.raises(InvalidSpec, match="no orphan"):
        await heir.adopt(box.id, SPEC)
    cloud.machines[box.id].asked["metadata"][MADE_BY] = dead_owner
    taken = await heir.adopt(box.id, SPEC)
    assert await taken.read("a") == b"1"
    await heir.close()
    assert cloud.machines == {}


def test_an_owner_is_known_to_be_dead_only_in_this_boot_and_pid_namespace():
    tags = Tags()
    boot, namespace, _, started = tags.made_by.split("/")
    mine = {MADE_BY: tags.made_by}
    assert not tags.owner_is_dead(mine)
    assert tags.owner_is_dead({MADE_BY: f"{boot}/{namespace}/{os.getpid()}/{int(started) + 1}"})
    for other in ("", "x", f"other/{namespace}/1/1", f"{boot}/pid:[1]/1/1", f"{boot}/{namespace}/x/1"):
        assert not tags.owner_is_dead({MADE_BY: other})


# -- ahead of time ---------------------------------------------------------------------------------------
async def test_prewarmed_sandboxes_are_handed_out_once_and_counted(cloud):
    pool = PrewarmedE2B(E2BProvider(cloud.config()), SPEC, 2)
    try:
        await pool.fill()
        first = await pool.create(SandboxSpec(limits=SPEC.limits, owner="a", ttl_s=50.0))
        assert first.owner == "a"
        assert cloud.machines[first.id].timeouts[-1] == 110.0
        other = await pool.create(SandboxSpec(env={"A": "1"}))
        assert (pool.hits, pool.misses, pool.hit_rate) == (1, 1, 0.5)
        await pool.fill()
        assert pool.ready == 2
        assert len({first.id, other.id} | set(cloud.machines)) == 4
    finally:
        await pool.close()
    assert cloud.machines == {}


async def test_c56_a_prewarmed_sandbox_that_nobody_claims_ends_and_is_replaced(cloud, until):
    pool = PrewarmedE2B(E2BProvider(cloud.config()), SPEC, 1, idle_s=0.3)
    try:
        await pool.fill()
        (first,) = cloud.machines
        await until(lambda: first not in cloud.machines)
        await pool.fill()
        assert pool.ready == 1
    finally:
        await pool.close()
    assert cloud.machines == {}


async def test_a_pool_that_can_never_be_filled_says_why(cloud):
    pool = PrewarmedE2B(E2BProvider(cloud.config(api_key="wrong")), SPEC, 1)
    with pytest.raises(ProviderUnavailable, match="API key"):
        await pool.fill()
    await pool.close()


# -- the rest --------------------------------------------------------------------------------------------
@given(st.integers(1, 20), st.floats(0, 1, exclude_max=True))
def test_waits_grow_to_a_bound_and_are_spread(failed, draw):
    config = E2BConfig(backoff_s=0.25, backoff_max_s=10.0)
    step = min(0.25 * 2 ** (failed - 1), 10.0)
    assert step / 2 <= wait_s(config, failed, draw) <= step


def test_only_429_and_5xx_are_transient():
    others = (None, 200, 301, 400, 401, 404, 408, 409, 428, 430, 499, 600)
    assert all(is_transient(status) for status in (429, 500, 503, 599))
    assert not any(is_transient(status) for status in others)


def test_without_the_sdk_the_provider_says_what_to_install():
    code = (
        "import sys, asyncio; sys.modules['e2b'] = None\n"
        "from dressage_sandbox import SandboxSpec, ProviderUnavailable\n"
        "from dressage_sandbox.e2b import E2BProvider, PrewarmedE2B\n"
        "import dressage_sandbox.e2b.standin\n"
        "try: asyncio.run(E2BProvider().create(SandboxSpec()))\n"
        "except ProviderUnavailable as error: sys.exit(0 if 'dressage-sandbox[e2b]' in str(error) else 1)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.paid
async def test_a_real_sandbox_at_e2b() -> None:
    """Costs a few cents: needs E2B_API_KEY."""
    provider = E2BProvider()
    try:
        box = await provider.create(SandboxSpec(owner="dressage test", ttl_s=300.0))
        result = await box.run("echo out; echo err >&2; exit 3")
        assert (result.stdout, result.stderr, result.exit_code) == (b"out\n", b"err\n", 3)
        for check in conformance.checks_for(provider):
            await check(provider, conformance.DEFAULT_SPEC)
    finally:
        await provider.close()
