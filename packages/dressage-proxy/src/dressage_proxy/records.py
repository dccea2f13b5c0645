"""Values that a turn makes by the dozen."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

_T = TypeVar("_T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: type[_T]) -> type[_T]:
    """A dataclass with slots whose fields are not assigned to again: the type checker sees to that. Where the
    interpreter does (``frozen=True``), an object takes five times as long to make."""
    return dataclass(slots=True)(cls)
