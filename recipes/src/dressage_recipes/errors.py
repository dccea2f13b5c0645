"""What recipes refuse, and why. Each error names the fix where there is one.

::

    RecipeError(Exception)
    ├── UsageError(ValueError)        an argument or a configuration field is wrong
    ├── ModelFetchError(OSError)      a model's files could not be fetched or prepared
    ├── NotARunError(LookupError)     a folder is not a finished or running Dressage run
    └── StoppedError                  a computation was asked to stop before its end
"""

from __future__ import annotations


class RecipeError(Exception):
    """The root. ``str()`` is one line, with the fix where there is one."""

    def __init__(self, message: str, *, fix: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.message}; {self.fix}" if self.fix else self.message

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, self.fix))


class UsageError(RecipeError, ValueError):
    """An argument or a configuration field is wrong."""


class ModelFetchError(RecipeError, OSError):
    """A model's files could not be fetched or prepared."""


class NotARunError(RecipeError, LookupError):
    """A folder is not a Dressage run."""


class StoppedError(RecipeError):
    """A computation in a thread was asked to stop before its end."""


def _rebuild(kind: type[RecipeError], message: str, fix: str) -> RecipeError:
    return kind(message, fix=fix)
