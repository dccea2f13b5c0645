from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.heavy


def test_p7_nothing_outlives_owners_that_are_killed_at_random_moments_and_a_peer_is_unharmed() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dressage_sandbox.orphans", "--leases", "20", "--seed", "7", "--json"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    left = json.loads(done.stdout)
    assert left.pop("leases") >= 20
    assert left.pop("owners") >= 4
    assert (done.returncode, [found for found in left.values() if found]) == (0, []), left
