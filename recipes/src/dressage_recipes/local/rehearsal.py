"""Rollouts without sandbox or proxy: to make examples, and to see where a cold start stands."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from transformers import PreTrainedModel

from dressage_recipes.local.config import TaskSet
from dressage_recipes.local.engine.batch import BatchEngine, Request
from dressage_recipes.local.engine.sampling import SamplingParams
from dressage_recipes.local.tasks import Problem, is_right

CONTEXT = 512
_CALL = re.compile(r"<tool_call>\n(\{.*?\})\n</tool_call>", re.DOTALL)


def simulate_shell(files: dict[str, bytes], command: str) -> str:
    """What the sandbox's shell tool answers to the few lines that solve the problems (a test compares them).

    Anything else gets an error text, which is all that an evaluation needs of it.
    """
    words = command.split()
    if len(words) == 2 and words[0] == "cat":
        return files[words[1]].decode().rstrip("\n") if words[1] in files else _missing("cat", words[1])
    if len(words) == 3 and words[:2] == ["wc", "-l"]:
        name = words[2]
        return f"{len(files[name].splitlines())} {name}" if name in files else _missing("wc", name)
    if len(words) == 4 and words[0] == "echo" and words[2] == ">":
        files[words[3]] = f"{words[1]}\n".encode()
        return "[no output]"
    return "[stderr]\nsh: not found\n[exit code 127]"


def _missing(program: str, name: str) -> str:
    return f"[stderr]\n{program}: {name}: No such file or directory\n[exit code 1]"


@dataclass(frozen=True, slots=True)
class Script:
    """How a rehearsal turns problems and tool results into ids, and ids into text."""

    start: Callable[[Problem], list[int]]
    """The prompt, without the opening of the assistant's turn."""
    answer: Callable[[str], list[int]]
    """What follows a turn that called the tool: the result's message."""
    open: list[int]
    """The opening of the assistant's turn."""
    stop: int
    decode: Callable[[list[int]], str]


def rehearse(
    model: PreTrainedModel,
    problems: Sequence[Problem],
    script: Script,
    tasks: TaskSet,
    *,
    seed: int,
    stop: threading.Event,
) -> list[float]:
    """The reward of one sampled rollout of each problem."""
    engine = BatchEngine(
        model, slots=64, context_length=CONTEXT, retain_bytes=64 << 20, stop_ids=[script.stop], seed=seed
    )
    rewards = [0.0] * len(problems)

    def begin(number: int, ids: list[int], turn: int, files: dict[str, bytes]) -> None:
        if len(ids) + tasks.max_tokens > CONTEXT:
            return
        params = SamplingParams(max_new_tokens=tasks.max_tokens)
        engine.submit(Request(f"{number}-{turn}", ids, params, lambda r: end(number, r, turn, files)))

    def end(number: int, request: Request, turn: int, files: dict[str, bytes]) -> None:
        if request.finish is None or request.finish["type"] != "stop":
            return
        text = script.decode(request.output[:-1])
        command = _command(text)
        if command is None:
            rewards[number] = float(is_right(problems[number], text, files))
        elif turn < tasks.max_turns:
            told = script.answer(simulate_shell(files, command))
            begin(number, [*request.ids, *told, *script.open], turn + 1, files)

    for number, problem in enumerate(problems):
        begin(number, [*script.start(problem), *script.open], 1, dict(problem.files))
    while engine.busy and not stop.is_set():
        engine.step()
    return rewards


def _command(text: str) -> str | None:
    """The shell line of the first complete call; None where the turn calls nothing."""
    found = _CALL.search(text)
    if found is None:
        return None
    try:
        return str(json.loads(found.group(1))["arguments"]["command"])
    except (ValueError, KeyError, TypeError):
        return None
