"""How byte-level tokenizers spell bytes as characters, and ids read back by a table.

The tokenizers library looks up each id's token anew, and each of its characters. Where a tokenizer's decoder
is ByteLevel alone, the text of ids is the UTF-8 of their bytes joined, and the bytes of an id never change:
the tokenizer is asked for them once.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence, Set
from typing import Any, Self

from tokenizers import Tokenizer
from tokenizers.decoders import Decoder

Json = Mapping[str, Any]


@functools.cache
def spelled_bytes() -> Mapping[int, int]:
    """The characters of the bytes that are not spelled by the Latin-1 character of their own number: what
    cannot be seen is moved up by 256, in order."""
    seen = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in seen]
    return {byte: 256 + place for place, byte in enumerate(hidden)}


@functools.cache
def _read_bytes() -> Mapping[str, int]:
    """Byte by character."""
    moved = spelled_bytes()
    return {chr(moved.get(byte, byte)): byte for byte in range(256)}


def alphabet() -> Set[str]:
    """How each byte is spelled. A vocabulary that lacks one drops that byte."""
    return _read_bytes().keys()


def token_bytes(token: str) -> bytes:
    """What a ByteLevel decoder makes of a token: its bytes, or its UTF-8 where a character spells no byte."""
    read = _read_bytes()
    try:
        return bytes([read[char] for char in token])
    except KeyError:
        return token.encode()


class IdBytes(dict[int, bytes]):
    """The bytes of ids, each found when it is first asked for. May be shared by threads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        self._token = tokenizer.id_to_token

    @classmethod
    def of(cls, tokenizer: Tokenizer, folder: Json) -> Self | None:
        """For a tokenizer and its tokenizer.json; None where its decoder is not proven to be ByteLevel."""
        decoder = json.dumps(folder.get("decoder"))
        return cls(tokenizer) if _is_byte_level(decoder) else None

    def __missing__(self, token: int) -> bytes:
        text = self._token(token)
        if text is None:
            return b""  # the tokenizer passes over what it does not know; not kept: such ids have no bound
        made = self[token] = token_bytes(text)
        return made

    def text(self, ids: Sequence[int]) -> str:
        """The text of ids; bytes that are no UTF-8 become U+FFFD."""
        return b"".join(map(self.__getitem__, ids)).decode("utf-8", "replace")


@functools.lru_cache(maxsize=64)
def _is_byte_level(decoder: str) -> bool:
    """Whether a decoder (JSON) reads tokens as they are read here: by its kind, and in trials."""
    if (json.loads(decoder) or {}).get("type") != "ByteLevel":
        return False
    model = {"type": "BPE", "vocab": {}, "merges": []}
    source = {"version": "1.0", "decoder": json.loads(decoder), "model": model}
    own: Decoder = Tokenizer.from_str(json.dumps(source)).decoder
    tokens = [
        *_read_bytes(),
        "<|a|>",
        "\uff5c",
        "a b",
        "\u2581",
        "\u0120\uff5c",
        "\U0001f600",
        "",
        *"\u0120a\u010a",
    ]
    trials = [tokens, tokens[::-1], *([token] for token in tokens)]
    return all(
        own.decode(trial) == b"".join(map(token_bytes, trial)).decode("utf-8", "replace") for trial in trials
    )
