import dataclasses
import json
import zlib

import numpy as np
import pytest
import safetensors.numpy
from dressage_segments import (
    COLUMNS,
    ROOT,
    BranchKind,
    BufferFormatError,
    FailureClass,
    Final,
    InvalidFieldError,
    Segment,
    SegmentsError,
    Trajectory,
    audit,
    finalize,
    pack,
    segment_to_bytes,
    trajectory_from_bytes,
    trajectory_to_bytes,
    unpack,
)
from dressage_segments.synthetic import SyntheticSession
from dressage_segments.validation import LOGPROB_TOLERANCE
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

ANY_FIXTURE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
ZEROS = b"0" * 8


def identical(left, right):
    """Every field and every column, to the bit."""
    if isinstance(left, np.ndarray):
        return (left.dtype, left.shape, left.tobytes()) == (right.dtype, right.shape, right.tobytes())
    if dataclasses.is_dataclass(left):
        return all(identical(getattr(left, f.name), getattr(right, f.name)) for f in dataclasses.fields(left))
    if isinstance(left, tuple):
        return len(left) == len(right) and all(map(identical, left, right))
    return left == right


def through_bytes(trajectory):
    return trajectory_from_bytes(trajectory_to_bytes(trajectory))


def signed(tensors, metadata):
    """A buffer with a right checksum, whatever is in it."""
    data = pack(tensors, {**{"crc32": ZEROS.decode()}, **metadata, "crc32": ZEROS.decode()})
    at = data.index(b'"crc32":"') + 9
    return data[:at] + f"{zlib.crc32(data):08x}".encode() + data[at + 8 :]


# -- any trajectory that keeps the contract -----------------------------------------------------------------

LOGPROBS = st.floats(max_value=float(np.float32(0.99 * LOGPROB_TOLERANCE)), allow_infinity=False, width=32)


@st.composite
def spans(draw, number, most_id):
    """One stretch of a segment: prompt, bridge or environment, or what one engine call sampled."""
    size = draw(st.integers(0, 5))
    ids = draw(st.lists(st.integers(0, most_id), min_size=size, max_size=size))
    origin = draw(st.sampled_from([0, 1, 1, 2, 3]))
    if origin != 1:
        return [(token, 0.0, 0, origin, -1, -1, -1) for token in ids]
    first, step = draw(st.integers(0, 3)), draw(st.sampled_from([1, 1, 1, 0, 2]))
    masks = st.integers(0, 1) if draw(st.booleans()) else st.just(draw(st.integers(0, 1)))
    versions = st.sampled_from(draw(st.lists(st.integers(-1, 2**31 - 1), min_size=1, max_size=2)))
    return [
        (token, draw(LOGPROBS), draw(masks), 1, draw(versions), number, first + place * step)
        for place, token in enumerate(ids)
    ]


def columns_of(rows):
    table = list(zip(*rows, strict=True)) if rows else [[]] * len(COLUMNS)
    return {name: np.array(values, COLUMNS[name]) for name, values in zip(COLUMNS, table, strict=True)}


@st.composite
def segments(draw, index, earlier):
    """A segment with columns of its own, after its parent's first tokens or after others."""
    branch = draw(st.booleans()) if earlier else False
    parent = draw(st.integers(0, len(earlier) - 1)) if branch else -1
    most_id = draw(st.sampled_from([9, 255, 65_535, 2**24 - 1, 2**31 - 1]))
    calls = list(earlier[parent].calls) if branch else []
    offset = draw(st.integers(0, len(earlier[parent]))) if branch else 0
    calls += [f"{index}-{number}" for number in range(3)]
    first = len(calls) - 3
    rows = [row for number in range(3) for row in draw(spans(first + number, most_id))]
    columns = columns_of(rows)
    if branch:
        before = {name: getattr(earlier[parent], name)[:offset].copy() for name in COLUMNS}
        before["loss_mask"][:] = 0
        if offset and draw(st.booleans()):
            before["token_ids"][draw(st.integers(0, offset - 1))] ^= 1
        columns = {name: np.concatenate((before[name], columns[name])) for name in COLUMNS}
    return Segment(
        session_id="s",
        instance_id="i",
        group_id="g",
        rollout_id="r",
        segment_index=index,
        kind=draw(st.sampled_from(list(BranchKind))),
        calls=tuple(calls),
        parent=parent,
        branch_offset=offset,
        cut_reason=draw(st.text(st.characters(exclude_categories=["Cs"]), max_size=3)),
        sampling=draw(st.dictionaries(st.text(max_size=2), st.floats(allow_nan=False, allow_infinity=False))),
        **columns,
        **draw(experts(len(columns["token_ids"]), earlier[parent] if branch else None, offset)),
    )


