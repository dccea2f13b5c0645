"""Why tools cannot be offered is said truly, and what a template would drop is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dressage_tito import ChatCodec, Encoded, Message, Refusal, Tool, ToolCall
from dressage_tito.certify import certify_codec
from dressage_tito.cli import main
from dressage_tito.toy import TEMPLATE, write_toy_tokenizer

MakeCodec = Callable[..., ChatCodec]
TOOLS: list[Tool] = [{"type": "function", "function": {"name": "shell", "parameters": {"type": "object"}}}]
CALL = ToolCall("c1", "shell", {"x": "1"}, '{"x": "1"}')
ASKED = [Message("user", "u")]
CALLED = [*ASKED, Message("assistant", tool_calls=(CALL,)), Message("tool", "r", tool_call_id="c1")]

PRINTING = "{%- for call in message.tool_calls or [] %}"
NO_TOOLS = TEMPLATE.replace("{%- for tool in tools %}{{- '\\n' + (tool | tojson) }}{%- endfor %}", "")
NO_CALLS = TEMPLATE.replace(PRINTING, "{%- for call in [] %}")
APPENDS = TEMPLATE.replace(PRINTING, "{%- set all = [] %}" + PRINTING + "{%- set _ = all.append(call) %}")
RAISES = TEMPLATE.replace("{%- if tools %}", "{%- if tools %}{{ raise_exception('no tools, please') }}", 1)
OTHER_GRAMMAR = TEMPLATE.replace('<tool_call>\\n{"name": "', '[CALL]{"name": "')


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (NO_TOOLS, "the chat template prints no tools"),
        (NO_CALLS, "the chat template prints tools, but no calls of earlier turns"),
        (APPENDS, "the chat template fails on a tool call (SecurityError: access to attribute 'append'"),
        (RAISES, "the chat template fails on tools (TemplateError: no tools, please)"),
        (OTHER_GRAMMAR, "the chat template writes tool calls in a grammar that is not parsed"),
    ],
)
def test_a_refusal_of_tools_says_what_the_template_does(
    codec_with: MakeCodec, template: str, reason: str
) -> None:
    codec = codec_with(template)
    assert not codec.supports_tools
    for refused in (codec.start(ASKED, TOOLS), codec.start(CALLED), codec.extend([1], ASKED, TOOLS)):
        assert isinstance(refused, Refusal)
        assert refused.reason == "tools_unsupported"
        assert refused.detail.startswith(reason)
    assert isinstance(codec.start(ASKED), Encoded)


def test_calls_of_a_turn_that_the_template_does_not_print_are_never_dropped(codec_with: MakeCodec) -> None:
    codec = codec_with(NO_CALLS, profile={"tool_grammar": "hermes"})
    assert codec.supports_tools
    assert isinstance(codec.start(ASKED, TOOLS), Encoded)
    refused = codec.start(CALLED, TOOLS)
    assert isinstance(refused, Refusal)
    assert refused.reason == "calls_dropped"
    assert "messages[1]" in refused.detail


def test_tools_that_the_template_does_not_print_are_offered_only_where_a_profile_says_they_are_described(
    codec_with: MakeCodec, granted: Callable[[Encoded | Refusal], Encoded]
) -> None:
    named: dict[str, Any] = {"tool_grammar": "hermes"}
    refused = codec_with(NO_TOOLS, profile=named).start(ASKED, TOOLS)
    assert isinstance(refused, Refusal)
    assert "tools_described" in refused.detail
    codec = codec_with(NO_TOOLS, profile={**named, "tools_described": True})
    prompt = granted(codec.start([Message("system", "You can call shell."), *ASKED], TOOLS))
    text = '<tool_call>\n{"name": "shell", "arguments": {"x": "1"}}\n</tool_call><|im_end|>'
    sampled = codec.encode_sample(text)
    turn = codec.parse(sampled, reasoning_open=False, finish_reason="stop", tools=TOOLS)
    assert [(call.name, call.arguments_text) for call in turn.tool_calls] == [("shell", '{"x": "1"}')]
    delta = granted(codec.extend([*prompt.ids, *sampled], [Message("tool", "r", tool_call_id="c1")], TOOLS))
    assert codec.decode(delta.ids).startswith("\n<|im_start|>user\n<tool_response>\nr\n")
    report = certify_codec(codec, "described", conversations=12)
    assert report.certified
    assert report.supports_tools


def test_text_that_looks_like_a_call_stays_content_where_its_grammar_is_not_parsed(
    codec_with: MakeCodec,
) -> None:
    codec = codec_with(OTHER_GRAMMAR)
    text = 'Look: [CALL]{"name": "shell", "arguments": {}}'
    ids = codec.encode_sample(text)
    turn = codec.parse(ids, reasoning_open=False, finish_reason="stop", tools=TOOLS)
    assert (turn.content, turn.tool_calls) == (text, ())
    assert any(warning.startswith("tool_grammar_unknown") for warning in turn.warnings)
    assert codec.parse(ids, reasoning_open=False, finish_reason="stop").warnings == ()


def test_a_certificate_survives_fields_that_a_later_version_adds(toy: ChatCodec) -> None:
    stated = dict(toy.profile.stated())
    assert "tools_note" not in stated
    assert "tools_described" not in stated
    assert stated["tool_grammar"] == "hermes"
    assert stated["inner_ids"] == sorted(toy.profile.inner_ids)


def test_what_a_profile_declares_holds_under_other_template_arguments_too(codec_with: MakeCodec) -> None:
    declared = {"tool_grammar": "hermes", "tools_described": True}
    codec = codec_with(NO_TOOLS, profile=declared)
    for other in (codec.with_template_kwargs({"x": 1}), codec.with_profile(codec.profile)):
        assert other.with_template_kwargs({"x": 2}).supports_tools
    assert codec.with_template_kwargs({"x": 1}).template_kwargs == {"x": 1}


def test_the_command_says_why_tools_are_refused_and_what_the_package_knows_of_a_refusal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_toy_tokenizer(tmp_path / "none", template=APPENDS)
    assert main(["certify", str(folder), "--conversations", "6"]) == 0
    assert "tools: refused: the chat template fails on a tool call (SecurityError" in capsys.readouterr().out
    hermes = "{#- json_to_python_type #}" + TEMPLATE.replace(
        "{{- message.content }}", "{{- '' if message.tool_calls else message.content }}"
    )
    folder = write_toy_tokenizer(tmp_path / "known", template=hermes)
    assert main(["certify", str(folder), "--conversations", "60"]) == 0
    said = capsys.readouterr().out
    assert "  content_beside_calls: the template prints calls and drops the turn's content\n" in said
    assert "reply_not_after_prompt:" not in said
