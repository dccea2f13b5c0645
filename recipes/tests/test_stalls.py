"""Code that holds up the event loop is named by its line; a loop that turns, or is ours, is not."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from dressage_paddock import Hooks, ShellTool, Task
from dressage_recipes import TaskFamily
from dressage_recipes.local import stalls
from dressage_recipes.local.config import LocalConfig
from dressage_recipes.local.dataset import OwnTasks
from dressage_recipes.local.stalls import watching
from dressage_recipes.local.work import OwnWork


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stalls, "STALL_S", 0.2)


async def blocking() -> None:
    time.sleep(1.0)  # noqa: ASYNC251 - what is to be found


async def test_a_line_that_blocks_is_told_once_by_file_and_line() -> None:
    told = list[str]()
    async with watching({__file__}, told.append):
        await asyncio.sleep(0.1)
        await blocking()
        await blocking()
        await asyncio.sleep(0.1)
    line = blocking.__code__.co_firstlineno + 1
    (text,) = [text for text in told if "(blocking)" in text]
    assert text.startswith(f"{__file__}:{line} (blocking) holds up every rollout")


async def test_what_waits_is_not_told_nor_what_blocks_in_code_that_is_not_watched() -> None:
    told = list[str]()
    async with watching({__file__}, told.append):
        await asyncio.sleep(0.6)
    async with watching({"/another/file.py"}, told.append):
        await blocking()
        await asyncio.sleep(0.1)
    async with watching((), told.append):
        await blocking()
    assert told == []


class Own:
    name = "own"
    description = "x"
    parameters = {"type": "object", "properties": {}}  # noqa: RUF012

    async def call(self, sandbox: object, arguments: object, bounds: object) -> str:
        return ""


async def grade(view: object) -> float:
    return 1.0


class Graders:
    async def __call__(self, view: object) -> float:
        return 1.0


@pytest.mark.parametrize(
    "family",
    [
        TaskFamily(lambda row: Task("a", prompt="p"), grade),
        TaskFamily(lambda row: Task("a", prompt="p"), Graders()),
        TaskFamily(lambda row: Task("a", prompt="p"), hooks=Hooks(grade=grade), tools=(Own(), ShellTool())),
    ],
)
def test_a_familys_files_are_those_of_its_grader_hooks_and_tools(family: TaskFamily) -> None:
    config = LocalConfig.model_validate({"model": {"path": "x"}, "tasks": {"family": "a", "dataset": "b"}})
    own = OwnWork(config, OwnTasks(family, (Task("a", prompt="p"),)))
    assert [Path(file) for file in own.files] == [Path(__file__)]
