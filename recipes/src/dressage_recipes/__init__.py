"""Dressage recipes: the whole loop on one machine, and the ``dressage`` command.

Importing this loads nothing: each name's module is loaded once the name is asked for, so that the command
listens to Ctrl-C from its first moment. ``dressage_recipes.local`` holds the loop.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dressage_recipes.audit import Doubt, RunAudit, audit_run
    from dressage_recipes.errors import ModelFetchError, NotARunError, RecipeError, UsageError
    from dressage_recipes.events import Activity, Event, Note, OnEvent, Phase, Progress, StepDone
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

_MODULES = {
    "audit": ("Doubt", "RunAudit", "audit_run"),
    "errors": ("ModelFetchError", "NotARunError", "RecipeError", "UsageError"),
    "events": ("Activity", "Event", "Note", "OnEvent", "Phase", "Progress", "StepDone"),
    "family": ("Row", "TaskFamily"),
}


def __getattr__(name: str) -> object:
    """A public name, out of its module."""
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
