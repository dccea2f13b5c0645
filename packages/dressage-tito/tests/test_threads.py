"""Encoding without the interpreter's lock gives the same ids and the same frame."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from dressage_tito import ChatCodec, Encoded, Message
from dressage_tito.fuzz import TOOLS, Fuzzer
from dressage_tito.toy import NOT_SPECIAL, SPECIAL
from hypothesis import given, settings
from hypothesis import strategies as st

pieces = st.text(st.characters(exclude_categories=("Cs",)), max_size=20) | st.sampled_from(
    [*SPECIAL, *NOT_SPECIAL, "e\u0301", "\u0301", " ", "\n", "\u00e9", "\U0001f469\u200d\U0001f680"]
)
texts = st.lists(pieces, max_size=6).map("".join)


@pytest.fixture(scope="module")
def free(toy_folder: Path) -> ChatCodec:
    return ChatCodec.from_folder(toy_folder, threads=True)


def same(one: object, other: object) -> bool:
    assert isinstance(one, Encoded)
    assert isinstance(other, Encoded)
    assert one.ids.tolist() == other.ids.tolist()
    assert (one.ids.dtype, one.frame.dtype) == (other.ids.dtype, other.frame.dtype)
    return one.frame.tolist() == other.frame.tolist()


@settings(deadline=None, max_examples=150)
@given(texts, texts)
def test_any_content_becomes_the_same_ids(toy: ChatCodec, free: ChatCodec, first: str, second: str) -> None:
    prefix = np.array([5, *toy.stop_token_ids], np.int32)
    messages = [Message("user", first), Message("tool", second, tool_call_id="a")]
    same(toy.start(messages, TOOLS), free.start(messages, TOOLS))
    same(toy.extend(prefix, messages, TOOLS), free.extend(prefix, messages, TOOLS))


def test_the_frame_is_what_lies_around_the_content(toy: ChatCodec, free: ChatCodec) -> None:
    for text in ("word", "two words", "\u0301x", "caf\u00e9", "a\nb", "{}"):
        assert same(toy.start([Message("user", text)]), free.start([Message("user", text)]))


@pytest.mark.parametrize("name", ["qwen3", "qwen2_5"])
def test_a_real_tokenizer_gives_the_same_ids_and_frame(
    name: str, model_folder: Callable[[str], Path]
) -> None:
    plain = ChatCodec.from_folder(model_folder(name))
    free = ChatCodec.from_folder(model_folder(name), threads=True)
    literals = sorted(plain.control_literals)
    fuzzer = Fuzzer(seed=4, literals=literals, tools=True, reasoning=True, system=True)
    for _ in range(60):
        text = fuzzer.text()
        messages = [Message("user", text), Message("user", text + " e\u0301")]
        assert same(plain.start(messages), free.start(messages)), text


def test_other_threads_run_meanwhile(free: ChatCodec) -> None:
    """With the lock held, this thread would see one pause of nearly the whole time, each time; on a busy
    machine it may now and then."""
    assert any(longest_pause(free) < 1 / 2 for _ in range(5))


def longest_pause(free: ChatCodec) -> float:
    """Of a thread beside one that encodes, as a part of the whole time."""
    started, ended = threading.Event(), threading.Event()

    def encode() -> None:
        started.set()
        free.start([Message("user", "some words and more " * 20_000)])
        ended.set()

    thread = threading.Thread(target=encode)
    thread.start()
    started.wait()
    ticks = [time.perf_counter()]
    while not ended.wait(0.001):
        ticks.append(time.perf_counter())
    thread.join()
    return float(max(np.diff(ticks)) / (ticks[-1] - ticks[0]))
