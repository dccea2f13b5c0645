"""The same on real tokenizers and templates, fetched by the test set-up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from dressage_tito import ChatCodec, Encoded, Message, Refusal
from dressage_tito.certify import CHECKS, certify_codec
from dressage_tito.fuzz import TOOLS, Fuzzer

pytestmark = pytest.mark.heavy

Granted = Callable[[Encoded | Refusal], Encoded]
FAMILIES = ["qwen3", "qwen3-trl", "qwen3-2507", "qwen2_5"]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_real_family_is_certified(name: str, real_codec: Callable[[str], ChatCodec]) -> None:
    report = certify_codec(real_codec(name), name, conversations=60, seed=3)
    assert report.failures == ()
    assert report.certified
    assert set(report.passed) == set(CHECKS)
    assert report.refused == {}
    declared = {"text_normalised_by_tokenizer"} | (
        {"reasoning_in_history"} if name.startswith("qwen3") else set()
    )
    assert set(report.declared) <= declared


def test_thinking_switched_off_is_certified_too(model_folder: Callable[[str], Path]) -> None:
    codec = ChatCodec.from_folder(model_folder("qwen3"), template_kwargs={"enable_thinking": False})
    report = certify_codec(codec, "qwen3", conversations=30, seed=5)
    assert report.failures == ()


@pytest.mark.parametrize("name", FAMILIES)
def test_what_a_real_profile_says(name: str, real_codec: Callable[[str], ChatCodec]) -> None:
    codec = real_codec(name)
    assert codec.supports_tools
    assert codec.vocab_size == (151665 if name == "qwen2_5" else 151669)
    assert codec.decode(list(codec.stop_token_ids)) == "<|im_end|>"
    assert codec.profile.generation_prompt == "<|im_start|>assistant\n"
    thinks = name in {"qwen3", "qwen3-trl"}
    assert (codec.profile.reasoning_tags is not None) == thinks
    assert codec.profile.thinking_in_history == ("strips" if thinks else "none")


def test_a_moved_system_message_gives_the_ids_of_mistrals_own_encoder(
    real_codec: Callable[[str], ChatCodec], granted: Granted
) -> None:
    messages = [
        Message("system", "s"),
        Message("user", "hi there"),
        Message("assistant", "hello"),
        Message("user", "again"),
    ]
    start = granted(real_codec("mistral-nemo").start(messages))
    # What mistral_common 1.13.1 encodes this conversation to with tekken_240718.json.
    assert start.ids.tolist() == [1, 3, 8101, 2156, 4, 29706, 2, 3, 1115, 1267, 57774, 4]


def test_known_ids_of_a_short_conversation(qwen3: ChatCodec, granted: Granted) -> None:
    start = granted(qwen3.start([Message("user", "Hello")]))
    assert start.ids.tolist() == [151644, 872, 198, 9707, 151645, 198, 151644, 77091, 198]


def test_markup_that_is_no_special_token_is_structure_only_from_the_frame(
    qwen3: ChatCodec, granted: Granted
) -> None:
    call = qwen3.encode_sample("<tool_call>")
    assert len(call) == 1
    start = granted(qwen3.start([Message("user", "write <tool_call> and <think>")], TOOLS))
    frame = granted(qwen3.start([Message("user", "write")], TOOLS))
    assert start.ids.tolist().count(call[0]) == frame.ids.tolist().count(call[0]) > 0
    assert "write <tool_call> and <think>" in qwen3.decode(start.ids)


@pytest.mark.nightly
@pytest.mark.parametrize("name", FAMILIES)
def test_ten_thousand_conversations_hold(name: str, real_codec: Callable[[str], ChatCodec]) -> None:
    report = certify_codec(real_codec(name), name, conversations=10_000, seed=11)
    assert report.failures == ()


def test_made_up_conversations_are_the_same_for_the_same_seed() -> None:
    one, other = (Fuzzer(4, ["<x>"], tools=True, reasoning=True, system=True) for _ in range(2))
    for _ in range(20):
        assert one.conversation(spelled=True) == other.conversation(spelled=True)
