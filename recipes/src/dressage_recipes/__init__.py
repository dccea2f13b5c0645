"""Dressage recipes: the whole loop on one machine, and the ``dressage`` command.

Importing this loads nothing heavy; ``dressage_recipes.local`` holds the loop.
``TaskFamily`` is what a recipe of your own tasks names; it is loaded once it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dressage_recipes.audit import Doubt, RunAudit, audit_run
from dressage_recipes.errors import ModelFetchError, NotARunError, RecipeError, UsageError
from dressage_recipes.events import Activity, Event, Note, OnEvent, Phase, Progress, StepDone

if TYPE_CHECKING:
    from dressage_recipes.family import Row, TaskFamily

__all__ = [
    "Activity",
    "Doubt",
    "Event",
    "ModelFetchError",
    "NotARunError",
    "Note",
    "OnEvent",
    "Phase",
    "Progress",
    "RecipeError",
    "Row",
    "RunAudit",
    "StepDone",
    "TaskFamily",
    "UsageError",
    "audit_run",
]


def __getattr__(name: str) -> object:
    """The family's names, with the paddock behind them, only for whoever uses them."""
    if name in ("Row", "TaskFamily"):
        from dressage_recipes import family

        return getattr(family, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
