from __future__ import annotations

import errno
import pickle

import pytest
from dressage_sandbox import errors


@pytest.mark.parametrize(
    "name", [name for name in errors.__all__ if not issubclass(getattr(errors, name), OSError)]
)
def test_errors_pickle(name: str) -> None:
    error = getattr(errors, name)("what happened")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert again.args == error.args
    assert isinstance(again, errors.SandboxError)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (errno.ENOENT, errors.SandboxFileNotFound),
        (errno.EISDIR, errors.NotARegularFile),
        (errno.EINVAL, errors.NotARegularFile),
        (errno.ENOSPC, errors.SandboxFileError),
    ],
)
def test_file_errors_keep_number_and_name_and_pickle(code: int, kind: type[OSError]) -> None:
    error = errors.file_error(code, "a/b")
    assert type(error) is kind
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.errno, again.filename) == (kind, code, "a/b")


def test_errors_keep_their_standard_parents() -> None:
    assert issubclass(errors.SandboxFileNotFound, FileNotFoundError)
    assert issubclass(errors.SandboxGone, ConnectionError)
    assert issubclass(errors.ArgumentTooLong, ValueError)
    assert all(issubclass(getattr(errors, name), errors.SandboxError) for name in errors.__all__)
