import json

import numpy as np
import pytest
import safetensors.numpy
from dressage_segments import BufferFormatError, InvalidFieldError, pack, unpack
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError

DTYPES = ["<f8", "<f4", "<f2", "<i8", "<i4", "<i2", "i1", "<u8", "<u4", "<u2", "u1", "?"]

NAMES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "int64": "I64", "int32": "I32", "int16": "I16",
    "int8": "I8", "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip


@st.composite
def tensor_maps(draw):
    names = draw(st.lists(st.text(min_size=1, max_size=6), unique=True, max_size=5))
    found = {}
    for name in names:
        dtype = np.dtype(draw(st.sampled_from(DTYPES)))
        shape = tuple(draw(st.lists(st.integers(0, 4), max_size=3)))
        size = int(np.prod(shape)) * dtype.itemsize
        raw = draw(st.binary(min_size=size, max_size=size))
        if dtype.kind == "b":
            raw = bytes(b & 1 for b in raw)
        found[name] = np.frombuffer(raw, dtype).reshape(shape)
    return found


def same(left, right):
    return left.keys() == right.keys() and all(
        left[k].dtype == right[k].dtype
        and left[k].shape == right[k].shape
        and left[k].tobytes() == right[k].tobytes()
        for k in left
    )


@given(tensor_maps(), st.dictionaries(st.text(max_size=5), st.text(max_size=9), max_size=3))
def test_what_is_packed_is_what_this_reader_and_the_real_one_read(tensors, metadata):
    buffer = pack(tensors, metadata)
    ours, meta = unpack(buffer)
    assert same(ours, tensors)
    assert meta == metadata
    assert same(safetensors.numpy.load(buffer), tensors)


@given(tensor_maps(), st.dictionaries(st.text(max_size=5), st.text(max_size=9), max_size=3))
def test_the_header_is_the_json_that_the_formats_description_spells(tensors, metadata):
    header, at, data = {"__metadata__": metadata} if metadata else {}, 0, b""
    for name in sorted(tensors, key=lambda n: (-tensors[n].dtype.itemsize, n)):
        array = tensors[name]
        end = at + array.nbytes
        code = NAMES[array.dtype.newbyteorder("=").name]
        header[name] = {"dtype": code, "shape": array.shape, "data_offsets": (at, end)}
        data, at = data + array.tobytes(), end
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    assert pack(tensors, metadata) == len(text).to_bytes(8, "little") + text + data


@given(tensor_maps())
def test_what_the_real_library_writes_reads_the_same_here(tensors):
    ours, meta = unpack(safetensors.numpy.save(tensors, {"k": "v"}))
    assert same(ours, tensors)
    assert meta == {"k": "v"}


SAMPLE = pack({"a": np.arange(4, dtype=np.int32), "b": np.zeros((2, 0), np.float32)}, {"x": "y"})


@settings(max_examples=400)
@given(
    st.lists(st.tuples(st.integers(0, len(SAMPLE) - 1), st.integers(0, 255)), min_size=1, max_size=3),
    st.integers(-3, 3),
)
def test_a_damaged_buffer_is_read_as_the_real_reader_reads_it_or_refused(edits, cut):
    data = bytearray(SAMPLE)
    for at, value in edits:
        data[at] = value
    damaged = bytes(data[:cut] if cut < 0 else data + b"\0" * cut)
    try:
        expected = safetensors.numpy.load(damaged)
    except (SafetensorError, KeyError, ValueError, TypeError):
        with pytest.raises(BufferFormatError):
            unpack(damaged)
        return
    found, _ = unpack(damaged)
    assert same(found, expected)


def craft(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(begin, end, shape=(1,), dtype="U8"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("buffer", "says"),
    [
        (b"", "cannot hold"),
        (b"\xff" * 8, "above the format's cap"),
        ((50).to_bytes(8, "little") + b"{}", "cut off"),
        (craft(b"[]"), "not start"),
        (craft(b'{"a"'), "not JSON"),
        (craft(b'{"\xff":1}'), "not JSON"),
        (craft(b'{"__metadata__":{"a":NaN}}'), "NaN"),
        (craft({"__metadata__": {"a": 1}}), "strings to strings"),
        (craft({"a": entry(0, 1)}), "past the buffer"),
        (craft({"a": entry(0, 1)}, b"xy"), "left over"),
        (craft({"a": entry(1, 2)}, b"xy"), "starts at 1"),
        (craft({"a": entry(0, 1), "b": entry(0, 1)}, b"x"), "starts at 0"),
        (craft({"a": entry(0, 2)}, b"xy"), "needs 1"),
        (craft({"a": entry(1, 0)}, b"x"), "ends before"),
        (craft({"a": entry(0, 1, (-1,))}, b"x"), "list of sizes"),
        (craft({"a": entry(0, 1, (True,))}, b"x"), "list of sizes"),
        (craft({"a": entry(0, 2, dtype="BF16")}, b"xy"), "BF16"),
        (craft({"a": {"dtype": "U8", "shape": [1]}}, b"x"), "exactly"),
        (craft({"a": 3}), "exactly"),
        (craft(b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{}}'), "twice"),
        (craft({"a": entry(0, 0, (0, 2**63))}), "numpy cannot have"),
        (craft({"a": entry(0, 0, (2**63, 0))}), "numpy cannot have"),
        (craft({"a": entry(0, 0, (0, 2**40, 2**40))}), "numpy cannot have"),
        (craft({"a": entry(0, 1, (1,) * 70)}, b"x"), "numpy cannot have"),
        (craft(b'{"a":' + b"1" * 5000 + b"}"), "not JSON"),
        (craft(b'{"a":' + b"[" * 100_000), "not JSON"),
    ],
)
def test_each_kind_of_bad_buffer_is_refused_and_the_error_says_why(buffer, says):
    with pytest.raises(BufferFormatError, match=says):
        unpack(buffer)


def test_data_is_aligned_whatever_the_names_and_dtypes():
    tensors = {"z": np.zeros(3, np.uint8), "a": np.zeros(5, np.float64), "m": np.zeros(1, np.int16)}
    for array in unpack(pack(tensors, {"odd": "x" * 13}))[0].values():
        assert array.flags.aligned


def test_reading_copies_nothing():
    buffer = pack({"a": np.arange(1000, dtype=np.int32)})
    array = unpack(buffer)[0]["a"]
    assert np.shares_memory(array, np.frombuffer(buffer, np.uint8))
    assert not array.flags.writeable


@pytest.mark.parametrize(
    ("tensors", "metadata", "field"),
    [
        ({"c": np.zeros(1, np.complex64)}, None, "c"),
        ({"o": np.array([None])}, None, "o"),
        ({"__metadata__": np.zeros(1, np.uint8)}, None, "__metadata__"),
        ({}, {"a": 1}, "metadata"),
        ({}, {"a": "\ud800"}, "metadata"),
        ({"\ud800": np.zeros(1)}, None, "metadata"),
    ],
)
def test_what_the_format_cannot_hold_is_refused_by_name(tensors, metadata, field):
    with pytest.raises(InvalidFieldError, match=field):
        pack(tensors, metadata)


def test_big_endian_and_strided_arrays_are_written_by_value():
    tensors = {"b": np.arange(6, dtype=">i4")[::2], "t": np.arange(6, dtype=np.int16).reshape(2, 3).T}
    read = unpack(pack(tensors))[0]
    assert read["b"].tolist() == [0, 2, 4]
    assert read["t"].tolist() == [[0, 3], [1, 4], [2, 5]]
