"""Durable turn logs and trajectories: memory and files backends behind one contract."""

from dressage_store.errors import (
    CorruptStoreError,
    GenerationError,
    NotFoundError,
    SessionExistsError,
    SessionFinishedError,
    SessionIdError,
    StoreClosedError,
    StoreError,
    StoreFullError,
    StoreLockedError,
    StorePathError,
    StoreReadOnlyError,
    StoreVersionError,
)
from dressage_store.files import FilesStore
from dressage_store.layout import replace_file
from dressage_store.ledger import Entry, State, Usage
from dressage_store.memory import MemoryStore

__all__ = [
    "CorruptStoreError",
    "Entry",
    "FilesStore",
    "GenerationError",
    "MemoryStore",
    "NotFoundError",
    "SessionExistsError",
    "SessionFinishedError",
    "SessionIdError",
    "State",
    "StoreClosedError",
    "StoreError",
    "StoreFullError",
    "StoreLockedError",
    "StorePathError",
    "StoreReadOnlyError",
    "StoreVersionError",
    "Usage",
    "replace_file",
]
