"""The safetensors container, written and read with numpy alone.

Source of the rules: the format's own description (8 bytes of little-endian header length, a JSON header,
then the data): offsets cover the data without holes or overlap, ``__metadata__`` maps strings to strings.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from json.encoder import encode_basestring
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dressage_segments.errors import BufferFormatError, InvalidFieldError

Buffer = bytes | bytearray | memoryview

MAX_HEADER_BYTES = 100_000_000
"""The format's own cap on the header."""

_NAMES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "|i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "|u1",
    "BOOL": "|b1",
}
_DTYPES = {name: np.dtype(code) for name, code in _NAMES.items()}
_WRITTEN = {
    given: (name, dtype) for name, dtype in _DTYPES.items() for given in (dtype.newbyteorder(">"), dtype)
}
"""The name and the little-endian form of each dtype that can be written."""
_METADATA = "__metadata__"
_ALIGNMENT = 8
_LENGTH_BYTES = 8


def dtype_name(dtype: np.dtype[Any]) -> str:
    """The format's name of a dtype. Raises InvalidFieldError for one that it does not name."""
    return _written("dtype", dtype)[0]


def named_dtype(name: str) -> np.dtype[Any]:
    """The dtype of a name. Raises BufferFormatError for a name that the format or numpy lacks."""
    if name not in _DTYPES:
        raise BufferFormatError(f"dtype {name!r} is not known; known: {', '.join(_DTYPES)}")
    return _DTYPES[name]


class Part(NamedTuple):
    """One tensor as it is written. Parts sort as they are written."""

    rank: int
    """Minus the size of an item."""
    name: str
    code: str
    """The format's name of the dtype."""
    shape: str
    """The sizes, with commas between."""
    nbytes: int
    data: bytes | memoryview
    """Little-endian, without holes."""


def part(name: str, array: NDArray[Any]) -> Part:
    """An array as it is written. Raises InvalidFieldError for a dtype that the format does not name."""
    code, dtype = _written(name, array.dtype)
    shape = ",".join(map(str, array.shape))
    data = np.ascontiguousarray(array, dtype).data if array.nbytes else b""
    return Part(-dtype.itemsize, name, code, shape, array.nbytes, data)


def pack(tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str] | None = None) -> bytes:
    """Tensors and string metadata as one safetensors buffer.

    Data starts at a multiple of 8 and larger items come first, so that every tensor is aligned. Raises
    InvalidFieldError for a dtype that the format does not name or metadata that is not text.
    """
    return pack_parts([part(name, array) for name, array in tensors.items()], metadata)


def pack_parts(parts: list[Part], metadata: Mapping[str, str] | None = None) -> bytes:
    """As :func:`pack`, of tensors that have their written form, each name once. Sorts the list."""
    parts.sort()  # No two have one name, so that nothing after it is compared.
    entries = [f'"{_METADATA}":{_metadata_json(metadata)}'] if metadata else []
    data: list[bytes | memoryview] = []
    at = 0
    for _, name, code, shape, nbytes, written in parts:
        if name == _METADATA:
            raise InvalidFieldError(name, "is the format's own key", "name the tensor otherwise")
        end = at + nbytes
        entries.append(
            f'{encode_basestring(name)}:{{"dtype":"{code}","shape":[{shape}],"data_offsets":[{at},{end}]}}'
        )
        data.append(written)
        at = end
    text = _utf8(f"{{{','.join(entries)}}}")
    text += b" " * (-len(text) % _ALIGNMENT)
    return b"".join((len(text).to_bytes(_LENGTH_BYTES, "little"), text, *data))


def _metadata_json(metadata: Mapping[str, str]) -> str:
    pairs = []
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise InvalidFieldError(f"metadata[{key!r}]", "keys and values must be str")
        pairs.append(f"{encode_basestring(key)}:{encode_basestring(value)}")
    return f"{{{','.join(pairs)}}}"


def _written(name: str, dtype: np.dtype[Any]) -> tuple[str, np.dtype[Any]]:
    """The format's name of a dtype, and its little-endian form."""
    found = _WRITTEN.get(dtype)
    if found is None:
        raise InvalidFieldError(name, f"dtype {dtype} has no safetensors name")
    return found


def _utf8(header: str) -> bytes:
    try:
        return header.encode()
    except UnicodeEncodeError as error:
        raise InvalidFieldError(
            "metadata", f"is no Unicode text: {error}", "leave lone surrogates out"
        ) from error


