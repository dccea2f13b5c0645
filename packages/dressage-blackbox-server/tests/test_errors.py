"""Errors keep their standard parents and pickle."""

from __future__ import annotations

import inspect
import pickle

from dressage_blackbox_server import BlackboxError
from dressage_blackbox_server import errors as module


def test_every_error_pickles_and_is_drawn_in_the_hierarchy():
    kinds = [k for _, k in inspect.getmembers(module, inspect.isclass) if issubclass(k, BlackboxError)]
    assert len(kinds) > 10
    for kind in kinds:
        again = pickle.loads(pickle.dumps(kind("told")))
        assert (type(again), str(again)) == (kind, "told")
        assert kind.__name__ in (module.__doc__ or "")


def test_standard_parents_are_kept():
    assert issubclass(module.UnknownTurnError, LookupError)
    assert issubclass(module.ServerError, ConnectionError)
    assert issubclass(module.JournalError, OSError)
    assert issubclass(module.RequestError, ValueError)