@st.composite
def experts(draw, tokens, parent, offset):
    if not draw(st.booleans()):
        return {}
    rows = np.array(sorted(draw(st.sets(st.integers(0, tokens - 1)))) if tokens else [], np.int32)
    dtype, shape = draw(st.sampled_from([(np.uint8, (2, 3)), (np.uint16, (1, 1)), (np.uint16, (2, 0))]))
    routed = (
        np.random.default_rng(draw(st.integers(0, 9))).integers(0, 200, (len(rows), *shape)).astype(dtype)
    )
    if parent is not None and parent.experts is not None and draw(st.booleans()):
        count = int((parent.experts_rows < offset).sum())
        own = rows >= offset
        rows = np.concatenate((parent.experts_rows[:count], rows[own]))
        tail = np.resize(np.arange(7, dtype=parent.experts.dtype), (own.sum(), *parent.experts.shape[1:]))
        routed = np.concatenate((parent.experts[:count], tail))
    return {"experts": routed, "experts_rows": rows}


@st.composite
def trajectories(draw):
    made = []
    for index in range(draw(st.integers(0, 4))):
        made.append(draw(segments(index, made)))
    if made:
        anchor = draw(st.integers(0, len(made) - 1))
        made = [dataclasses.replace(s, anchor=s.segment_index == anchor) for s in made]
    trained = sum(segment.trained_tokens for segment in made)
    lost = draw(st.dictionaries(st.sampled_from(["retry", "stale"]), st.integers(0, 99)))
    outcome = draw(st.dictionaries(st.text(max_size=3), st.none() | st.integers() | st.text(max_size=3)))
    return Trajectory(
        session_id="s",
        instance_id="i",
        group_id="g",
        rollout_id="r",
        generation=draw(st.integers(0, 2**40)),
        segments=tuple(made),
        failure_class=FailureClass.COMPLETED,
        outcome=outcome,
        sampled_tokens=trained + sum(lost.values()),
        trained_tokens=trained,
        lost_tokens=lost,
    )


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(trajectories())
def test_every_trajectory_that_keeps_the_contract_comes_back_to_the_bit(trajectory):
    again = through_bytes(trajectory)
    assert identical(trajectory, again)
    assert [segment_to_bytes(s) for s in again.segments] == [segment_to_bytes(s) for s in trajectory.segments]


@ANY_FIXTURE
@given(st.integers(0, 10_000))
def test_sessions_of_every_shape_come_back_to_the_bit(random_trajectory, seed):
    _, trajectory, _ = random_trajectory(seed)
    assert identical(trajectory, through_bytes(trajectory))


def test_a_read_trajectory_does_not_hang_on_the_buffer():
    data = bytearray(trajectory_to_bytes(finished_long()))
    read = trajectory_from_bytes(data)
    data[:] = bytes(len(data))
    assert identical(read, finished_long())


# -- size ---------------------------------------------------------------------------------------------------

FINAL = Final(1, FailureClass.COMPLETED, {"reward": 1.0})


def finished_long(turns=8, new=400, sampled=100, most_id=150_000, branches=0):
    session, parent, draw = SyntheticSession("s"), ROOT, np.random.default_rng(0)
    for number in range(turns):
        delta, output = draw.integers(0, most_id, new), draw.integers(0, most_id, sampled)
        parent = session.turn(delta, output, parent=parent, keys=[f"m{number}"])
    for number in range(branches):
        session.turn([number], [1, 2], parent=parent, keys=[f"branch {number}"])
    return finalize(session.tree, FINAL)


@pytest.mark.parametrize(
    ("sampled", "most_id", "per_token"), [(100, 150_000, 4), (100, 60_000, 3), (400, 150_000, 5.2)]
)
def test_a_token_at_rest_takes_its_id_and_where_sampled_its_logprob(sampled, most_id, per_token):
    trajectory = finished_long(turns=20, sampled=sampled, most_id=most_id)
    tokens = sum(map(len, trajectory.segments))
    assert len(trajectory_to_bytes(trajectory)) / tokens < per_token + 0.3


def test_a_prefix_is_stored_once_however_many_branches_have_it():
    one, many = (len(trajectory_to_bytes(finished_long(branches=n))) for n in (1, 21))
    assert (many - one) / 20 < 500


