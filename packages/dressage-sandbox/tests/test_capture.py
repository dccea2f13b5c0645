from __future__ import annotations

from dressage_sandbox.inside.capture import MARK, Capture
from hypothesis import given
from hypothesis import strategies as st

PIECES = st.lists(st.binary(max_size=700), max_size=12)


def capture(limit: int, pieces: list[bytes]) -> Capture:
    taken = Capture(limit)
    for piece in pieces:
        taken.add(piece)
    return taken


@given(st.integers(1, 3000), PIECES)
def test_the_count_is_true_and_the_bound_holds(limit: int, pieces: list[bytes]) -> None:
    taken = capture(limit, pieces)
    whole = b"".join(pieces)
    kept = taken.kept()
    assert taken.total == len(whole)
    assert len(kept) <= limit
    if len(whole) <= limit:
        assert kept == whole


@given(st.integers(600, 3000), PIECES)
def test_what_is_kept_is_head_mark_and_tail(limit: int, pieces: list[bytes]) -> None:
    whole = b"".join(pieces)
    kept = capture(limit, pieces).kept()
    if len(whole) > limit:
        head, mark, tail = kept.partition(MARK)
        assert mark == MARK
        assert whole.startswith(head)
        assert whole.endswith(tail)
        assert len(head) + len(tail) >= limit // 2 - len(MARK)


@given(st.integers(1, 3000), st.binary(max_size=6000), st.lists(st.integers(1, 999), min_size=1, max_size=5))
def test_the_result_depends_on_the_bytes_and_not_on_how_they_arrived(
    limit: int, whole: bytes, sizes: list[int]
) -> None:
    pieces, at, turn = [], 0, 0
    while at < len(whole):
        pieces.append(whole[at : at + sizes[turn % len(sizes)]])
        at += len(pieces[-1])
        turn += 1
    assert capture(limit, pieces).kept() == capture(limit, [whole]).kept()
