"""Routed experts (R3) of an engine's reply: base64 of int32 as the wire has them, small integers here.

A reply may carry tens of MiB of them: their text is taken out of the body before the JSON is read, and only
the rows that are new are decoded, in pieces that do not hold the interpreter for long.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import orjson
import pybase64
from numpy.typing import NDArray

from dressage_proxy.errors import ConfigError

Experts: TypeAlias = "NDArray[np.uint8] | NDArray[np.uint16]"

_KEY = b'"routed_experts"'
_VALUE = re.compile(rb'\s*:\s*"')
_PIECE_CHARS = 1 << 20
_WIRE = np.dtype("<i4")
_MAX_EXPERTS = 1 << 16
_COUNTS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
_TOPK = ("num_experts_per_tok", "moe_topk", "num_experts_per_token", "moe_k")


@dataclass(frozen=True, slots=True)
class ExpertsShape:
    """What a model's router chooses: for each of ``layers``, ``topk`` of ``experts``."""

    layers: int
    topk: int
    experts: int

    def __post_init__(self) -> None:
        if min(self.layers, self.topk, self.experts) < 1 or self.topk > self.experts:
            raise ConfigError(
                f"routed_experts: {self} is no shape: give layers, topk and experts, each at least 1"
            )
        if self.experts > _MAX_EXPERTS:
            raise ConfigError(f"routed_experts: {self.experts} experts do not fit uint16")

    @property
    def dtype(self) -> type[np.uint8] | type[np.uint16]:
        """What holds an expert's number."""
        return np.uint8 if self.experts <= 256 else np.uint16

    @property
    def row_bytes(self) -> int:
        """Bytes of one token on the wire."""
        return self.layers * self.topk * _WIRE.itemsize

    @classmethod
    def from_model(cls, folder: Path) -> ExpertsShape:
        """The shape that a checkpoint's ``config.json`` names. Raises ConfigError naming what it lacks."""
        path = folder / "config.json"
        try:
            config: dict[str, Any] = orjson.loads(path.read_bytes())
        except (OSError, orjson.JSONDecodeError) as error:
            raise ConfigError(f"routed_experts: {path}: {error}; give LAYERS,TOPK,EXPERTS instead") from error
        text = config.get("text_config", config)
        found = [_first(text, names) for names in (("num_hidden_layers",), _TOPK, _COUNTS)]
        if None in found:
            raise ConfigError(
                f"routed_experts: {path} describes no mixture of experts; give LAYERS,TOPK,EXPERTS"
            )
        return cls(*(int(value) for value in found if value is not None))


def _first(config: dict[str, Any], names: tuple[str, ...]) -> int | None:
    return next((config[name] for name in names if isinstance(config.get(name), int)), None)


@dataclass(frozen=True, slots=True)
class ExpertsAsk:
    """Asks a call for the rows from token position ``start`` on."""

    shape: ExpertsShape
    start: int


def cut_experts(body: bytes) -> tuple[bytes, memoryview | None]:
    """The body with the experts' text emptied, and that text; None where the body has none.

    The key with its quotes cannot stand inside a JSON string, where a quote is escaped, and base64 has no
    quote: so that no JSON need be read to find the two ends.
    """
    key = body.find(_KEY)
    value = _VALUE.match(body, key + len(_KEY)) if key >= 0 else None
    if value is None:
        return body, None
    end = body.find(b'"', value.end())
    if end < 0:
        return body, None
    return body[: value.end()] + body[end:], memoryview(body)[value.end() : end]


def decode_experts(text: memoryview, ask: ExpertsAsk, tokens: int) -> Experts | None:
    """The rows of positions ``ask.start`` … ``tokens - 2``: uint8 or uint16 [R, layers, topk].

    ``tokens`` are the call's prompt and output; the last token was sampled and never routed. Engines that do
    not know ``routed_experts_start_len`` send all rows: the first are skipped. None where the text is no
    base64, has another number of rows or names an expert that the model does not have.
    """
    shape, start = ask.shape, ask.start
    size = _decoded_size(text)
    rows = max(0, tokens - 1 - start)
    skipped = size - rows * shape.row_bytes
    if skipped not in (0, start * shape.row_bytes):
        return None
    made: Any = np.empty((rows, shape.layers, shape.topk), shape.dtype)
    flat = made.reshape(-1)
    # From a multiple of 3 bytes, which is one of 4 characters, so that base64 can be entered there.
    at = skipped - skipped % 3
    carried = b""
    done = -(skipped % 3)  # bytes of the row before, to be thrown away
    filled = 0
    position = at // 3 * 4
    try:
        while position < len(text):
            piece = carried + pybase64.b64decode(text[position : position + _PIECE_CHARS], validate=True)
            position += _PIECE_CHARS
            if done < 0:
                piece, done = piece[-done:], 0
            whole = len(piece) - len(piece) % _WIRE.itemsize
            numbers = np.frombuffer(piece, _WIRE, whole // _WIRE.itemsize)
            carried = piece[whole:]
            if len(numbers) and (numbers.min() < 0 or numbers.max() >= shape.experts):
                return None
            flat[filled : filled + len(numbers)] = numbers
            filled += len(numbers)
    except ValueError:  # binascii.Error: no base64
        return None
    return made if filled == len(flat) and not carried else None


def _decoded_size(text: memoryview) -> int:
    padding = bytes(text[-2:]).count(b"=")
    return len(text) // 4 * 3 - padding if len(text) % 4 == 0 else -1
