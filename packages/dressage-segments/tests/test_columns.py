import numpy as np
import pytest
from dressage_segments import Column, InvalidFieldError
from hypothesis import given
from hypothesis import strategies as st


@given(st.lists(st.lists(st.integers(0, 255), max_size=40), max_size=20))
def test_a_column_holds_what_was_appended_and_old_views_never_change(pieces):
    column = Column(np.uint8)
    whole: list[int] = []
    views = []
    for piece in pieces:
        column.append(np.array(piece, np.uint8))
        whole += piece
        views.append((column.view(), list(whole)))
    for view, expected in views:
        assert view.tolist() == expected


def test_appending_copies_an_amortised_constant_number_of_bytes_per_value():
    column = Column(np.int32)
    copied = 0
    held = column.nbytes
    for _ in range(10_000):
        column.append(np.zeros(1, np.int32))
        if column.nbytes != held:
            copied, held = copied + held, column.nbytes
    assert copied <= 3 * 4 * 10_000


def test_a_view_is_read_only_and_shares_memory():
    column = Column(np.float32)
    column.fill(1.5, 3)
    assert column.view().tolist() == [1.5] * 3
    assert np.shares_memory(column.view(), column.view())
    with pytest.raises(ValueError, match="read-only"):
        column.view()[0] = 0


@pytest.mark.parametrize("bad", [np.zeros(2, np.int64), np.zeros((1, 2), np.int32)])
def test_another_dtype_or_shape_is_refused_with_the_columns_name(bad):
    with pytest.raises(InvalidFieldError, match="version"):
        Column(np.int32, name="version").append(bad)


def test_a_growth_that_does_not_grow_is_refused():
    with pytest.raises(InvalidFieldError, match="growth"):
        Column(np.int32, growth=1.0)
