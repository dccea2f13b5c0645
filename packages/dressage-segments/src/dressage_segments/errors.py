"""Errors of this package.

::

    SegmentsError(Exception)
    ├── InvalidFieldError(ValueError)      a column or field has a wrong length, dtype, range or value
    ├── BufferFormatError(ValueError)      bytes are not the safetensors, frame or schema that was expected
    ├── TreeError(ValueError)              a turn does not fit the tree
    │   ├── UnknownTurnError(LookupError)  no turn of that index
    │   └── ContextMismatchError           an engine call was not sampled after the walk that it hangs on
    ├── GroupError(ValueError)             rewards cannot be turned into group advantages
    │   ├── MissingGroupError              a rollout has no group id
    │   ├── MissingRewardError             a rollout that counts has no finite reward
    │   └── RewardConflictError            one rollout id came with different rewards or groups
    └── ProvenanceError(ValueError)        tokens lack what a rule needs (a version, an anchor, a rollout)

All pickle, and each message names the field and the fix.
"""

from __future__ import annotations


class SegmentsError(Exception):
    """Root of this package's errors."""


class InvalidFieldError(SegmentsError, ValueError):
    """A column or field has a wrong length, dtype, range or value; ``field`` names it."""

    def __init__(self, field: str, problem: str, fix: str = "") -> None:
        super().__init__(field, problem, fix)
        self.field = field
        self.problem = problem
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.field}: {self.problem}" + (f" ({self.fix})" if self.fix else "")


class BufferFormatError(SegmentsError, ValueError):
    """Bytes are not what their reader expects: damaged, of another schema, or cut off."""


class TreeError(SegmentsError, ValueError):
    """A turn does not fit the tree that it was added to."""


class UnknownTurnError(TreeError, LookupError):
    """No turn has that index."""


class ContextMismatchError(TreeError):
    """An engine call's prompt is not the ids of the walk that its turn hangs on (promise P1)."""


class GroupError(SegmentsError, ValueError):
    """Rewards cannot be turned into group advantages."""


class MissingGroupError(GroupError):
    """A rollout has no group id: it would be normalised with strangers."""


class MissingRewardError(GroupError):
    """A rollout whose class counts has no finite reward: a missing reward is never a 0."""


class RewardConflictError(GroupError):
    """One rollout id came with different rewards, groups or classes."""


class ProvenanceError(SegmentsError, ValueError):
    """Tokens lack the provenance that a rule needs."""
