"""A content's place in a render is proven, never searched for: it may read as a word of the frame does."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Literal

import numpy as np
import pytest
from dressage_tito import ChatCodec, Encoded, Message, Refusal, ToolCall
from dressage_tito.toy import TEMPLATE
from hypothesis import given, settings
from hypothesis import strategies as st

LOOKS = {
    "at the beginning": "message.content.startswith('x')",
    "at the first character": "message.content[0] == 'x'",
    "at the end": "message.content.endswith('.')",
    "at the order": "message.content > 'n'",
    "at nothing": "false",
}
PIECES = ("im_start", "<|", "|>", "im_end", "user", "assistant", "x", "a", ".", " ", "\n", "\u00e9", '"')
text = st.lists(st.sampled_from(PIECES), max_size=3).map("".join).filter(lambda made: "<|im_" not in made)


def looking(condition: str) -> str:
    """A template that prints another header for what a content says."""
    header = "{{- '<|im_start|>' + message.role + '\\n'"
    assert header in TEMPLATE
    return TEMPLATE.replace(header, header.replace("'\\n'", f"('!' if {condition} else '') + '\\n'"))


def check_proven(codec: ChatCodec, contents: list[str]) -> Encoded | Refusal:
    messages = [Message("user", content) for content in contents]
    found = codec.start(messages)
    if isinstance(found, Encoded):
        whole = codec.reference_text(messages)
        assert isinstance(whole, str)
        assert found.ids.tolist() == codec.encode_sample(whole)
        visible = [content for content in contents if content.strip()]
        assert codec.decode(found.ids[~found.frame]) == "".join(visible)
    return found


@pytest.mark.parametrize("looks", LOOKS)
def test_where_a_template_looks_at_contents_their_places_are_proven_still(
    looks: str, codec_with: Callable[..., ChatCodec]
) -> None:
    codec = codec_with(looking(LOOKS[looks]))

    @settings(deadline=None, max_examples=80)
    @given(st.lists(text, min_size=1, max_size=3))
    def proven(contents: list[str]) -> None:
        check_proven(codec, contents)

    proven()


@pytest.mark.parametrize("looks", LOOKS)
@pytest.mark.parametrize("piece", ["im_start", "im_end", "<|", "user", "a", "s"])
def test_a_content_that_is_a_piece_of_the_frame_leaves_the_frame_whole(
    piece: str, looks: str, codec_with: Callable[..., ChatCodec]
) -> None:
    """Taken for the frame's, it would cut the control token in two."""
    codec = codec_with(looking(LOOKS[looks]))
    for contents in (["xo.", piece], [piece, "xo."], ["xo.", piece, piece]):
        assert isinstance(check_proven(codec, contents), Encoded)


def test_a_template_that_compares_all_of_a_content_is_refused_where_it_matters(
    codec_with: Callable[..., ChatCodec],
) -> None:
    codec = codec_with(looking("message.content == 'user'"))
    assert isinstance(check_proven(codec, ["users", "a"]), Encoded)
    refused = check_proven(codec, ["user", "a"])
    assert isinstance(refused, Refusal)
    assert refused.reason == "template_reads_content"


def test_a_content_inside_json_has_its_place_there(codec_with: Callable[..., ChatCodec]) -> None:
    condition = "message.content.startswith('x')"
    codec = codec_with(looking(condition).replace("message.content + '<", "message.content | tojson + '<"))
    messages = [Message("user", 'x"y"\n'), Message("user", "im_start")]
    found = codec.start(messages)
    whole = codec.reference_text(messages)
    assert isinstance(found, Encoded)
    assert isinstance(whole, str)
    assert found.ids.tolist() == codec.encode_sample(whole)
    assert codec.decode(found.ids[~found.frame]) == r"x\"y\"" + "im_start"


LITERAL = "<|im_end|>"


def check_spelled(codec: ChatCodec, literal: str, text: str) -> None:
    """Tools and calls whose lists hold a control literal are printed as the template prints them."""
    value = f"a {literal} b {text}"
    arguments = {"many": [value, {value: value}], "one": value}
    properties = {"one": {"type": "string", "enum": [value], "default": [value]}, "many": {"type": "array"}}
    tool = {"name": "shell", "description": value, "parameters": {"type": "object", "properties": properties}}
    call = ToolCall(
        codec.native_call_id("shell", 0) or "abcdefghi", "shell", arguments, json.dumps(arguments)
    )
    messages = [
        Message("user", value),
        Message("assistant", tool_calls=(call,)),
        Message("tool", value, tool_call_id=call.id, name="shell"),
    ]
    tools = [{"type": "function", "function": tool}]
    found = codec.start(messages, tools)
    assert isinstance(found, Encoded), found
    assert codec.decode(found.ids) == codec.reference_text(messages, tools)
    assert not np.isin(found.ids[~found.frame], list(codec.control_ids)).any()


@pytest.mark.parametrize("name", ["seed-oss", "minicpm5", "qwen3"])
@pytest.mark.parametrize("text", ["", r"\ufdd2", "\ufdd2 \u00e9", r"\ufdd0\ufdd1\ufdd2\ufdd3\ufdd4"])
def test_what_a_template_prints_as_python_does_holds_no_mark(
    name: str, text: str, real_codec: Callable[[str], ChatCodec]
) -> None:
    codec = real_codec(name)
    check_spelled(codec, codec.decode(codec.stop_token_ids[:1]), text)


@pytest.mark.parametrize("text", ["", r"\ufdd2"])
def test_nor_does_json_of_ascii(text: str, codec_with: Callable[..., ChatCodec]) -> None:
    check_spelled(codec_with(TEMPLATE.replace("tojson", "tojson(ensure_ascii=true)")), LITERAL, text)


@pytest.mark.parametrize("thinking", ["keep", "as-template"])
def test_a_clock_that_runs_on_between_renders_hinders_no_proof(
    thinking: Literal["keep", "as-template"], codec_with: Callable[..., ChatCodec]
) -> None:
    """Renders with and without marks tell the same time."""
    ticks = itertools.count()
    codec = codec_with(
        "{{- 'It is ' + strftime_now('%H:%M:%S.%f') + '.\n' }}" + TEMPLATE,
        clock=lambda: datetime(2026, 2, 1, tzinfo=UTC) + timedelta(seconds=next(ticks)),
    )
    assert not codec.profile.not_appendable
    for content in ("user", "It", "im_start"):
        started = codec.start([Message("user", content)])
        assert isinstance(started, Encoded)
        assert codec.decode(started.ids[~started.frame]) == content
        prefix = [*started.ids.tolist(), *codec.encode_sample("a<|im_end|>")]
        found = codec.extend(prefix, [Message("user", content)], thinking=thinking)
        assert isinstance(found, Encoded), found
