"""A recipe's own tasks: the family that a Python file names, and the rows of a dataset."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

from dressage_paddock import Task, TaskLimits

from dressage_recipes.errors import RecipeError, UsageError
from dressage_recipes.family import Row, TaskFamily
from dressage_recipes.local.config import TaskSet

DEFAULT_NAME = "family"
_FROM_RECIPE = ("max_turns", "max_tokens", "timeout_s")


@dataclass(frozen=True, slots=True)
class OwnTasks:
    """A family and the tasks of its dataset, in the dataset's order."""

    family: TaskFamily
    tasks: tuple[Task, ...]


def load_own_tasks(config: TaskSet) -> OwnTasks:
    """What ``tasks.family`` and ``tasks.dataset`` name. Raises UsageError with the line that is wrong.

    A family's code that changes the folder does so for itself alone: a run's own paths may be relative.
    """
    here = Path.cwd()
    try:
        return _loaded(config)
    finally:
        os.chdir(here)


def _loaded(config: TaskSet) -> OwnTasks:
    family = load_family(config.family)
    path = Path(config.dataset)
    tasks, lines = list[Task](), dict[str, int]()
    for number, row in read_rows(path):
        task = _task_of(family, row, f"{path}:{number}")
        if (other := lines.get(task.instance_id)) is not None:
            raise UsageError(
                f"{path}:{number}: instance_id {task.instance_id!r} is that of line {other} too",
                fix="give each row its own",
            )
        lines[task.instance_id] = number
        tasks.append(_limited(task, config, f"{path}:{number}"))
    if not tasks:
        raise UsageError(f"tasks.dataset {path}: holds no row", fix="give one JSON object a line")
    return OwnTasks(family, tuple(tasks))


def load_family(named: str) -> TaskFamily:
    """The family that ``FILE.py``, ``FILE.py:NAME`` or ``package.module:NAME`` names.

    Raises UsageError where there is none, or where its module raises.
    """
    where, colon, name = named.rpartition(":")
    if not colon:
        where, name = named, DEFAULT_NAME
    said = f"tasks.family {named}"
    try:
        module = _module_of(where, said)
    except RecipeError:
        raise
    except (Exception, SystemExit) as error:
        raise UsageError(f"{said}: {_told(error, where)}", fix="mend the module") from error
    family = getattr(module, name, None)
    if not isinstance(family, TaskFamily):
        what = "is missing" if family is None else f"is {type(family).__name__}"
        raise UsageError(f"{said}: {name} {what}", fix=f"write `{name} = TaskFamily(...)` there")
    return family


def read_rows(path: Path) -> Iterator[tuple[int, Row]]:
    """Line number (from 1) and object of each line that is not blank. Raises UsageError."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"tasks.dataset {path}: {why}", fix="name a file of JSON lines in UTF-8") from error
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UsageError(
                f"{path}:{number}: is not JSON: {error}", fix="give one JSON object a line"
            ) from error
        if not isinstance(row, dict):
            raise UsageError(f"{path}:{number}: is a JSON {type(row).__name__}", fix="give an object")
        yield number, row


def longest(tasks: Sequence[Task], count: int = 16) -> list[Task]:
    """The tasks with the longest prompts, in characters: what fits them fits the others."""
    return sorted(tasks, key=lambda task: -sum(len(m.content) for m in task.public().messages))[:count]


def _module_of(where: str, said: str) -> ModuleType:
    if not where.endswith(".py") and "/" not in where:
        return importlib.import_module(where)
    path = Path(where)
    if not path.is_file():
        raise UsageError(f"{said}: no such file", fix="name a Python file, or package.module:NAME")
    # As for a script: what lies beside the file can be imported.
    if (folder := str(path.absolute().parent)) not in sys.path:
        sys.path.insert(0, folder)
    name = f"_dressage_family_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{said}: is no Python file", fix="name one that ends in .py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _task_of(family: TaskFamily, row: Row, where: str) -> Task:
    try:
        task = family.task(row)
    except Exception as error:
        raise UsageError(
            f"{where}: TaskFamily.task raised {type(error).__name__}: {error}",
            fix="mend the row or the function",
        ) from error
    if not isinstance(task, Task):
        raise UsageError(
            f"{where}: TaskFamily.task gave {type(task).__name__}", fix="return a dressage_paddock.Task"
        )
    return task


def _limited(task: Task, config: TaskSet, where: str) -> Task:
    """With the recipe's limits. A limit that the family sets as well, and otherwise, is refused."""
    wanted = {name: getattr(config, name) for name in _FROM_RECIPE}
    for name, value in wanted.items():
        given = getattr(task.limits, name)
        if given not in (value, getattr(TaskLimits(), name)):
            raise UsageError(
                f"{where}: limits.{name} is {given}, and tasks.{name} of the recipe {value}",
                fix=f"set tasks.{name} alone",
            )
    return replace(task, limits=replace(task.limits, **wanted))


def _told(error: BaseException, where: str) -> str:
    """An error of the module with the last line of it that was reached."""
    line, trace = 0, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename.endswith(Path(where).name):
            line = trace.tb_lineno
        trace = trace.tb_next
    at = f" (line {line})" if line else ""
    return f"{type(error).__name__}: {error}{at}"
