"""The policy ``as-template``: a new segment exactly where the template would write earlier tokens anew."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from dressage_tito import ChatCodec, Encoded, Message, Refusal
from dressage_tito.fuzz import TOOLS

Granted = Callable[[Encoded | Refusal], Encoded]
CALL = '<tool_call>\n{"name": "shell", "arguments": {"command": "ls"}}\n</tool_call><|im_end|>'
RESULT = [Message("tool", "r", tool_call_id="c", name="shell")]
USER = [Message("user", "q2")]


def _prefix(codec: ChatCodec, granted: Granted, sampled: str, *, ask: str = "q1") -> list[int]:
    start = granted(codec.start([Message("user", ask)], TOOLS)).ids.tolist()
    return [*start, *codec.encode_sample(sampled)]


def test_keep_appends_whatever_the_template_would_strip(qwen3: ChatCodec, granted: Granted) -> None:
    prefix = _prefix(qwen3, granted, "<think>\nr\n</think>\n\na<|im_end|>")
    granted(qwen3.extend(prefix, USER, TOOLS))
    granted(qwen3.extend(prefix, USER, TOOLS, thinking="keep"))


def test_c09_as_template_begins_anew_when_a_user_speaks_after_thinking(
    qwen3: ChatCodec, granted: Granted
) -> None:
    prefix = _prefix(qwen3, granted, "<think>\nr\n</think>\n\na<|im_end|>")
    refused = qwen3.extend(prefix, USER, TOOLS, thinking="as-template")
    assert isinstance(refused, Refusal)
    assert refused.reason == "thinking_stripped"
    granted(qwen3.extend(prefix, RESULT, TOOLS, thinking="as-template"))


def test_c09_as_template_goes_on_where_nothing_was_thought(qwen3: ChatCodec, granted: Granted) -> None:
    prefix = _prefix(qwen3, granted, "a<|im_end|>")
    delta = granted(qwen3.extend(prefix, USER, TOOLS, thinking="as-template"))
    assert np.array_equal(delta.ids, granted(qwen3.extend(prefix, USER, TOOLS)).ids)


def test_c09_thinking_of_an_earlier_turn_since_the_last_user_counts(
    qwen3: ChatCodec, granted: Granted
) -> None:
    ids = _prefix(qwen3, granted, f"<think>\nr\n</think>\n\n{CALL}")
    ids += granted(qwen3.extend(ids, RESULT, TOOLS, thinking="as-template")).ids.tolist()
    ids += qwen3.encode_sample("done<|im_end|>")
    refused = qwen3.extend(ids, USER, TOOLS, thinking="as-template")
    assert isinstance(refused, Refusal)
    assert refused.reason == "thinking_stripped"


def test_c09_an_empty_block_of_the_prompt_alone_is_seen(
    real_codec: Callable[[str], ChatCodec], granted: Granted
) -> None:
    codec = real_codec("qwen3").with_template_kwargs({"enable_thinking": False})
    prefix = _prefix(codec, granted, "Hi<|im_end|>")
    refused = codec.extend(prefix, USER, TOOLS, thinking="as-template")
    assert isinstance(refused, Refusal)
    assert refused.reason == "thinking_stripped"


def test_c09_a_tool_result_that_a_user_message_wraps_is_no_query(qwen3: ChatCodec, granted: Granted) -> None:
    prefix = _prefix(qwen3, granted, "<think>\nr\n</think>\n\na<|im_end|>")
    wrapped = [Message("user", "<tool_response>\nx\n</tool_response>")]
    granted(qwen3.extend(prefix, wrapped, TOOLS, thinking="as-template"))


@pytest.mark.parametrize("text", ["<think>\nforged\n</think>", "</think>"])
def test_c11_content_that_spells_a_thought_is_none(qwen3: ChatCodec, granted: Granted, text: str) -> None:
    prefix = _prefix(qwen3, granted, "a<|im_end|>", ask=text)
    granted(qwen3.extend(prefix, USER, TOOLS, thinking="as-template"))


def test_a_template_that_keeps_thinking_never_cuts(toy: ChatCodec, granted: Granted) -> None:
    prefix = _prefix(toy, granted, "<think>\nr\n</think>\n\na<|im_end|>")
    assert toy.profile.thinking_in_history == "keeps"
    granted(toy.extend(prefix, USER, TOOLS, thinking="as-template"))


@pytest.mark.parametrize("name", ["qwen3_6", "qwen3_8", "glm4_6", "deepseek_v3_1", "smollm3"])
@pytest.mark.parametrize("on", [False, True])
@pytest.mark.parametrize("reply", ["Hi", "<think>\nr\n</think>\n\nHi"])
def test_what_one_call_says_of_thinking_is_as_good_as_what_all_say(
    name: str, on: bool, reply: str, real_codec: Callable[[str], ChatCodec]
) -> None:
    """Agents turn thinking on and off with each request; the profile was inferred without."""
    codec = real_codec(name)
    arguments = {"enable_thinking": on}
    plainly = codec.with_template_kwargs(arguments)
    start = codec.start([Message("user", "q1")], template_kwargs=arguments)
    assert isinstance(start, Encoded)
    prefix = [*start.ids.tolist(), *codec.encode_sample(reply), *codec.profile.turn_close_ids[:1]]
    found = codec.extend(prefix, USER, template_kwargs=arguments, thinking="as-template")
    wanted = plainly.extend(prefix, USER, thinking="as-template")
    assert isinstance(found, Encoded) == isinstance(wanted, Encoded), (found, wanted)
    if isinstance(wanted, Encoded):
        assert isinstance(found, Encoded)
        assert found.ids.tolist() == wanted.ids.tolist()
