"""Runs that are encoded without offsets have the ids and the frame that offsets give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from dressage_tito.folder import read_folder
from dressage_tito.spans import Span, without_escapes
from dressage_tito.tokens import Tokens
from dressage_tito.toy import SPECIAL
from hypothesis import given, settings
from hypothesis import strategies as st

ESCAPE = "\ufdd2"
PIECES = (
    "user",
    "a",
    " the",
    "the ",
    " ",
    "  ",
    "\n",
    "\n\n",
    "é",
    "你好",
    "e\u0301",
    "{}",
    ".",
    "x" * 40,
    "1 2",
)
ordinary = st.lists(st.sampled_from(PIECES), max_size=4).map("".join)
literal = st.sampled_from(SPECIAL)
broken = literal.map(lambda text: text[0] + ESCAPE + text[1:])
inside = st.lists(ordinary | broken, max_size=4).map("".join)
rendered = st.lists(st.tuples(ordinary | literal | broken, inside), max_size=6)
"""Frame and content in turn."""


def laid_out(parts: Sequence[tuple[str, str]]) -> tuple[str, list[Span]]:
    text = ""
    spans: list[Span] = []
    for frame, content in parts:
        text += frame
        spans.append((len(text), len(text) + len(content)))
        text += content
    return text, spans


def check_same(tokens: Tokens, plainly: Tokens) -> None:
    plainly._byte_level = False  # what is not byte-level is encoded with offsets

    @settings(deadline=None, max_examples=150)
    @given(rendered, ordinary)
    def same(parts: list[tuple[str, str]], end: str) -> None:
        text, spans = laid_out(parts)
        ids, frame = tokens.encode(text + end, spans, ESCAPE)
        wanted, wanted_frame = plainly.encode(text + end, spans, ESCAPE)
        assert (ids.dtype, frame.dtype) == (np.int32, np.bool_)
        assert ids.tolist() == wanted.tolist()
        assert frame.tolist() == wanted_frame.tolist()

    same()


@pytest.mark.parametrize("threads", [False, True])
def test_without_offsets_ids_and_frame_are_those_with_offsets(toy_folder: Path, threads: bool) -> None:
    folder = read_folder(toy_folder)
    check_same(Tokens(folder, threads=threads), Tokens(folder))


@pytest.mark.parametrize("threads", [False, True])
def test_so_they_are_where_a_plain_text_could_make_a_control_id(toy_folder: Path, threads: bool) -> None:
    folder = read_folder(toy_folder)
    tokens, plainly = Tokens(folder, threads=threads), Tokens(folder)
    piece = tokens.encode_plain("a the")[-1]
    assert tokens.decode([piece]) == " the"
    for each in (tokens, plainly):
        each._control_set |= {piece}
    check_same(tokens, plainly)
    assert piece not in tokens.encode("a the", [(0, 5)], ESCAPE)[0]


@pytest.mark.parametrize("threads", [False, True])
def test_so_they_are_for_a_real_tokenizer(model_folder: Callable[[str], Path], threads: bool) -> None:
    folder = read_folder(model_folder("qwen3"))
    check_same(Tokens(folder, threads=threads), Tokens(folder))


def test_so_they_are_where_a_mark_of_the_content_goes_onto_the_frames_last_letter(
    model_folder: Callable[[str], Path],
) -> None:
    folder = read_folder(model_folder("qwen3"))  # NFC makes one character of the two
    tokens, plainly = Tokens(folder, threads=True), Tokens(folder)
    plainly._byte_level = False
    for frame in ("e", "<", "the"):
        text = f"{frame}\u0338\u0301 so"
        ids, framed = tokens.encode(text, [(len(frame), len(text))], ESCAPE)
        wanted, wanted_frame = plainly.encode(text, [(len(frame), len(text))], ESCAPE)
        assert (ids.tolist(), framed.tolist()) == (wanted.tolist(), wanted_frame.tolist())


def test_so_they_are_where_a_vocabulary_lacks_a_byte(toy_folder: Path) -> None:
    """As SmolLM2's does. The tokenizer drops the byte: ids show no longer how long the text was."""
    folder = read_folder(toy_folder)
    model = folder.tokenizer["model"]
    vocabulary = {token.replace("\u0104", "unused"): place for token, place in model["vocab"].items()}
    lacking = replace(folder, tokenizer={**folder.tokenizer, "model": {**model, "vocab": vocabulary}})
    tokens, plainly = Tokens(lacking, threads=True), Tokens(lacking)
    plainly._byte_level = False
    for text, span in (("\x04\x04xabc", (3, 6)), ("abc\x04\x04", (0, 3))):
        ids, framed = tokens.encode(text, [span], ESCAPE)
        wanted, wanted_frame = plainly.encode(text, [span], ESCAPE)
        assert (ids.tolist(), framed.tolist()) == (wanted.tolist(), wanted_frame.tolist())


@given(st.lists(st.tuples(inside, inside), max_size=5))
def test_without_its_escapes_a_text_has_the_same_spans(parts: list[tuple[str, str]]) -> None:
    text, spans = laid_out(parts)
    bare, moved = without_escapes(text, spans, ESCAPE)
    assert bare == text.replace(ESCAPE, "")
    contents = [content.replace(ESCAPE, "") for _, content in parts]
    assert [bare[start:end] for start, end in moved] == [content for content in contents if content]
    before = [
        "".join(map("".join, parts[:at])) + frame for at, (frame, _) in enumerate(parts) if contents[at]
    ]
    assert [bare[:start] for start, _ in moved] == [text.replace(ESCAPE, "") for text in before]
