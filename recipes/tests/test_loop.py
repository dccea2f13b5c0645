"""The loop end to end, small: real engine, real proxy, real sandboxes, and what a run leaves behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
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


ENGINE, PROXY = "dressage_recipes.local.engine", "dressage_proxy.cli"


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


PROGRAM = """
import functools, importlib, sys
from dressage_recipes import cli, running

def tell(event):
    print(type(event).__name__, event, flush=True)

def wait_at(owner, name):
    real, waited = getattr(owner, name), []

    @functools.wraps(real)
    async def called(*args, **kwargs):
        if not waited:
            waited.append(True)
            print("waiting to", name, flush=True)
            sys.stdin.readline()
        return await real(*args, **kwargs)

    setattr(owner, name, called)

file, *point = sys.argv[1:]
if point:
    module, owner, name = point
    wait_at(getattr(importlib.import_module(module), owner), name)
real = running.run_demo
running.run_demo = lambda config, on_event, setup_seconds: real(config, on_event=tell)
sys.exit(cli.main(["train", file]))
"""
"""The command, which prints a line for each event; where a method is named too, it stops and waits for a line
before the first call of it."""


def started(config: LocalConfig, folder: Path, *point: str) -> subprocess.Popen[str]:
    """A run in a process of its own."""
    path = folder / "config.toml"
    path.write_text(to_toml(config), encoding="utf-8")
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(path), *point],
        stdin=subprocess.PIPE,
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


def service(process: subprocess.Popen[str], module: str) -> psutil.Process:
    """The child that runs ``module``. Sandboxes come and go beside it."""
    found = []
    for child in psutil.Process(process.pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if module in child.cmdline():
                found.append(child)
    [only] = found
    return only


def living(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Those that run. One that nobody has waited for yet has ended all the same."""
    found = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


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


@pytest.mark.parametrize(
    ("stuck", "owner", "call"),
    [
        (PROXY, "dressage_proxy.client.ProxyClient", "open"),
        (ENGINE, "dressage_paddock.chat.ChatClient", "complete"),
        (PROXY, "dressage_proxy.client.ProxyClient", "finalize"),
        (ENGINE, "dressage_recipes.local.loop.Loop", "push"),
    ],
)
def test_ctrl_c_does_not_wait_for_a_service_that_hangs(
    stuck: str, owner: str, call: str, tmp_path: Path
) -> None:
    process = started(small(tmp_path / "run", steps=500), tmp_path, *owner.rsplit(".", 1), call)
    assert process.stdin is not None
    try:
        wait_for(process, f"waiting to {call}")
        service(process, stuck).suspend()
        process.stdin.write("\n")
        process.stdin.flush()
        interrupted(process)
    finally:
        ended(process)
    assert leftovers() == []


def interrupted(process: subprocess.Popen[str]) -> None:
    """Press Ctrl-C, which reaches the whole group, and see everything gone within five seconds."""
    children = psutil.Process(process.pid).children(recursive=True)
    began = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(timeout=20) == 130
    assert time.monotonic() - began < 5
    while living(children):
        assert time.monotonic() - began < 5
        time.sleep(0.01)


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
    give_up = time.monotonic() + 5
    while living(children):
        assert time.monotonic() < give_up
        time.sleep(0.01)
    assert len(list(Path(tempfile.gettempdir()).glob(f"{PREFIX}*"))) == 1
    with scratch_folder() as own:  # the next run clears what the killed one left, and nobody else's
        assert list(Path(tempfile.gettempdir()).glob(f"{PREFIX}*")) == [own]
        assert remove_abandoned(Path(tempfile.gettempdir())) == []
    assert leftovers() == []


def test_a_dead_engine_ends_the_run_with_a_reason_and_no_reward_of_zero(tmp_path: Path) -> None:
    config = small(tmp_path / "run", steps=500)
    process = started(config, tmp_path)
    wait_for(process, "StepDone")
    service(process, ENGINE).kill()
    try:
        assert process.wait(timeout=60) != 0
    finally:
        ended(process)
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
