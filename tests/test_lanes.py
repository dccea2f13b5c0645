"""Each package stands alone: its own tests in its own environment, its declarations, its built wheel."""

from __future__ import annotations

import sys
from pathlib import Path

import lanes
import pytest
from workspace import Member, Uv, members

PYTHON = Path(sys.executable)
each_member = pytest.mark.parametrize("member", members(), ids=lambda m: m.name)


@each_member
def test_a_package_passes_its_tests_with_only_what_it_declares(uv: Uv, member: Member) -> None:
    if member.needs_torch:
        pytest.skip("its environment is this one: it depends on every other member")
    lanes.isolated(uv, member, PYTHON, heavy=False)


@each_member
def test_a_package_declares_what_it_imports(uv: Uv, member: Member) -> None:
    lanes.declared(uv, member, PYTHON)


@each_member
def test_a_wheel_works_without_the_sources(uv: Uv, member: Member) -> None:
    lanes.wheel(uv, member, PYTHON)


def test_a_failing_check_fails_its_lane(tmp_path: Path) -> None:
    with pytest.raises(lanes.LaneError, match="ended with 3\nsaid"):
        lanes._say([PYTHON, "-c", "print('said'); raise SystemExit(3)"], tmp_path, "it")