def unpack(buffer: Buffer) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """The tensors (views into ``buffer``, read-only where it is) and the metadata of a safetensors buffer.

    Strict: raises BufferFormatError on a header that is cut, too long or not such JSON, on offsets with
    holes, overlaps or a length that is not the shape's, on bytes left over, and on a dtype that numpy lacks.
    """
    view = memoryview(buffer).cast("B")
    header, start = _read_header(view)
    metadata = _check_metadata(header.pop(_METADATA, None))
    spans = sorted(
        ((name, *_check_entry(name, entry)) for name, entry in header.items()), key=lambda s: (s[3], s[4])
    )
    at = 0
    tensors: dict[str, NDArray[Any]] = {}
    for name, dtype, shape, begin, end in spans:
        if begin != at:
            raise BufferFormatError(f"tensor {name!r} starts at {begin}, but the one before ends at {at}")
        count = 1
        for size in shape:
            count *= size
        if end - begin != count * dtype.itemsize:
            raise BufferFormatError(f"tensor {name!r} spans {end - begin} bytes, its shape {shape} needs "
                                    f"{count * dtype.itemsize}")  # fmt: skip
        if start + end > len(view):
            raise BufferFormatError(
                f"tensor {name!r} ends at {start + end}, past the buffer's {len(view)} bytes"
            )
        flat = np.frombuffer(view, dtype, count, start + begin) if count else np.empty(0, dtype)
        try:
            tensors[name] = flat.reshape(shape)
        except ValueError as error:
            raise BufferFormatError(f"tensor {name!r} has a shape that numpy cannot have: {error}") from error
        at = end
    if start + at != len(view):
        raise BufferFormatError(f"{len(view) - start - at} bytes are left over after the last tensor")
    return tensors, metadata


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise BufferFormatError("the header names a key twice")
    return found


def _no_constants(name: str) -> Any:
    raise BufferFormatError(f"the header holds {name}, which is not JSON")


def _read_header(view: memoryview) -> tuple[dict[str, Any], int]:
    if len(view) < _LENGTH_BYTES:
        raise BufferFormatError(f"{len(view)} bytes cannot hold a safetensors header length")
    size = int.from_bytes(view[:_LENGTH_BYTES], "little")
    if size > MAX_HEADER_BYTES:
        raise BufferFormatError(f"header length {size} is above the format's cap of {MAX_HEADER_BYTES}")
    start = _LENGTH_BYTES + size
    if start > len(view):
        raise BufferFormatError(
            f"header ends at {start}, past the buffer's {len(view)} bytes: it was cut off"
        )
    raw = bytes(view[_LENGTH_BYTES:start])
    if not raw.startswith(b"{"):
        raise BufferFormatError("the header does not start with '{': this is not safetensors")
    try:
        header = json.loads(raw.decode(), object_pairs_hook=_no_duplicates, parse_constant=_no_constants)
    except BufferFormatError:
        raise
    except (ValueError, RecursionError) as error:
        raise BufferFormatError(f"the header is not JSON: {error}") from error
    return header, start


def _check_metadata(found: object) -> dict[str, str]:
    if found is None:
        return {}
    if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
        raise BufferFormatError("__metadata__ must map strings to strings")
    return found


def _is_size(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**64


def _check_entry(name: str, entry: object) -> tuple[np.dtype[Any], tuple[int, ...], int, int]:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise BufferFormatError(f"tensor {name!r} must have exactly dtype, shape and data_offsets")
    shape, offsets = entry["shape"], entry["data_offsets"]
    if not isinstance(shape, list) or not all(map(_is_size, shape)):
        raise BufferFormatError(f"tensor {name!r} has shape {shape!r}, not a list of sizes")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_size, offsets)):
        raise BufferFormatError(f"tensor {name!r} has data_offsets {offsets!r}, not [begin, end]")
    if offsets[0] > offsets[1]:
        raise BufferFormatError(f"tensor {name!r} ends before it begins: {offsets!r}")
    dtype = _DTYPES.get(entry["dtype"]) if isinstance(entry["dtype"], str) else None
    if dtype is None:
        raise BufferFormatError(f"tensor {name!r} has dtype {entry['dtype']!r}; known: {', '.join(_DTYPES)}")
    return dtype, tuple(shape), offsets[0], offsets[1]
