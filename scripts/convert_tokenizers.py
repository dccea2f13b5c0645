"""Tokenizers of other formats as a ``tokenizer.json``: tiktoken ranks, Mistral's tekken, GGUF metadata.

Standard library only. Byte-level BPE in every case: a merge of two pieces has the rank of what it makes.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
QWEN35_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

Added = tuple[int, str, bool]
"""Id, text, and whether the tokenizer calls it special."""


def byte_letters() -> list[str]:
    """The printable character that byte-level BPE writes for each byte (GPT-2's rule)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    letters, spare = [], 0
    for byte in range(256):
        letters.append(chr(byte) if byte in printable else chr(0x100 + spare))
        spare += byte not in printable
    return letters


def merges_of(ranks: Mapping[bytes, int]) -> list[tuple[bytes, bytes]]:
    """The merges, in order, that make each token of two or more bytes out of lower ranks."""
    merges = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        if len(token) < 2:
            continue
        parts = [token[i : i + 1] for i in range(len(token))]
        while len(parts) > 2:
            best = min(range(len(parts) - 1), key=lambda i: ranks.get(parts[i] + parts[i + 1], rank))
            if ranks.get(parts[best] + parts[best + 1], rank) >= rank:
                break
            parts[best : best + 2] = [parts[best] + parts[best + 1]]
        if len(parts) == 2:
            merges.append((parts[0], parts[1]))
    return merges


def from_ranks(
    ranks: Mapping[bytes, int], split: str, added: Sequence[Added], *, offset: int = 0, nfc: bool = False
) -> dict[str, Any]:
    """A tokenizer.json of tiktoken ranks; ``offset`` is the id of rank 0."""
    letters = byte_letters()

    def text(token: bytes) -> str:
        return "".join(letters[byte] for byte in token)

    words = {text(token): rank + offset for token, rank in ranks.items()}
    return byte_level_json(
        {**words, **{name: index for index, name, _ in added if index < offset}},
        [[text(a), text(b)] for a, b in merges_of(ranks)],
        [{"type": "Split", "pattern": {"Regex": split}, "behavior": "Isolated", "invert": False}],
        added,
        nfc=nfc,
        whole_words_first=True,
    )


def byte_level_json(
    vocabulary: Mapping[str, int],
    merges: Sequence[Sequence[str]],
    splitters: Sequence[Mapping[str, Any]],
    added: Iterable[Added],
    *,
    nfc: bool = False,
    whole_words_first: bool = False,
    use_regex: bool = False,
) -> dict[str, Any]:
    """A tokenizer.json of a byte-level BPE."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": use_regex}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    model = {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
        "ignore_merges": whole_words_first, "vocab": dict(vocabulary), "merges": [list(m) for m in merges],
    }  # fmt: skip
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": text, **flags, "special": s} for i, text, s in added],
        "normalizer": {"type": "NFC"} if nfc else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splitters, level]},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": model,
    }


def read_tiktoken(path: Path) -> dict[bytes, int]:
    """A .tiktoken file: a base64 token and its rank a line."""
    lines = (line.split() for line in path.read_bytes().splitlines() if line)
    return {base64.b64decode(token): int(rank) for token, rank in lines}


def from_tekken(path: Path, special: Sequence[str]) -> dict[str, Any]:
    """Mistral's tekken file; ``special`` are its first ids' texts, the rest are ``<SPECIAL_n>``."""
    data = json.loads(path.read_text(encoding="utf-8"))
    config = data["config"]
    reserved = config["default_num_special_tokens"]
    kept = data["vocab"][: config["default_vocab_size"] - reserved]
    ranks = {base64.b64decode(item["token_bytes"]): int(item["rank"]) for item in kept}
    names = [*special, *(f"<SPECIAL_{i}>" for i in range(len(special), reserved))]
    added = [(i, name, True) for i, name in enumerate(names)]
    return from_ranks(ranks, config["pattern"], added, offset=reserved)


_SCALARS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}


def read_gguf_metadata(path: Path) -> dict[str, Any]:
    """The key-value part of a GGUF file (format: the GGUF specification of ggml)."""
    with path.open("rb") as file:
        magic, _, _, count = struct.unpack("<4sIQQ", file.read(24))
        if magic != b"GGUF":
            raise ValueError(f"{path} is no GGUF file")
        metadata = {}
        for _ in range(count):
            key = _gguf_text(file)
            metadata[key] = _gguf_value(file, struct.unpack("<I", file.read(4))[0])
    return metadata


def _gguf_text(file: IO[bytes]) -> str:
    return file.read(struct.unpack("<Q", file.read(8))[0]).decode("utf-8")


def _gguf_value(file: IO[bytes], kind: int) -> Any:
    if kind == 8:
        return _gguf_text(file)
    if kind == 9:
        inner, count = struct.unpack("<IQ", file.read(12))
        return [_gguf_value(file, inner) for _ in range(count)]
    code = _SCALARS[kind]
    return struct.unpack(code, file.read(struct.calcsize(code)))[0]


def from_gguf(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The tokenizer of a GGUF file whose splitter is SmolLM's: each digit alone, then GPT-2's rule."""
    if metadata["tokenizer.ggml.pre"] != "smollm":
        raise ValueError(f"the splitter {metadata['tokenizer.ggml.pre']!r} is not known here")
    tokens = metadata["tokenizer.ggml.tokens"]
    control = [i for i, kind in enumerate(metadata["tokenizer.ggml.token_type"]) if kind == 3]
    return byte_level_json(
        {token: index for index, token in enumerate(tokens)},
        [merge.split(" ") for merge in metadata["tokenizer.ggml.merges"]],
        [{"type": "Digits", "individual_digits": True}],
        [(index, tokens[index], True) for index in control],
        use_regex=True,
    )
