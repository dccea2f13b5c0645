"""Errors of dressage-paddock.

::

    PaddockError(Exception)
    ├── TaskError(ValueError)                  cannot be run as given; names the field and the fix
    ├── RolloutStateError(RuntimeError)        a rollout was used before it began or after it ended
    ├── ToolError(ValueError)                  a call that is the model's mistake: the text goes to it
    ├── BrokenOffError(RuntimeError)           code of others ended by what is no exception of its own
    └── StageError                             ends a rollout; the classifier (failure.py) gives its class
        ├── InfrastructureError(RuntimeError)  gateway, sandbox or grader broke
        │   ├── GatewayError(ConnectionError)  the gateway could not be reached or answered 5xx/429
        │   ├── GatewayRefusedError            the gateway refused the request by name
        │   ├── SandboxFailedError             the sandbox could not be made or died
        │   ├── ToolFailedError                a tool broke, by no fault of the model
        │   ├── HookFailedError                a hook raised or gave something else than its type
        │   └── GraderFailedError              the grader raised, timed out or gave no finite number
        ├── ContextOverflowError(ValueError)   the conversation no longer fits the model's context
        └── StageTimeoutError(TimeoutError)    a stage used up its time
"""

from __future__ import annotations


class PaddockError(Exception):
    """Root of every error that this package raises."""


class TaskError(PaddockError, ValueError):
    """A task or configuration that cannot be run. The message names the field and the fix."""


class RolloutStateError(PaddockError, RuntimeError):
    """A rollout was used before it began or after it ended."""


class ToolError(PaddockError, ValueError):
    """A call that cannot be done as the model asked. Its text goes back to the model; it ends nothing."""


class BrokenOffError(PaddockError, RuntimeError):
    """Code of others was broken off from within: it ended "the program", or its own task was cancelled."""


class StageError(PaddockError):
    """Ends a rollout as data: the classifier turns it into a failure class."""


class InfrastructureError(StageError, RuntimeError):
    """Something that is not the policy's doing broke. Never becomes a reward."""


class GatewayError(InfrastructureError, ConnectionError):
    """The gateway could not be reached, or answered 5xx or 429 for too long."""


class GatewayRefusedError(InfrastructureError):
    """The gateway refused the request by name; the same request again will not help."""


class SandboxFailedError(InfrastructureError):
    """The sandbox could not be made, or died."""


class ToolFailedError(InfrastructureError):
    """A tool raised, ran out of time, or gave something that is not text."""


class HookFailedError(InfrastructureError):
    """A hook raised, or gave something that is not what its stage gives."""


class GraderFailedError(InfrastructureError):
    """The grader raised, ran out of time, or gave something that is not a finite number."""


class ContextOverflowError(StageError, ValueError):
    """The conversation no longer fits the model's context window."""


class StageTimeoutError(StageError, TimeoutError):
    """A stage of the rollout used up its time."""
