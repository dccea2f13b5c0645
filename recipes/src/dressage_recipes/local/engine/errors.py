"""Errors of the local engine.

EngineError(Exception)
├── InvalidRequestError(EngineError, ValueError)   a field of a request is wrong: HTTP 400
└── ModelFolderError(EngineError, ValueError)      the model folder is missing or unusable
"""

from __future__ import annotations


class EngineError(Exception):
    """Root of the local engine's errors."""


class InvalidRequestError(EngineError, ValueError):
    """A request that the engine refuses; names the field and what to do."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(field, problem)
        self.field = field
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.field} {self.problem}"


class ModelFolderError(EngineError, ValueError):
    """The model folder does not exist, or holds no causal LM."""
