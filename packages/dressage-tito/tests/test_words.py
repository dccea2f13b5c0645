"""Word by word gives the tokenizer's own ids, or is not used."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from dressage_tito import ChatCodec, Message, Refusal
from dressage_tito.tokens import Tokens
from dressage_tito.words import Words, chunks
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

ascii_texts = st.text(st.characters(max_codepoint=127), max_size=80)
parts = ["a", "s't", "B1", " ", "\n", "\r\t", ".<|>_x", "{}", "-"]
spaced = st.lists(st.sampled_from(parts), max_size=60).map("".join)
foreign = [
    "é",
    "e\u0301",
    " \u0301",
    "—",
    "“a” b",
    "你好",
    "ع",
    "٣",
    "½",
    "\u3000",
    "\u00a0",
    "\u212a",
    "✓",
    "😀",
]
mixed = st.lists(st.sampled_from(parts + foreign) | st.characters(codec="utf-8"), max_size=60).map("".join)


class Bare:
    """A tokenizer without its added tokens, and its words."""

    def __init__(self, folder: Path) -> None:
        self.json: dict[str, Any] = json.loads((folder / "tokenizer.json").read_text("utf-8"))
        self.tokenizer = Tokenizer.from_str(json.dumps({**self.json, "added_tokens": []}))
        words = Words.of(self.tokenizer, self.json)
        assert words is not None
        self.words = words

    def check(self, text: str) -> None:
        ids = self.words.ids(text)
        assert ids is not None
        assert ids.tolist() == self.tokenizer.encode(text, add_special_tokens=False).ids


@pytest.fixture(scope="module")
def bare_toy(toy_folder: Path) -> Bare:
    return Bare(toy_folder)


@settings(deadline=None)
@given(ascii_texts | spaced | mixed)
def test_any_text_becomes_the_tokenizers_ids(bare_toy: Bare, text: str) -> None:
    bare_toy.check(text)
    bare_toy.check(text)  # from what was kept


@pytest.mark.parametrize("name", ["qwen3", "deepseek_v3", "gpt-oss", "mistral-nemo"])
def test_real_tokenizers_give_the_same_ids(name: str, model_folder: Callable[[str], Path]) -> None:
    bare = Bare(model_folder(name))

    @settings(deadline=None, max_examples=50)
    @given(ascii_texts | spaced | mixed)
    def same(text: str) -> None:
        bare.check(text)

    same()
    bare.check(Path(__file__).read_text("utf-8"))


def splitting(pattern: str, **more: Any) -> Mapping[str, Any]:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False, **more}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return {"type": "Sequence", "pretokenizers": [split, byte_level]}


def twice_spelled(pattern: str) -> Mapping[str, Any]:
    split, byte_level = splitting(pattern)["pretokenizers"]
    return {"type": "Sequence", "pretokenizers": [split, byte_level, byte_level]}


@pytest.mark.parametrize(
    ("pre_tokenizer", "why"),
    [
        (splitting("a{2}+|b"), "re repeats it possessively, the tokenizer does not"),
        (
            splitting("\\p{N}{1,30}+| ?[^\\s\\p{N}]+|\\s+"),
            "so it does, and that shows after many digits only",
        ),
        (splitting("_{,3}"), "it may find nothing, and the tokenizer looks further from the next character"),
        (
            splitting("(?i:'ll\\p{Lu}+?)| ?\\p{L}+|\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+"),
            "small letters are capitals here",
        ),
        (splitting("\\h+"), "no escape that is known"),
        (splitting("[a-z&&[^b]]+"), "a class of classes"),
        (splitting("(?<=a)b"), "it looks behind"),
        (splitting("^a"), "line or text?"),
        (splitting("\\p{Han}+"), "a script and no category"),
        (splitting("a", behavior="Removed"), "words are lost"),
        (splitting("\\p{L}+ \\p{N}|\\p{L}+"), "a word goes over a space"),
        (splitting("\\p{L}+(?= \\p{P})|\\p{L}"), "a word ends by what comes after the next space"),
        (splitting("[\u4e00-\u9fa5 ]+| ?[^\\s\u4e00-\u9fa5]+|\\s+"), "a word of Chinese goes over a space"),
        (splitting("[\u4e00-\u9fa5]+ ?| ?[^\\s\u4e00-\u9fa5]+|\\s+"), "it takes the space behind it"),
        (splitting("\\p{Han}+ ?| ?\\w+|\\s+"), "a script and no category"),
        (twice_spelled(" ?\\p{L}+|\\s|\\p{N}+"), "bytes are spelled, and their spelling again"),
        ({**splitting("a")["pretokenizers"][1]}, "the text is one word"),
        ({"type": "Digits", "individual_digits": True}, "no expression"),
        (None, "nothing says where words end"),
    ],
)
def test_what_is_not_proven_is_not_used(bare_toy: Bare, pre_tokenizer: object, why: str) -> None:
    assert Words.of(bare_toy.tokenizer, {**bare_toy.json, "pre_tokenizer": pre_tokenizer}) is None, why


def test_a_random_encoder_has_no_words(bare_toy: Bare) -> None:
    model = {**bare_toy.json["model"], "dropout": 0.1}
    assert Words.of(bare_toy.tokenizer, {**bare_toy.json, "model": model}) is None


def test_what_is_kept_is_bounded(bare_toy: Bare, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dressage_tito.words._KEPT_WORDS", 8)
    words = Words(bare_toy.tokenizer, lambda text: [text[:3], text[3:]])
    for number in range(50):
        words.ids(f"w{number} " + "x" * 100 + f" v{number} w")
        assert 0 < len(words._words) <= 8
        assert 0 < len(words._chunks) <= 8
    assert not any(len(kept) > 32 for kept in [*words._words, *words._chunks])


@given(ascii_texts | spaced)
def test_chunks_are_the_text_cut_at_spaces_that_stand_alone(text: str) -> None:
    found = chunks(text)
    assert " ".join(found) == text
    blank = "\t\n\x0b\x0c\r "
    for before, after in itertools.pairwise(found):
        assert before[-1] not in blank
        assert after[0] not in blank
    inner = [chunk[at - 1 : at + 2] for chunk in found for at in range(1, len(chunk) - 1) if chunk[at] == " "]
    assert all(around[0] in blank or around[2] in blank for around in inner)


@given(mixed)
def test_chunks_of_other_texts_are_cut_between_visible_ascii_alone(text: str) -> None:
    found = chunks(text)
    assert " ".join(found) == text
    if not text.isascii():
        around = [beside for pair in itertools.pairwise(found) for beside in (pair[0][-1], pair[1][0])]
        assert all("!" <= char <= "~" for char in around)


@pytest.mark.parametrize("blank", ["\t", "\n", "\x0b", "\x0c", "\r", " "])
def test_no_chunk_is_cut_beside_white_space(blank: str) -> None:
    for text in (f"a{blank} b", f"a {blank}b", f"a{blank} ", f" {blank}b"):
        assert chunks(text) == [text]
        assert chunks(f"c {text}d e") == ["c", f"{text}d", "e"] if text[0] == "a" else True
    assert chunks("a\x1c \x1fb") == ["a\x1c", "\x1fb"]


def test_a_text_with_a_forbidden_id_has_none_here(bare_toy: Bare) -> None:
    word = bare_toy.tokenizer.encode("z", add_special_tokens=False).ids
    words = Words.of(bare_toy.tokenizer, bare_toy.json, frozenset(word))
    assert words is not None
    for _ in range(2):
        assert words.ids("a b") is not None
        assert words.ids("a z b") is None
        assert words.ids("z") is None


SAID = (
    "word",
    "two words",
    " lead",
    "a\nb",
    "x" * 200,
    "an é",
    "a — b c",
    "\u0301a",
    "e\u0301 b",
    "好",
    "a\u212a",
)


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize("system", ["Be brief.", "Sois bref : été, cafe.", "cafe\u0301 a b", "好 a b"])
def test_content_of_a_prompt_is_encoded_so_too(
    toy_folder: Path, system: str, threads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Word by word or whole: the ids, and what of them is the frame's, are the same."""
    codec = ChatCodec.from_folder(toy_folder, threads=threads)
    tools = [{"type": "function", "function": {"name": "f", "description": system, "parameters": {}}}]
    prompts = [[Message("system", system), Message("user", text)] for text in SAID]
    found = [codec.start(prompt, tools) for prompt in prompts]
    monkeypatch.setattr(Tokens, "_encode_bare", lambda *_: None)
    for prompt, encoded in zip(prompts, found, strict=True):
        whole = codec.start(prompt, tools)
        assert not isinstance(encoded, Refusal)
        assert not isinstance(whole, Refusal)
        assert encoded.ids.tolist() == whole.ids.tolist()
        assert encoded.frame.tolist() == whole.frame.tolist()
