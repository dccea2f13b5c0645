"""What a running loop tells those who watch it, as plain values; who draws them is not its concern."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of the run began: "cold start", "training", "audit". ``total``: its units, 0 if unknown."""

    name: str
    total: int = 0


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the current phase is, in its units, and what is going on."""

    done: float
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Activity:
    """What is running now, inside a step: "48/64 rollouts", "training on 9,120 tokens"."""

    text: str


@dataclass(frozen=True, slots=True)
class Note:
    """A fact worth a line of its own, kept on the terminal."""

    text: str


@dataclass(frozen=True, slots=True)
class StepDone:
    """One step of reinforcement learning ended."""

    step: int
    """Counts from 1."""
    steps: int
    reward: float
    """Mean over the step's counted rollouts."""
    tokens_per_s: float
    """Sampled tokens over the step's wall time."""
    seconds: float
    sampled_tokens: int
    trained_tokens: int
    version: int
    """Weight version that the step's rollouts were sampled with (the last one, if several)."""


Event = Phase | Progress | Activity | Note | StepDone
OnEvent = Callable[[Event], None]
