"""What every test run of this tree needs, wherever it was started from."""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

_ROOM = Path(__file__)
_DOOR = _ROOM.with_name("pyproject.toml")

# How long an example takes depends on what else the machine does: no verdict hangs on it. And the examples
# are the same in each run, so that one change is not refused for what chance found in another;
# `--hypothesis-profile=explore` looks at new ones.
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", settings.get_profile("explore"), derandomize=True)
settings.load_profile("same")


def pytest_configure() -> None:
    """Programs under test can be interrupted: a shell that runs this in the background has SIGINT ignored,
    and what is ignored is inherited."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that run alone come first: later they would wait for the longest ones."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: item.get_closest_marker("alone") is None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Beside other test processes, a test marked ``alone`` runs while no other does."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return (yield)
    with _in_the_room(alone=item.get_closest_marker("alone") is not None):
        return (yield)


@contextmanager
def _in_the_room(*, alone: bool) -> Iterator[None]:
    with _ROOM.open("rb") as inside:
        # Who waits for the room holds the door: nobody overtakes a test that wants it for itself.
        with _DOOR.open("rb") as door:
            fcntl.flock(door, fcntl.LOCK_EX)
            fcntl.flock(inside, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield
