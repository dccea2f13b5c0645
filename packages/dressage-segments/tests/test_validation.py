import numpy as np
import pytest
from dressage_segments import InvalidFieldError
from dressage_segments.validation import check_floor, check_range
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

EDGES = st.sampled_from([0, 1, -1, -2, 127, 128, 2**24, 2**31 - 1, -(2**31), -(2**24), -128])
COLUMNS = hnp.arrays(np.int32, st.integers(0, 12), elements=EDGES | st.integers(-3, 2**31 - 1))


def says(check, *given):
    try:
        check("ids", *given)
    except InvalidFieldError as error:
        return str(error)
    return ""


@given(COLUMNS, st.sampled_from([0, -1, -2]), st.booleans())
def test_a_floor_is_checked_as_a_range_is_and_the_error_names_the_same_entry(array, low, holes):
    column = np.repeat(array, 2)[::2] if holes else array
    first = next((f"entry {at} is {number}," for at, number in enumerate(array.tolist()) if number < low), "")
    assert first in says(check_floor, column, low)
    assert says(check_floor, column, low) == says(check_range, column, low)


@pytest.mark.parametrize("size", [2**12, 2**12 + 1])
def test_an_entry_below_the_floor_is_found_anywhere_in_a_long_column(size):
    array = np.full(size, 2**31 - 1, np.int32)
    check_floor("ids", array, 0)
    array[-1] = -1
    with pytest.raises(InvalidFieldError, match=f"ids.*entry {size - 1} is -1"):
        check_floor("ids", array, 0)


@given(hnp.arrays(np.int64, st.integers(0, 9), elements=st.integers(-3, 9)), st.none() | st.integers(0, 5))
def test_a_range_names_the_first_entry_that_is_out_of_it(array, high):
    bad = [at for at, n in enumerate(array.tolist()) if n < 0 or (high is not None and n > high)]
    found = says(check_range, array, 0, high)
    assert (f"entry {bad[0]} is {array[bad[0]]}," in found) if bad else not found
