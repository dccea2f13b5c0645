import inspect
import pickle
import sqlite3

import pytest
from dressage_store import CorruptStoreError, FilesStore, StoreError, StoreFullError, StorePathError, errors
from dressage_store.errors import os_errors

CLASSES = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, Exception)]


@pytest.mark.parametrize("cls", CLASSES)
def test_every_error_pickles_has_the_root_and_a_place_in_the_drawing(cls):
    again = pickle.loads(pickle.dumps(cls("says")))
    assert type(again) is cls
    assert str(again) == "says"
    assert issubclass(cls, StoreError)
    assert cls.__name__ in errors.__doc__


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (OSError(28, "No space"), StoreFullError),
        (OSError(122, "Quota"), StoreFullError),
        (OSError(30, "Read-only"), errors.StoreReadOnlyError),
        (PermissionError(13, "Denied"), errors.StoreReadOnlyError),
        (NotADirectoryError(20, "Not a directory"), StorePathError),
        (sqlite3.OperationalError("database or disk is full"), StoreFullError),
        (sqlite3.OperationalError("attempt to write a readonly database"), errors.StoreReadOnlyError),
        (sqlite3.OperationalError("unable to open database file"), StorePathError),
        (sqlite3.DatabaseError("file is not a database"), CorruptStoreError),
        (errors.NotFoundError("as it is"), errors.NotFoundError),
    ],
)
def test_the_systems_refusals_become_typed_errors_that_name_the_path(tmp_path, raised, expected):
    with pytest.raises(expected) as caught, os_errors(tmp_path):
        raise raised
    assert str(tmp_path) in str(caught.value) or raised is caught.value


def test_a_damaged_index_is_a_clear_error_and_leaves_no_lock(tmp_path):
    FilesStore(tmp_path / "s").close()
    (tmp_path / "s/index.sqlite").write_bytes(b"junk" * 1000)
    for _ in range(2):
        with pytest.raises(CorruptStoreError, match=r"index\.sqlite"):
            FilesStore(tmp_path / "s")
