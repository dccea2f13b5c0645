import pytest
from dressage_segments import BufferFormatError, iter_frames, write_frames
from hypothesis import given
from hypothesis import strategies as st


@given(st.lists(st.binary(max_size=30), max_size=6))
def test_frames_come_back_in_order(buffers):
    assert [bytes(b) for b in iter_frames(write_frames(buffers))] == buffers


def test_a_frame_is_a_little_endian_u64_length_and_the_buffer():
    assert write_frames([b"ab"]) == b"\x02\0\0\0\0\0\0\0ab"


@given(st.lists(st.binary(min_size=1, max_size=9), min_size=1, max_size=3), st.integers(1, 1000))
def test_a_cut_reply_is_refused_not_shortened(buffers, cut):
    whole = write_frames(buffers)
    ends = {len(write_frames(buffers[:n])) for n in range(len(buffers) + 1)}
    size = max(0, len(whole) - cut)
    if size in ends:
        return
    with pytest.raises(BufferFormatError):
        list(iter_frames(whole[:size]))
