import dataclasses
import json

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from dressage_segments import (
    BufferFormatError,
    InvalidFieldError,
    pack,
    segment_from_bytes,
    segment_to_bytes,
    trajectory_from_bytes,
    trajectory_to_bytes,
    unpack,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

ANY_FIXTURE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def equal(left, right):
    for field in dataclasses.fields(left):
        a, b = getattr(left, field.name), getattr(right, field.name)
        if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
            if not np.array_equal(a, b) or a.dtype != b.dtype:
                return False
        elif a != b:
            return False
    return True


@pytest.fixture
def segment(episode, finished):
    return finished(episode)[0].segments[0]


def test_the_buffer_has_the_tensors_and_dtypes_of_the_contract(segment):
    tensors = safetensors.numpy.load(segment_to_bytes(segment))
    assert {name: str(array.dtype) for name, array in tensors.items()} == {
        "token_ids": "int32",
        "logprobs": "float32",
        "loss_mask": "uint8",
        "origin": "uint8",
        "version": "int32",
        "call": "int32",
        "offset": "int32",
    }


def test_the_header_has_the_metadata_of_the_contract(segment, tmp_path):
    path = tmp_path / "segment.safetensors"
    path.write_bytes(segment_to_bytes(segment))
    with safetensors.safe_open(path, "numpy") as file:
        meta = file.metadata()
    assert meta["schema"] == "dressage.segment/1"
    assert (meta["session_id"], meta["group_id"], meta["kind"]) == ("ep", "g-ep", "main")
    assert json.loads(meta["segment_index"]) == 0
    assert json.loads(meta["parent"]) == -1
    assert json.loads(meta["anchor"]) is segment.anchor
    assert json.loads(meta["sampling"]) == {"temperature": 1.0}
    assert json.loads(meta["calls"]) == list(segment.calls)
    assert meta["failure_class"] == "completed"
    assert set(meta) == {
        "schema", "session_id", "instance_id", "group_id", "rollout_id", "segment_index", "kind", "parent",
        "branch_offset", "cut_reason", "anchor", "tools_hash", "sampling", "finish_reason", "failure_class",
        "calls",
    }  # fmt: skip


@ANY_FIXTURE
@given(st.integers(0, 10_000))
def test_segments_and_trajectories_come_back_whole(random_trajectory, seed):
    _, trajectory, _ = random_trajectory(seed)
    read = trajectory_from_bytes(trajectory_to_bytes(trajectory))
    for before, after in zip(trajectory.segments, read.segments, strict=True):
        assert equal(before, after)
        assert equal(before, segment_from_bytes(segment_to_bytes(before)))
    assert dataclasses.replace(read, segments=()) == dataclasses.replace(trajectory, segments=())


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_experts_travel_with_their_rows(segment, dtype):
    rows = np.array([0, 2], np.int32)
    routed = dataclasses.replace(segment, experts=np.ones((2, 3, 4), dtype), experts_rows=rows)
    assert equal(routed, segment_from_bytes(segment_to_bytes(routed)))


@pytest.mark.parametrize(
    "change",
    [
        {"experts": np.ones((2, 3, 4), np.uint8)},
        {"experts_rows": np.zeros(2, np.int32)},
        {"experts": np.ones((2, 3, 4), np.int32), "experts_rows": np.zeros(2, np.int32)},
        {"experts": np.ones((2, 3), np.uint8), "experts_rows": np.zeros(2, np.int32)},
        {"experts": np.ones((2, 3, 4), np.uint8), "experts_rows": np.zeros(3, np.int32)},
    ],
)
def test_experts_of_another_shape_or_dtype_are_refused(segment, change):
    with pytest.raises(InvalidFieldError, match="experts"):
        dataclasses.replace(segment, **change)


def test_experts_rows_outside_the_segment_are_refused(segment):
    rows = np.array([len(segment)], np.int32)
    routed = dataclasses.replace(segment, experts=np.ones((1, 1, 1), np.uint8), experts_rows=rows)
    with pytest.raises(InvalidFieldError, match="experts_rows"):
        segment_from_bytes(segment_to_bytes(routed))


@pytest.mark.parametrize(
    ("column", "at", "value"),
    [
        ("token_ids", 0, -1),
        ("loss_mask", 3, 2),
        ("loss_mask", 0, 1),
        ("origin", 0, 4),
        ("version", 0, 1),
        ("version", 3, -2),
        ("call", 3, 99),
        ("call", 3, -1),
        ("call", 0, 0),
        ("offset", 0, 0),
        ("offset", 3, -1),
        ("logprobs", 0, -0.5),
        ("logprobs", 3, np.nan),
        ("logprobs", 3, 0.5),
        ("logprobs", 3, -np.inf),
    ],
)
def test_a_value_that_breaks_the_contract_is_refused_with_its_column(segment, changed, column, at, value):
    with pytest.raises(InvalidFieldError, match=column):
        segment_from_bytes(segment_to_bytes(changed(segment, column, at, value)))


@pytest.mark.parametrize(
    "column", ["token_ids", "logprobs", "loss_mask", "origin", "version", "call", "offset"]
)
def test_a_column_of_another_length_or_dtype_is_refused_when_built(segment, column):
    array = getattr(segment, column)
    with pytest.raises(InvalidFieldError):
        dataclasses.replace(segment, **{column: array[:-1]})
    with pytest.raises(InvalidFieldError, match=column):
        dataclasses.replace(segment, **{column: array.astype(np.int64)})
    with pytest.raises(InvalidFieldError, match=column):
        dataclasses.replace(segment, **{column: array.tolist()})


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("schema", "dressage.segment/9", "schema"),
        ("schema", None, "schema"),
        ("kind", "side", "kind"),
        ("failure_class", "sad", "failure_class"),
        ("anchor", "1", "anchor"),
        ("segment_index", "x", "segment_index"),
        ("calls", "[1]", "calls"),
        ("calls", None, "calls"),
        ("session_id", None, "session_id"),
    ],
)
def test_metadata_that_is_not_a_segments_is_refused_by_name(segment, key, value, says):
    tensors, meta = unpack(segment_to_bytes(segment))
    if value is None:
        del meta[key]
    else:
        meta[key] = value
    with pytest.raises(BufferFormatError, match=says):
        segment_from_bytes(pack(tensors, meta))


def test_missing_and_unknown_tensors_are_refused_by_name(segment):
    tensors, meta = unpack(segment_to_bytes(segment))
    with pytest.raises(BufferFormatError, match="rewards"):
        segment_from_bytes(pack({**tensors, "rewards": tensors["version"]}, meta))
    del tensors["version"]
    with pytest.raises(BufferFormatError, match="version"):
        segment_from_bytes(pack(tensors, meta))


def test_outcomes_that_json_cannot_hold_are_refused_by_name(episode, finished):
    trajectory, _ = finished(episode)
    with pytest.raises(InvalidFieldError, match="outcome"):
        trajectory_to_bytes(dataclasses.replace(trajectory, outcome={"reward": float("nan")}))


@pytest.mark.parametrize(
    "change",
    [
        {"trained_tokens": 4},
        {"lost_tokens": {"retry": 7}},
        {"lost_tokens": {"bad_luck": 1}},
        {"lost_tokens": {"retry": -1}},
        {"segments": ()},
        {"rollout_id": "other"},
    ],
)
def test_a_trajectory_whose_account_does_not_add_up_is_refused(episode, finished, change):
    trajectory, _ = finished(episode)
    with pytest.raises(InvalidFieldError):
        dataclasses.replace(trajectory, **change).validate()
