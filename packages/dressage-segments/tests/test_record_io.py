import contextlib
import hashlib
import math

import numpy as np
import pytest
from dressage_segments import (
    BufferFormatError,
    InvalidFieldError,
    LogRecord,
    SegmentsError,
    pack,
    record_from_bytes,
    record_to_bytes,
    turn_from_record,
    turn_to_record,
    unpack,
)
from dressage_segments.record_io import coded_by_numpy
from dressage_segments.synthetic import SyntheticSession
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

DTYPES = ["u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f4", "f8", "?"]
ARRAYS = st.dictionaries(
    st.text(st.characters(exclude_characters="|", exclude_categories=["Cs"]), min_size=1).filter(
        lambda name: name != "__metadata__"
    ),
    st.sampled_from(DTYPES).flatmap(
        lambda code: hnp.arrays(np.dtype(code), hnp.array_shapes(min_dims=0, max_dims=3, min_side=0))
    ),
    max_size=4,
)


def identical(left, right):
    """The same to the bit: NaN and the sign of 0 too."""
    return (left.dtype, left.shape, left.tobytes()) == (right.dtype, right.shape, right.tobytes())


@given(ARRAYS)
def test_columns_of_every_dtype_and_shape_come_back_to_the_bit(arrays):
    again = record_from_bytes(record_to_bytes(LogRecord("note", {"a": 1}, arrays)))
    assert (again.kind, again.meta) == ("note", {"a": 1})
    assert again.arrays.keys() == arrays.keys()
    assert all(identical(again.arrays[name], array) for name, array in arrays.items())


@st.composite
def turns(draw):
    """A turn of any size, whose every number is one that an engine or a recorder may give."""
    new, sampled = draw(st.integers(0, 12)), draw(st.integers(0, 12))
    ids = st.integers(0, draw(st.sampled_from([1, 255, 256, 65_536, 2**24, 2**31 - 1])))
    numbers = st.floats(max_value=0, width=32) | st.sampled_from([math.nan, -math.inf, math.inf, -0.0])
    session = SyntheticSession("s")
    experts = draw(
        st.none() | hnp.arrays(st.sampled_from([np.uint8, np.uint16]), st.tuples(*[st.integers(0, 3)] * 3))
    )
    session.turn(
        draw(st.lists(ids, min_size=new, max_size=new)),
        draw(st.lists(ids, min_size=sampled, max_size=sampled)),
        logprobs=draw(st.lists(numbers, min_size=sampled, max_size=sampled)),
        versions=draw(st.lists(st.integers(-1, 2**31 - 1), min_size=sampled, max_size=sampled)),
        experts=experts,
        cuts=sorted(draw(st.lists(st.integers(0, sampled), max_size=2))),
    )
    return session.tree.turn(0)


@given(turns())
def test_every_column_of_any_turn_comes_back_to_the_bit(turn):
    again = turn_from_record(record_from_bytes(record_to_bytes(turn_to_record(turn))))
    for name in turn.__slots__:
        left, right = getattr(turn, name), getattr(again, name)
        assert identical(left, right) if isinstance(left, np.ndarray) else left == right


def long_turn():
    session = SyntheticSession("s")
    session.turn(np.arange(400) % 151_000, np.arange(100) + 70_000, versions=[3] * 60 + [4] * 40)
    return turn_to_record(session.tree.turn(0))


def test_a_turn_takes_little_more_than_its_ids_and_logprobs():
    record = long_turn()
    columns = record_to_bytes(record), record_to_bytes(LogRecord("turn", record.meta))
    assert len(columns[0]) - len(columns[1]) < 2 * 400 + 3 * 100 + 4 * 100 + 500


@given(turns())
def test_a_turn_is_written_as_its_columns_one_by_one_are(turn):
    record = turn_to_record(turn)
    columns = dict(coded_by_numpy(name, array) for name, array in record.arrays.items())
    _, metadata = unpack(record_to_bytes(record))
    assert record_to_bytes(record) == pack(columns, metadata)


def test_records_have_the_bytes_that_this_schema_always_had():
    session = SyntheticSession("s")
    session.turn(
        range(70_000, 70_400), range(100), versions=[3] * 60 + [4] * 40, keys=['\u00e4"\\', "\ud800"]
    )
    session.turn([*range(9), 2**24], [7] * 100, parent=0, logprobs=np.arange(-100, 0) / 8, cuts=[50])
    session.turn([256] * 9, [3], experts=np.arange(8, dtype=np.uint8).reshape(1, 2, 4), reply="r")
    hashed = hashlib.blake2b(digest_size=16)
    for record in session.log:
        hashed.update(record_to_bytes(record))
    assert hashed.hexdigest() == "212b3f26173b649fe96d7428417d7aab"


def test_a_record_cut_at_any_byte_is_refused():
    data = record_to_bytes(long_turn())
    for size in range(len(data)):
        with pytest.raises(BufferFormatError):
            record_from_bytes(data[:size])


@given(st.data())
def test_a_record_with_any_damage_is_refused_or_still_a_record(data):
    buffer = bytearray(record_to_bytes(long_turn()))
    for _ in range(data.draw(st.integers(1, 4))):
        buffer[data.draw(st.integers(0, len(buffer) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(SegmentsError):
        turn_from_record(record_from_bytes(bytes(buffer)))


def test_columns_of_unknown_forms_are_refused_by_name():
    tensors, metadata = unpack(record_to_bytes(long_turn()))
    numbers = np.zeros(3, np.uint8)
    for name, says in (
        ("x|I32|squares", "squares"),
        ("x|I9", "I9"),
        ("x|F32", "x"),
        ("x|I32|runs", "runs"),
        ("x|I32|runs|runs", "runs"),
        ("output_ids", "twice"),
    ):
        with pytest.raises(BufferFormatError, match=says):
            record_from_bytes(pack({**tensors, name: numbers}, metadata))


def test_a_columns_name_cannot_look_like_a_form():
    with pytest.raises(InvalidFieldError, match="column otherwise"):
        record_to_bytes(LogRecord("note", {}, {"a|I32": np.zeros(1, np.uint8)}))


def test_records_of_the_first_schema_are_read():
    record = long_turn()
    _, metadata = unpack(record_to_bytes(record))
    old = pack({**record.arrays, "a|b": np.zeros(1)}, {**metadata, "schema": "dressage.record/1"})
    again = record_from_bytes(old)
    assert turn_from_record(again).output_ids.tolist() == record.arrays["output_ids"].tolist()
    assert "a|b" in again.arrays


def test_a_record_of_a_later_schema_is_refused_with_both_names():
    tensors, metadata = unpack(record_to_bytes(long_turn()))
    with pytest.raises(BufferFormatError, match=r"record/3.*record/2"):
        record_from_bytes(pack(tensors, {**metadata, "schema": "dressage.record/3"}))


@pytest.mark.parametrize("meta", ["[]", "3", "null", '"x"', "{", "[" * 100_000])
def test_meta_that_is_no_object_is_refused(meta):
    metadata = {"schema": "dressage.record/2", "kind": "note", "meta": meta}
    with pytest.raises(BufferFormatError, match="not a log record"):
        record_from_bytes(pack({}, metadata))


def test_lone_surrogates_that_an_agent_sent_survive():
    meta = {"stop": ["\ud800", "ä"], "\udfff": 1}
    assert record_from_bytes(record_to_bytes(LogRecord("note", meta))).meta == meta
