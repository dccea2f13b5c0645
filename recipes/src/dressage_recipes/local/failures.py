"""Why rollouts failed: each in a file of the run, and each new kind told once to whoever watches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import orjson
from dressage_paddock import RolloutResult

from dressage_recipes.local.transcripts import plain, whose

_DETAIL = 2000
"""Characters of an ending's detail that are kept."""


class FailureLog:
    """``failures.jsonl``: a line a rollout that ended in another way than completed or truncated."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._told = set[tuple[str, str]]()

    def record(self, step: int, failures: Iterable[RolloutResult]) -> list[str]:
        """Write them down; gives a sentence for each kind that was not there before."""
        found = list(failures)
        if found:
            with self.path.open("ab") as file:
                file.writelines(_line(step, result) for result in found)
        new = list[str]()
        for result in found:
            kind = (result.failure_class.value, result.ending.code)
            if kind not in self._told:
                self._told.add(kind)
                new.append(f"{result.instance_id}: {told(result)}")
        return new

    def commonest(self, failures: Iterable[RolloutResult]) -> str:
        """How most of them ended, and how many of how many."""
        counted = Counter(told(result) for result in failures)
        if not counted:
            return "none of them was graded"
        (words, count), *_ = counted.most_common(1)
        return f"{count} of {counted.total()} failures are {words}"


def told(result: RolloutResult) -> str:
    """One line: class, stage, code and detail."""
    ending = result.ending
    detail = plain(" ".join(ending.detail.split())[:300])
    return f"{result.failure_class.value} at {ending.stage.value} ({ending.code}): {detail}".rstrip(": ")


def _line(step: int, result: RolloutResult) -> bytes:
    ending = result.ending
    return (
        orjson.dumps(
            {
                **whose(step, result),
                "stage": ending.stage.value,
                "code": ending.code,
                "detail": plain(ending.detail, _DETAIL),
            }
        )
        + b"\n"
    )
