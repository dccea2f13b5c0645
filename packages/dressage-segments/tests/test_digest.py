import hashlib

import numpy as np
import pytest
from dressage_segments import IdsDigest, InvalidFieldError, ids_digest
from hypothesis import given
from hypothesis import strategies as st

int32 = st.integers(-(2**31), 2**31 - 1)


@given(st.lists(int32, max_size=50), st.lists(st.integers(0, 50), max_size=5))
def test_digest_does_not_depend_on_where_the_ids_were_cut(ids, cuts):
    array = np.array(ids, np.int32)
    digest = IdsDigest()
    for piece in np.split(array, sorted(c for c in cuts if c <= len(ids))):
        digest.update(piece)
    assert digest.hexdigest() == ids_digest(array)
    assert digest.tokens == len(ids)


def test_digest_is_blake2b_128_of_little_endian_int32():
    ids = np.array([1, 258, -1], np.int32)
    wire = bytes.fromhex("0100000002010000ffffffff")
    assert ids_digest(ids) == hashlib.blake2b(wire, digest_size=16).hexdigest()


def test_a_copy_goes_its_own_way():
    digest = IdsDigest(np.array([1], np.int32))
    before = digest.hexdigest()
    digest.copy().update(np.array([2], np.int32))
    assert digest.hexdigest() == before


def test_a_strided_view_has_the_digest_of_its_values():
    ids = np.arange(10, dtype=np.int32)
    assert ids_digest(ids[::2]) == ids_digest(ids[::2].copy())


@pytest.mark.parametrize("bad", [np.arange(3), np.zeros((2, 2), np.int32), [1, 2]])
def test_other_types_are_refused_rather_than_cast(bad):
    with pytest.raises(InvalidFieldError, match="ids"):
        ids_digest(bad)
