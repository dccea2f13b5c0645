"""The loop end to end, small: real engine, real proxy, real sandboxes, and what a run leaves behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from dressage_recipes.audit import audit_run
from dressage_recipes.events import Event, StepDone
from dressage_recipes.local.config import LocalConfig, load_config, to_toml
from dressage_recipes.local.demo import run_demo
from dressage_recipes.local.scratch import PREFIX, remove_abandoned, scratch_folder

pytestmark = pytest.mark.alone
"""Each run keeps every core busy, must end in time, and leaves no mount of any sandbox on the machine."""


@pytest.fixture(autouse=True)
def own_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for temporary files that no other run on this machine uses; short, for the sake of sockets."""
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def small(out: Path, **changes: object) -> LocalConfig:
    raw = load_config("demo").model_dump()
    raw |= {"out": out, "steps": 2, "tracker": "none", **changes}
    raw["model"] |= {"hidden": 32, "feed_forward": 64, "heads": 2, "vocabulary": 480}
    raw["cold_start"] |= {"steps": 2, "batch": 4, "evaluate": 4, "adjust_rounds": 0}
    raw["rollouts"] |= {"prompts": 2, "group": 3, "concurrency": 6}
    raw["tasks"] |= {"max_tokens": 12}
    return LocalConfig.model_validate(raw)


def leftovers() -> list[str]:
    """What runs left in the folder for temporary files, and mounts of sandboxes."""
    folders = [str(path) for path in Path(tempfile.gettempdir()).iterdir()]
    mounts = [line for line in Path("/proc/self/mounts").read_text().splitlines() if "dressage" in line]
    return folders + mounts


def test_a_run_leaves_its_summary_its_store_and_nothing_else(tmp_path: Path) -> None:
    events = list[Event]()
    others = psutil.Process().children(recursive=True)
    config = small(tmp_path / "run")
    summary = run_demo(config, on_event=events.append, setup_seconds=1.5)
    said = json.loads((config.out / "summary.json").read_text())
    assert said["steps"] == 2 == len(said["rewards"])
    assert said["sampled_tokens"] == said["trained_tokens"] + sum(said["lost_tokens"].values())
    assert said["logprob_gap_max"] == summary.logprob_gap_max < 1e-3
    assert said["failure_classes"].keys() <= {"completed", "truncated"}
    steps = [json.loads(line) for line in (config.out / "steps.jsonl").read_text().splitlines()]
    assert [step["version"] for step in steps] == [1, 2]
    assert [event.step for event in events if isinstance(event, StepDone)] == [1, 2]
    shown = [json.loads(line) for line in (config.out / "transcripts.jsonl").read_text().splitlines()]
    assert [line["step"] for line in shown] == [1, 1, 1, 2, 2, 2]
    assert all(line["messages"][0]["role"] == "user" for line in shown)
    assert load_config(config.out / "config.toml") == config
    assert (config.out / "checkpoints" / "final" / "model.safetensors").is_file()
    audited = audit_run(config.out)
    assert audited.ok, audited.doubts
    assert audited.trained_tokens == summary.trained_tokens
    assert audited.sessions == 12
    assert leftovers() == []
    assert set(psutil.Process().children(recursive=True)) <= set(others)


def started(config: LocalConfig, folder: Path) -> subprocess.Popen[str]:
    """A run in a process of its own, which prints a line for each event."""
    path = folder / "config.toml"
    path.write_text(to_toml(config), encoding="utf-8")
    program = (
        "import sys; from pathlib import Path\n"
        "from dressage_recipes.local.config import load_config\n"
        "from dressage_recipes.local.demo import run_demo\n"
        "config = load_config(Path(sys.argv[1]))\n"
        "run_demo(config, on_event=lambda e: print(type(e).__name__, e, flush=True))\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", program, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )


def wait_for(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if word in line:
            return
    raise AssertionError(f"{word} never came")


@pytest.mark.parametrize("moment", ["cold start", "rollouts", "training on", "StepDone"])
def test_ctrl_c_ends_it_within_five_seconds_and_leaves_nothing(moment: str, tmp_path: Path) -> None:
    config = small(tmp_path / "run", steps=500)
    if moment == "cold start":
        cold = config.cold_start.model_copy(update={"steps": 100_000})
        config = config.model_copy(update={"cold_start": cold})
    process = started(config, tmp_path)
    try:
        wait_for(process, moment)
        interrupted(process)
    finally:
        ended(process)
    assert leftovers() == []


@pytest.mark.parametrize("stuck", ["dressage_recipes.local.engine", "dressage_proxy.cli"])
def test_ctrl_c_does_not_wait_for_a_service_that_hangs(stuck: str, tmp_path: Path) -> None:
    process = started(small(tmp_path / "run", steps=500), tmp_path)
    try:
        wait_for(process, "StepDone")
        services = [c for c in psutil.Process(process.pid).children() if stuck in c.cmdline()]
        assert len(services) == 1
        services[0].suspend()
        interrupted(process)
    finally:
        ended(process)
    assert leftovers() == []


def interrupted(process: subprocess.Popen[str]) -> None:
    """Press Ctrl-C, which reaches the whole group, and see everything gone within five seconds."""
    children = psutil.Process(process.pid).children(recursive=True)
    began = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    process.wait(timeout=20)
    assert time.monotonic() - began < 5
    assert not [child for child in children if child.is_running() and child.status() != "zombie"]


def ended(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def test_kill_9_of_the_loop_ends_its_processes(tmp_path: Path) -> None:
    process = started(small(tmp_path / "run", steps=500), tmp_path)
    wait_for(process, "StepDone")
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate()
    _, alive = psutil.wait_procs(children, timeout=5)
    assert not [child for child in alive if child.status() != "zombie"]
    assert len(list(Path(tempfile.gettempdir()).glob(f"{PREFIX}*"))) == 1
    with scratch_folder() as own:  # the next run clears what the killed one left, and nobody else's
        assert list(Path(tempfile.gettempdir()).glob(f"{PREFIX}*")) == [own]
        assert remove_abandoned(Path(tempfile.gettempdir())) == []
    assert leftovers() == []


def test_a_dead_engine_ends_the_run_with_a_reason_and_no_reward_of_zero(tmp_path: Path) -> None:
    config = small(tmp_path / "run", steps=500)
    process = started(config, tmp_path)
    wait_for(process, "StepDone")
    for child in psutil.Process(process.pid).children():
        if "dressage_recipes.local.engine" in child.cmdline():
            child.kill()
    try:
        assert process.wait(timeout=60) != 0
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    assert not (config.out / "summary.json").exists()
    rewards = [json.loads(line) for line in (config.out / "steps.jsonl").read_text().splitlines()]
    assert all(step["counted_rollouts"] == 6 for step in rewards)


async def test_a_service_that_does_not_start_says_where_to_look(tmp_path: Path) -> None:
    from dressage_recipes.local.processes import Service, ServiceError

    log = tmp_path / "x.log"
    with pytest.raises(ServiceError, match=r"did not start \(exit code 1\): boom") as caught:
        async with Service("the thing", ["-c", "import sys; sys.exit('boom')"], log):
            raise AssertionError("it must not start")
    assert str(log) in str(caught.value)
    await asyncio.sleep(0)
