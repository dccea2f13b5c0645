import inspect
import pickle

import pytest
from dressage_segments import errors

CLASSES = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, Exception)]


@pytest.mark.parametrize("cls", CLASSES)
def test_every_error_pickles_has_the_root_and_a_place_in_the_drawing(cls):
    error = cls("field", "problem", "fix") if cls is errors.InvalidFieldError else cls("says")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is cls
    assert str(again) == str(error)
    assert issubclass(cls, errors.SegmentsError)
    assert cls.__name__ in errors.__doc__


def test_a_field_error_names_field_problem_and_fix():
    assert str(errors.InvalidFieldError("ids", "is empty", "give some")) == "ids: is empty (give some)"
