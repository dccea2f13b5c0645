"""Ids read by a table give the tokenizer's own text, or the table is not used."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dressage_tito import ChatCodec
from dressage_tito.bytelevel import IdBytes, spelled_bytes, token_bytes
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer


class Read:
    """A tokenizer, and its table."""

    def __init__(self, folder: Path) -> None:
        text = (folder / "tokenizer.json").read_text("utf-8")
        self.json: dict[str, Any] = json.loads(text)
        self.tokenizer = Tokenizer.from_str(text)
        table = IdBytes.of(self.tokenizer, self.json)
        assert table is not None
        self.table = table
        self.size = self.tokenizer.get_vocab_size(with_added_tokens=True)
        self.added = [int(item["id"]) for item in self.json["added_tokens"]]
        byte_tokens = [chr(spelled_bytes().get(byte, byte)) for byte in range(256)]
        self.bytes = [self.tokenizer.token_to_id(token) for token in byte_tokens]

    def check(self, ids: list[int]) -> None:
        assert self.table.text(ids) == self.tokenizer.decode(ids, skip_special_tokens=False)

    @property
    def ids(self) -> st.SearchStrategy[list[int]]:
        """Any ids, many of them added ones, single bytes or beyond the vocabulary."""
        known = [token for token in self.bytes if token is not None]
        one = st.sampled_from(known) | st.sampled_from(self.added) | st.integers(0, self.size + 300)
        return st.lists(one, max_size=60)


@pytest.fixture(scope="module")
def read_toy(toy_folder: Path) -> Read:
    return Read(toy_folder)


def test_any_ids_give_the_tokenizers_text(read_toy: Read) -> None:
    @settings(deadline=None)
    @given(read_toy.ids)
    def same(ids: list[int]) -> None:
        read_toy.check(ids)
        read_toy.check(ids)  # from what was kept

    same()


@pytest.mark.parametrize("name", ["qwen3", "deepseek_v3", "gpt-oss", "llama3_1", "mistral-nemo", "qwen3_6"])
def test_real_tokenizers_give_the_same_text(name: str, model_folder: Callable[[str], Path]) -> None:
    read = Read(model_folder(name))

    @settings(deadline=None, max_examples=100)
    @given(read.ids)
    def same(ids: list[int]) -> None:
        read.check(ids)

    same()
    for start in range(0, read.size + 300, 7919):
        read.check(list(range(start, min(start + 97, read.size + 300))))


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_bytes_that_are_no_utf8_become_what_the_tokenizer_makes_of_them(read_toy: Read, data: bytes) -> None:
    read_toy.check([read_toy.bytes[byte] for byte in data])


def test_every_byte_is_spelled_by_a_character_of_its_own() -> None:
    spelled = [chr(spelled_bytes().get(byte, byte)) for byte in range(256)]
    assert len(set(spelled)) == 256
    assert b"".join(map(token_bytes, spelled)) == bytes(range(256))
    assert not any(char.isspace() for char in spelled)


@pytest.mark.parametrize("token", ["a b", "\uff5cUser\uff5c", "\u0120\u2581", "\U0001f600", ""])
def test_a_token_with_a_character_that_spells_no_byte_is_its_text(token: str) -> None:
    assert token_bytes(token) == token.encode()


def test_ids_that_are_in_no_vocabulary_are_passed_over_and_not_kept(read_toy: Read) -> None:
    table = IdBytes.of(read_toy.tokenizer, read_toy.json)
    assert table is not None
    assert table.text([read_toy.size, 2**31 - 1, *range(read_toy.size, read_toy.size + 1000)]) == ""
    assert len(table) == 0
    read_toy.check([read_toy.size, 3, 2**31 - 1])


def test_a_negative_id_is_refused_as_the_tokenizer_refuses_it(toy: ChatCodec) -> None:
    for ids in ([-1], np.array([5, -1], np.int32)):
        with pytest.raises(OverflowError):
            toy.decode(ids)


@pytest.mark.parametrize(
    "decoder",
    [
        None,
        {"type": "WordPiece", "prefix": "##", "cleanup": True},
        {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True},
        {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
        {
            "type": "Sequence",
            "decoders": [{"type": "ByteLevel"}, {"type": "Strip", "content": " ", "start": 1}],
        },
    ],
)
def test_another_decoder_is_not_read_here(read_toy: Read, decoder: object) -> None:
    assert IdBytes.of(read_toy.tokenizer, {**read_toy.json, "decoder": decoder}) is None


def test_a_tokenizer_that_is_not_byte_level_decodes_by_itself(real_codec: Callable[[str], ChatCodec]) -> None:
    codec = real_codec("gemma3")
    ids = codec.encode_sample("two words\n<start_of_turn>")
    assert codec.decode(ids) == "two words\n<start_of_turn>"
