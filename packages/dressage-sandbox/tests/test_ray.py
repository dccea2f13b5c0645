"""The Ray provider on a cluster of two nodes of this machine, which a process of its own holds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from dressage_sandbox import InvalidSpec, ProviderUnavailable, SandboxSpec
from dressage_sandbox.ray import RayConfig, RayProvider
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.heavy

NAMES = (
    "conforms",
    "places_by_capacity_and_refuses_what_has_no_room",
    "pools_are_kept_on_every_node",
    "data_goes_straight_to_the_node_that_holds_the_sandbox",
    "errors_cross_nodes_as_they_were",
    "a_cancelled_create_and_a_cancelled_command_leave_nothing",
    "a_lost_node_ends_its_leases_and_they_are_made_elsewhere",
    "nothing_is_left",
)


@pytest.fixture(scope="module")
def told() -> dict[str, str | None]:
    """What each check of the scenario found."""
    script = Path(__file__).with_name("ray_scenario.py")
    env = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    done = subprocess.run(
        [sys.executable, script], env=env, capture_output=True, text=True, check=False, timeout=240
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"name"')]
    assert lines, done.stderr[-4000:]
    return {line["name"]: line["error"] for line in lines}


@pytest.mark.parametrize("name", NAMES)
def test_on_two_nodes(told: dict[str, str | None], name: str) -> None:
    assert name in told, f"the scenario ended before: {told}"
    assert told[name] is None, told[name]


async def test_without_a_cluster_the_provider_says_what_to_do() -> None:
    with pytest.raises(ProviderUnavailable, match=r"ray\.init"):
        await RayProvider().create(SandboxSpec())


def test_without_ray_the_provider_says_what_to_install() -> None:
    code = (
        "import sys, asyncio; sys.modules['ray'] = None\n"
        "from dressage_sandbox import SandboxSpec, ProviderUnavailable\n"
        "from dressage_sandbox.ray import RayProvider\n"
        "try: asyncio.run(RayProvider().create(SandboxSpec()))\n"
        "except ProviderUnavailable as error: sys.exit(0 if 'dressage-sandbox[ray]' in str(error) else 1)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("settings", [{"per_cpu": 0}, {"per_node": 0}, {"queue_s": -1}, {"call_s": 0}])
def test_settings_that_cannot_hold_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(InvalidSpec, match=f"config.{next(iter(settings))}"):
        RayConfig(**settings)


@given(st.floats(0, 1000), st.floats(0.01, 100))
def test_every_node_that_is_used_has_room_for_one_at_least(cpus: float, per_cpu: float) -> None:
    assert RayConfig(per_cpu=per_cpu).room(cpus) == max(1, int(cpus * per_cpu))
    assert RayConfig(per_cpu=per_cpu, per_node=7).room(cpus) == 7
