"""Where the numbers of each step go: a JSONL file, and trackio or W&B when installed."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import orjson

from dressage_recipes.errors import UsageError

Value = float | int | str | bool | Mapping[str, int]
TrackerName = Literal["auto", "none", "trackio", "wandb"]


class Metrics(Protocol):
    """One place that numbers go to."""

    def log(self, step: int, values: Mapping[str, Value]) -> None:
        """Record a step's values."""

    def close(self) -> None:
        """Finish."""


class JsonlMetrics:
    """One line a step, written through at once."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab")

    def log(self, step: int, values: Mapping[str, Value]) -> None:
        """Append a line."""
        self._file.write(orjson.dumps({"step": step, **values}) + b"\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class TrackerMetrics:
    """trackio or W&B: modules with the same ``init``, ``log`` and ``finish``."""

    def __init__(self, module: Any, run: str, config: Mapping[str, Any]) -> None:
        self._module = module
        self._module.init(project="dressage", name=run, config=dict(config))

    def log(self, step: int, values: Mapping[str, Value]) -> None:
        """Log the numbers; mappings become one number for each key."""
        flat: dict[str, float | int | bool] = {}
        for name, value in values.items():
            if isinstance(value, Mapping):
                flat |= {f"{name}/{key}": number for key, number in value.items()}
            elif not isinstance(value, str):
                flat[name] = value
        self._module.log(flat, step=step)

    def close(self) -> None:
        """Finish the run."""
        self._module.finish()


def open_metrics(path: Path, tracker: TrackerName, run: str, config: Mapping[str, Any]) -> Sequence[Metrics]:
    """The JSONL file, and the tracker that is asked for. Raises UsageError where a named one is missing."""
    wanted = ("trackio", "wandb") if tracker == "auto" else (tracker,) if tracker != "none" else ()
    places: list[Metrics] = [JsonlMetrics(path)]
    for name in wanted:
        if importlib.util.find_spec(name) is not None:
            places.append(TrackerMetrics(importlib.import_module(name), run, config))
            break
        if tracker != "auto":
            raise UsageError(f"tracker is {name!r}, which is not installed", fix=f"pip install {name}")
    return places
