"""The fingerprint of token ids, by which a segment is checked against what an engine was sent."""

from __future__ import annotations

import hashlib
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dressage_segments.errors import InvalidFieldError

_DIGEST_BYTES = 16
_WIRE = np.dtype("<i4")


def _wire_ids(ids: NDArray[np.int32]) -> NDArray[np.int32]:
    if not isinstance(ids, np.ndarray) or ids.dtype != np.int32 or ids.ndim != 1:
        found = f"{ids.dtype} of shape {ids.shape}" if isinstance(ids, np.ndarray) else type(ids).__name__
        raise InvalidFieldError("ids", f"must be a 1-D int32 array, got {found}", "np.asarray(ids, np.int32)")
    return np.ascontiguousarray(ids, _WIRE)


class IdsDigest:
    """blake2b-128 over token ids as little-endian int32, fed piece by piece: O(new) per update.

    The digest of a concatenation does not depend on where it was cut. ``copy`` is O(1), so a branch's
    state can be kept and continued several ways.
    """

    __slots__ = ("_hash", "tokens")

    def __init__(self, ids: NDArray[np.int32] | None = None) -> None:
        self._hash = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        self.tokens = 0
        """How many ids were fed."""
        if ids is not None:
            self.update(ids)

    def update(self, ids: NDArray[np.int32]) -> Self:
        """Feed more ids (int32 [T]); returns self. Raises InvalidFieldError for another dtype or shape."""
        wire = _wire_ids(ids)
        self._hash.update(wire.data)
        self.tokens += len(wire)
        return self

    def copy(self) -> IdsDigest:
        """An independent digest in the same state."""
        twin = IdsDigest.__new__(IdsDigest)
        twin._hash = self._hash.copy()
        twin.tokens = self.tokens
        return twin

    def hexdigest(self) -> str:
        """32 hex digits; may be asked for at any time."""
        return self._hash.hexdigest()


def ids_digest(ids: NDArray[np.int32]) -> str:
    """blake2b-128 hex of int32 ids [T] as little-endian bytes, as :attr:`EngineCall.prompt_digest` has it."""
    return IdsDigest(ids).hexdigest()
