import numpy as np
import pytest
from dressage_segments.bytewise import usual
from dressage_segments.record_io import coded_by_numpy
from dressage_segments.safetensors_io import part
from hypothesis import given, settings
from hypothesis import strategies as st

HIGHEST = [1, 2**8 - 1, 2**8, 2**16 - 1, 2**16, 2**24 - 1, 2**24, 2**31 - 1]


@st.composite
def columns(draw):
    """int32 and uint8, of many numbers or of runs, around every length and number where the form changes;
    float32 of any bits."""
    dtype = draw(st.sampled_from([np.int32, np.uint8, np.float32]))
    if dtype == np.float32:
        return np.array(draw(st.lists(st.integers(0, 2**32 - 1), max_size=20)), np.uint32).view(np.float32)
    highest = min(draw(st.sampled_from(HIGHEST)), np.iinfo(dtype).max)
    lowest = draw(st.sampled_from([0, 0, -1, -(2**31)])) if dtype == np.int32 else 0
    numbers = st.integers(lowest, highest) | st.sampled_from([0, highest])
    if draw(st.booleans()):
        lengths = st.integers(1, draw(st.sampled_from([2, 9, 40])))
        runs = draw(st.lists(st.tuples(numbers, lengths), max_size=12))
        return np.repeat(np.array([n for n, _ in runs], dtype), [length for _, length in runs])
    return np.array(draw(st.lists(numbers, max_size=20)), dtype)


def plain(array):
    """What is written by narrow.py alone."""
    found = part(*coded_by_numpy("c", array))
    return found._replace(data=bytes(found.data))


def given_as(found):
    return found._replace(data=bytes(found.data))


@settings(max_examples=1000)
@given(columns())
def test_a_usual_column_has_the_very_bytes_that_narrow_gives_it(array):
    found = usual("c", array)
    if found is not None:
        assert given_as(found) == plain(array)


@pytest.mark.parametrize("size", [2**12 - 1, 2**12, 2**12 + 1])
@pytest.mark.parametrize("dtype", [np.int32, np.uint8])
def test_long_columns_are_left_to_numpy_or_the_same(size, dtype):
    for array in (np.full(size, 3, dtype), np.arange(size).astype(dtype)):
        found = usual("c", array)
        assert (found is None) == (size > 2**12)
        assert found is None or given_as(found) == plain(array)


@pytest.mark.parametrize(
    ("array", "form"),
    [
        (np.arange(70_000, 70_500, dtype=np.int32), "c|I32 U8 3,500"),
        (np.arange(300, 800, dtype=np.int32), "c|I32 U16 500"),
        (np.arange(100, dtype=np.int32), "c|I32 U8 100"),
        (np.arange(2**24, 2**24 + 9, dtype=np.int32), "c I32 9"),
        (np.arange(-9, 9, dtype=np.int32), "c I32 18"),
        (np.full(100, -1, np.int32), "c|I32|runs I32 1,2"),
        (np.array([2] * 4 + [3] * 380 + [2] * 5, np.uint8), "c|U8|runs I32 3,2"),
        (np.zeros(400, np.uint8), "c|U8|runs I32 1,2"),
    ],
)
def test_the_columns_of_turns_are_usual(array, form):
    found = usual("c", array)
    assert f"{found.name} {found.code} {found.shape}" == form
    assert given_as(found) == plain(array)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(8, dtype=np.int64),
        np.arange(8, dtype=">i4"),
        np.zeros((8, 8), np.uint8),
        np.zeros(8, np.int8),
        np.zeros(8, bool),
        np.zeros(8, np.float64),
        np.zeros(8, ">f4"),
        np.array([1, 1, 2, 3, 4, 5, 6, 7], np.int32),
        np.repeat(np.arange(9, dtype=np.uint8), 20),
        np.zeros(7, np.int32),
    ],
)
def test_all_other_columns_are_left_to_numpy(array):
    assert usual("c", array) is None


@pytest.mark.parametrize("lowest", [0, 300, 70_000, 2**24, -50])
def test_views_with_holes_are_read_by_value(lowest):
    wide = np.arange(lowest, lowest + 100, dtype=np.int32)[::2]
    assert given_as(usual("c", wide)) == plain(wide) == plain(np.ascontiguousarray(wide))
