from __future__ import annotations

import numpy as np
import pytest
from dressage_tito import TokenBuffer
from hypothesis import given
from hypothesis import strategies as st

ids = st.lists(st.integers(0, 2**31 - 1), max_size=40)


@given(parts=st.lists(ids, max_size=12), capacity=st.integers(0, 8))
def test_a_buffer_is_what_was_appended_and_views_never_change(parts: list[list[int]], capacity: int) -> None:
    buffer = TokenBuffer(capacity=capacity)
    whole: list[int] = []
    views = []
    for part in parts:
        views.append((buffer.ids, list(whole)))
        buffer.append(part)
        whole += part
        assert len(buffer) == len(whole)
        assert buffer.ids.tolist() == whole
        assert buffer.ids.dtype == np.int32
    assert all(view.tolist() == seen for view, seen in views)
    for size in (0, len(whole) // 2, len(whole)):
        branch = buffer.truncated(size)
        branch.append([7])
        assert branch.ids.tolist() == [*whole[:size], 7]
    assert buffer.ids.tolist() == whole


def test_a_view_is_read_only_and_no_copy() -> None:
    buffer = TokenBuffer([1, 2, 3])
    with pytest.raises(ValueError, match="read-only"):
        buffer.ids[0] = 9
    assert np.shares_memory(buffer.ids, buffer.ids)


@pytest.mark.parametrize("wrong", [[-1], [2**31]])
def test_what_is_no_id_is_refused(wrong: list[int]) -> None:
    buffer = TokenBuffer([1])
    with pytest.raises(ValueError, match="between 0 and"):
        buffer.append(wrong)
    assert buffer.ids.tolist() == [1]
    with pytest.raises(ValueError, match="size is 2: the buffer holds 1"):
        buffer.truncated(2)