# -- damage -------------------------------------------------------------------------------------------------


def test_damage_of_any_byte_is_refused(random_trajectory):
    good = trajectory_to_bytes(random_trajectory(5)[1])
    for at in range(len(good)):
        for flip in (0x01, 0x20, 0xFF):
            damaged = bytearray(good)
            damaged[at] ^= flip
            with pytest.raises(BufferFormatError):
                trajectory_from_bytes(bytes(damaged))


def test_a_buffer_cut_at_any_byte_or_with_more_at_its_end_is_refused(random_trajectory):
    good = trajectory_to_bytes(random_trajectory(5)[1])
    for size in range(len(good)):
        with pytest.raises(BufferFormatError):
            trajectory_from_bytes(good[:size])
    with pytest.raises(BufferFormatError, match="checksum"):
        trajectory_from_bytes(good + b"\0")


OTHERS = (None, True, -1, 0, 1, 2, 2**40, 2.5, "x", [], [1], {}, {"x": 1})


def test_headers_that_are_no_segments_are_refused_even_where_the_checksum_is_right(episode, finished):
    tensors, metadata = unpack(trajectory_to_bytes(finished(episode)[0]))
    headers = json.loads(metadata["segments"])
    refused = 0
    for at, header in enumerate(headers):
        for name in header:
            values = [
                *OTHERS,
                *([n if at == place else 0 for at in range(3)] for place in range(3) for n in (1, 99)),
            ]
            for value in values:
                changed = [*headers[:at], {**header, name: value}, *headers[at + 1 :]]
                refused += not reads(tensors, {**metadata, "segments": json.dumps(changed)})
            less = {key: v for key, v in header.items() if key != name}
            assert not reads(
                tensors, {**metadata, "segments": json.dumps([*headers[:at], less, *headers[at + 1 :]])}
            )
    assert refused > 300
    for text in ("{}", "[]", "[1]", "[null]", "x", "[" * 100_000):
        assert not reads(tensors, {**metadata, "segments": text})
    for name in metadata.keys() - {"crc32"}:
        assert not reads(tensors, {key: v for key, v in metadata.items() if key != name}), name
        for other in OTHERS[:2]:
            reads(tensors, {**metadata, name: json.dumps(other)})


def reads(tensors, metadata):
    """Whether a buffer of these is read; anything but this package's errors breaks the test."""
    try:
        trajectory_from_bytes(signed(tensors, metadata))
    except SegmentsError:
        return False
    return True


@given(st.data())
def test_tensors_of_other_values_shapes_and_dtypes_are_refused_or_keep_the_contract(data):
    tensors, metadata = unpack(trajectory_to_bytes(routed(np.uint8)))
    name = data.draw(st.sampled_from(sorted(tensors)))
    array = tensors[name].copy()
    change = data.draw(st.sampled_from(["value", "dtype", "shorter", "longer", "flat", "none", "more"]))
    if change == "value":
        place = data.draw(st.integers(0, array.size - 1))
        array.reshape(-1)[place] = data.draw(
            st.sampled_from([0, 1, 5, 255 if array.itemsize == 1 else 2**31 - 1])
        )
        if array.dtype.kind != "u" and data.draw(st.booleans()):
            array.reshape(-1)[place] *= -1
    elif change == "dtype":
        array = array.astype(data.draw(st.sampled_from(["u1", "i2", "u2", "i4", "i8", "f4", "f8", "?"])))
    elif change == "shorter":
        array = array[:-1]
    elif change == "longer":
        array = np.concatenate((array, array[-1:]))
    elif change == "flat":
        array = array.reshape(-1, 1)
    changed = {**tensors, name: array}
    if change == "none":
        del changed[name]
    elif change == "more":
        changed[
            data.draw(st.sampled_from(["x", "9.experts", "0.call", ".experts", "0.experts_rows.experts"]))
        ] = array
    assert reads(tensors, metadata)
    if reads(changed, metadata):
        assert change in ("value", "dtype") or array.shape == tensors[name].shape
    if change in ("none", "more", "longer"):
        assert not reads(changed, metadata)


