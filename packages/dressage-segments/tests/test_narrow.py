import numpy as np
import pytest
from dressage_segments import BufferFormatError
from dressage_segments.narrow import MAX_RUN_ENTRIES, check_lengths, from_runs, narrow, to_runs, widen
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

INTEGERS = st.sampled_from([np.dtype(f"{kind}{size}") for kind in "iu" for size in (1, 2, 4, 8)])


@st.composite
def columns(draw):
    """Integers of any dtype, small and large, from a few values or from many."""
    dtype = draw(INTEGERS)
    bounds = np.iinfo(dtype)
    highest = draw(st.sampled_from([1, 2**8 - 1, 2**8, 2**16 - 1, 2**16, 2**24 - 1, 2**24, 2**64]))
    lowest = draw(st.sampled_from([0, -1, bounds.min]))
    values = st.integers(max(lowest, bounds.min), min(highest, bounds.max))
    if draw(st.booleans()):
        values = st.sampled_from(draw(st.lists(values, min_size=1, max_size=3)))
    return np.array(draw(st.lists(values, max_size=40)), dtype)


def identical(left, right):
    return left.dtype == right.dtype and left.tolist() == right.tolist()


@given(columns())
def test_narrow_columns_come_back_as_they_were_and_never_take_more(column):
    small = narrow(column)
    assert small.nbytes <= column.nbytes
    assert identical(widen(np.ascontiguousarray(small), column.dtype), column)


@given(columns())
def test_runs_come_back_as_they_were_and_take_less(column):
    runs = to_runs(column)
    if runs is not None:
        assert runs.nbytes < column.nbytes
        assert identical(from_runs(runs, column.dtype), column)


@pytest.mark.parametrize("column", [np.full(9, 2**40), np.full(9, -(2**40)), np.full(9, 2**31, np.uint32)])
def test_numbers_beyond_32_bits_are_not_kept_as_runs(column):
    assert to_runs(column) is None
    assert to_runs(np.sign(column)) is not None


@pytest.mark.parametrize(
    ("highest", "per_entry"), [(255, 1), (256, 2), (2**16 - 1, 2), (2**16, 3), (2**24 - 1, 3), (2**24, 4)]
)
def test_ids_take_as_few_bytes_as_the_largest_needs(highest, per_entry):
    assert narrow(np.array([0, highest, 7], np.int32)).nbytes == 3 * per_entry


def test_views_that_are_not_contiguous_are_narrowed_too():
    wide = np.arange(0, 2_000_000, 99_999, dtype=np.int32)
    assert identical(widen(np.ascontiguousarray(narrow(wide[::2])), wide.dtype), wide[::2])


@pytest.mark.parametrize(
    ("found", "dtype"),
    [
        (np.zeros((2, 3), np.uint8), np.int32),
        (np.zeros((3, 2), np.uint8), np.int16),
        (np.zeros((3, 2), np.uint8), np.uint8),
        (np.zeros((3, 2), np.int8), np.int32),
        (np.zeros(3, np.uint16), np.int16),
        (np.zeros(3, np.uint32), np.int32),
        (np.zeros(3, np.int8), np.int32),
        (np.zeros(3, np.float32), np.int32),
        (np.zeros(3, np.uint8), np.float32),
        (np.zeros((), np.uint8), np.int32),
        (np.zeros((3, 1, 1), np.uint8), np.int32),
    ],
)
def test_forms_that_are_never_written_are_refused(found, dtype):
    with pytest.raises(BufferFormatError):
        widen(found, np.dtype(dtype))


@pytest.mark.parametrize(
    ("runs", "dtype"),
    [
        ([[1, 0]], np.int32),
        ([[1, 3], [2, -1]], np.int32),
        ([[1, MAX_RUN_ENTRIES], [2, 1]], np.int32),
        ([[1, 2**31 - 1]] * 4, np.int32),
        ([[-1, 2]], np.uint8),
        ([[256, 2]], np.uint8),
        ([[1, 2]], np.float32),
        ([[1, 2, 3]], np.int32),
        ([1, 2], np.int32),
    ],
)
def test_runs_that_are_never_written_are_refused_before_they_take_memory(runs, dtype):
    with pytest.raises(BufferFormatError):
        from_runs(np.array(runs, np.int32), np.dtype(dtype))
    with pytest.raises(BufferFormatError):
        from_runs(np.array(runs, np.int64), np.dtype(dtype))


@given(hnp.arrays(np.int32, st.integers(0, 5)), st.none() | st.integers(0, 10))
def test_lengths_are_at_least_one_and_add_up(lengths, total):
    found = sum(lengths.tolist())
    good = (lengths > 0).all() and (found <= MAX_RUN_ENTRIES if total is None else found == total)
    if good:
        check_lengths(lengths, total)
    else:
        with pytest.raises(BufferFormatError):
            check_lengths(lengths, total)
