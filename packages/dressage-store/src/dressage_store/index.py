"""The SQLite index of a files store: which sessions are pending, acked or dropped, and their outcomes."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

from dressage_store.errors import CorruptStoreError, StorePathError, os_errors
from dressage_store.ledger import Entry, State

_SCHEMA = """
CREATE TABLE IF NOT EXISTS entries (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    session_id TEXT NOT NULL UNIQUE,
    state TEXT NOT NULL CHECK (state IN ('pending', 'acked', 'dropped')),
    generation INTEGER NOT NULL,
    failure_class TEXT NOT NULL,
    outcome TEXT NOT NULL,
    nbytes INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS by_state ON entries (state, seq);
"""
_COLUMNS = "session_id, state, generation, failure_class, outcome, nbytes"
_BUSY_SECONDS = 5.0


class Index:
    """One connection. Not safe for concurrent threads: the store serialises."""

    def __init__(self, path: Path, *, read_only: bool, fsync: bool) -> None:
        self._path = path
        with os_errors(path):
            if path.exists() and not path.is_file():  # to open a FIFO would be to wait
                raise StorePathError(f"{path}: is no regular file: restore it, or remove it")
            self._connection = _open_reader(path) if read_only else _open_writer(path, fsync)

    def get(self, session_id: str) -> Entry | None:
        """The session's entry, if it has one."""
        return next(iter(self._select("WHERE session_id = ?", (session_id,))), None)

    def entries(self, state: State | None = None) -> list[Entry]:
        """All entries (of one state), oldest first."""
        if state is None:
            return self._select("ORDER BY seq", ())
        return self._select("WHERE state = ? ORDER BY seq", (state.value,))

    def set(self, entry: Entry) -> None:
        """Insert or replace the session's entry, durably; its place in the order stays."""
        values = (
            entry.session_id,
            entry.state.value,
            entry.generation,
            str(entry.failure_class),
            json.dumps(dict(entry.outcome), allow_nan=False, default=dict),
            entry.nbytes,
        )
        with os_errors(self._path), self._connection:
            self._connection.execute(
                f"INSERT INTO entries ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?) "
                "ON CONFLICT (session_id) DO UPDATE SET state = excluded.state, "
                "generation = excluded.generation, failure_class = excluded.failure_class, "
                "outcome = excluded.outcome, nbytes = excluded.nbytes",
                values,
            )

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _select(self, clause: str, values: tuple[str, ...]) -> list[Entry]:
        with os_errors(self._path):
            rows = self._connection.execute(f"SELECT {_COLUMNS} FROM entries {clause}", values).fetchall()
        try:
            return [_entry(*row) for row in rows]
        except (TypeError, ValueError) as error:
            raise CorruptStoreError(f"{self._path}: a row is damaged: {error}: restore it") from error


def _entry(name: str, state: str, generation: int, failure_class: str, outcome: str, nbytes: int) -> Entry:
    said = json.loads(outcome)
    if not isinstance(said, dict):
        raise ValueError(f"outcome is {type(said).__name__}")
    return Entry(name, State(state), generation, failure_class, said, nbytes)


def _open_writer(path: Path, fsync: bool) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=_BUSY_SECONDS, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {'FULL' if fsync else 'NORMAL'}")
        connection.executescript(_SCHEMA)
        _check(connection)
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _open_reader(path: Path) -> sqlite3.Connection:
    """A live store's log is followed; on a read-only disk nothing can change, so the file alone is read."""
    failure: sqlite3.OperationalError | None = None
    for mode in ("mode=ro", "mode=ro&immutable=1"):
        connection = sqlite3.connect(
            f"{path.resolve().as_uri()}?{mode}", uri=True, timeout=_BUSY_SECONDS, check_same_thread=False
        )
        try:
            connection.execute(f"SELECT {_COLUMNS} FROM entries LIMIT 1").fetchall()
            _check(connection)
        except sqlite3.OperationalError as error:
            connection.close()
            failure = error
        except sqlite3.Error:
            connection.close()
            raise
        else:
            return connection
    raise failure if failure is not None else AssertionError("unreachable")


def _check(connection: sqlite3.Connection) -> None:
    """Raise DatabaseError for a damaged file. SQLite looks at a page when it is read, and then at little of
    it: a page that was cut off may look like one that holds nothing. This looks at all, once."""
    (found,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if found != "ok":
        raise sqlite3.DatabaseError(" ".join(found.split()))