def routed(dtype):
    session = SyntheticSession("s")
    rows = np.arange(40).reshape(5, 2, 4).astype(dtype)
    first = session.turn([1, 2, 3], [10, 11], experts=rows[:4])
    session.turn([4], [12], parent=first, experts=rows[:2], experts_start=4, keys=["a"])
    session.turn([5, 6], [13], parent=first, experts=rows[1:4], experts_start=4, keys=["b"])
    return finalize(session.tree, FINAL)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_experts_that_branches_share_are_stored_once_and_come_back_in_each(dtype):
    trajectory = routed(dtype)
    data = trajectory_to_bytes(trajectory)
    assert len(unpack(data)[0]["1.experts"]) == 3
    assert identical(trajectory, trajectory_from_bytes(data))


# -- schemas ------------------------------------------------------------------------------------------------


def test_it_is_a_safetensors_buffer_whose_header_names_its_schema(episode, finished, tmp_path):
    data = trajectory_to_bytes(finished(episode)[0])
    assert {"token_ids", "logprobs", "runs"} <= safetensors.numpy.load(data).keys()
    assert unpack(data)[1]["schema"] == "dressage.trajectory/2"


def first_schema(trajectory):
    """As the first version wrote it: every column of every segment, each header as on the wire."""
    tensors, headers = {}, []
    for index, segment in enumerate(trajectory.segments):
        columns, metadata = unpack(segment_to_bytes(segment))
        tensors |= {f"{index}.{name}": column for name, column in columns.items()}
        headers.append({name: value for name, value in metadata.items() if name != "schema"})
    _, metadata = unpack(trajectory_to_bytes(trajectory))
    del metadata["crc32"]
    return tensors, {**metadata, "schema": "dressage.trajectory/1", "segments": json.dumps(headers)}


@ANY_FIXTURE
@given(st.integers(0, 1000))
def test_trajectories_of_the_first_schema_are_read(random_trajectory, seed):
    _, trajectory, _ = random_trajectory(seed)
    assert identical(trajectory, trajectory_from_bytes(pack(*first_schema(trajectory))))


def test_a_trajectory_of_the_first_schema_with_stray_tensors_or_headers_is_refused(episode, finished):
    tensors, metadata = first_schema(finished(episode)[0])
    with pytest.raises(BufferFormatError, match=r"9\.call"):
        trajectory_from_bytes(pack({**tensors, "9.call": tensors["0.call"]}, metadata))
    with pytest.raises(BufferFormatError, match="strings"):
        trajectory_from_bytes(pack({}, {**metadata, "segments": "[1]"}))


@pytest.mark.parametrize(
    ("schema", "says"), [("dressage.trajectory/3", "trajectory/3"), ("dressage.segment/1", "segment/1")]
)
def test_a_schema_that_this_reader_does_not_know_is_refused_by_name(episode, finished, schema, says):
    tensors, metadata = unpack(trajectory_to_bytes(finished(episode)[0]))
    with pytest.raises(BufferFormatError, match=says):
        trajectory_from_bytes(signed(tensors, {**metadata, "schema": schema}))
    with pytest.raises(BufferFormatError, match=says):
        trajectory_from_bytes(pack(tensors, {"schema": schema}))


def test_a_trajectory_that_breaks_its_contract_is_not_written(episode, finished):
    trajectory, _ = finished(episode)
    with pytest.raises(InvalidFieldError, match="anchor"):
        trajectory_to_bytes(
            dataclasses.replace(
                trajectory, segments=tuple(dataclasses.replace(s, anchor=True) for s in trajectory.segments)
            )
        )


@pytest.mark.parametrize("generation", [-1, 2**63])
def test_a_generation_that_no_store_can_keep_is_refused(episode, finished, generation):
    trajectory, _ = finished(episode)
    with pytest.raises(InvalidFieldError, match="generation"):
        trajectory_to_bytes(dataclasses.replace(trajectory, generation=generation))


@pytest.mark.parametrize("seed", range(4))
def test_what_was_changed_at_rest_under_a_right_checksum_is_found_by_the_audit(random_trajectory, seed):
    """The log is the evidence: no number of the stored trajectory is proven by the trajectory itself."""
    _, trajectory, log = random_trajectory(seed, 20)
    tensors, metadata = unpack(trajectory_to_bytes(trajectory))
    assert audit(log, trajectory_from_bytes(signed(tensors, metadata))).ok
    found = set()
    for name, array in tensors.items():
        for place in range(array.size):
            changed = array.copy()
            changed.reshape(-1)[place] += -0.25 if name == "logprobs" else 1
            try:
                forged = trajectory_from_bytes(signed({**tensors, name: changed}, metadata))
            except SegmentsError:
                continue
            found.add(name)
            assert not audit(log, forged).ok, (name, place)
    assert found == {"token_ids", "logprobs", "runs"}
