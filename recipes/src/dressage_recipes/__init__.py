"""Dressage recipes: the whole loop on one machine, and the ``dressage`` command.

Importing this loads nothing heavy; ``dressage_recipes.local`` holds the loop.
"""

from dressage_recipes.audit import Doubt, RunAudit, audit_run
from dressage_recipes.errors import ModelFetchError, NotARunError, RecipeError, UsageError
from dressage_recipes.events import Activity, Event, Note, OnEvent, Phase, Progress, StepDone

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
    "RunAudit",
    "StepDone",
    "UsageError",
    "audit_run",
]
