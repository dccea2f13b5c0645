from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from dressage_tito import ChatCodec, Encoded, Message, Refusal, ToolCall, concat_encoded, reply_text
from dressage_tito.certify import certify
from dressage_tito.fuzz import TOOLS
from dressage_tito.toy import TEMPLATE, write_toy_tokenizer

MakeCodec = Callable[..., ChatCodec]
Granted = Callable[[Encoded | Refusal], Encoded]

CALL = ToolCall("c1", "shell", {"command": "ls"}, '{"command": "ls"}')


def _prefix(codec: ChatCodec, granted: Granted, reply: str = "ok<|im_end|>") -> list[int]:
    start = granted(codec.start([Message("user", "u")], TOOLS if codec.supports_tools else None))
    return [*start.ids.tolist(), *codec.encode_sample(reply)]


def test_the_profile_is_read_off_the_template(toy: ChatCodec) -> None:
    profile = toy.profile
    assert profile.turn_close_text == "<|im_end|>\n"
    assert profile.generation_prompt == "<|im_start|>assistant\n"
    assert profile.tool_grammar == "hermes"
    assert profile.reasoning_tags == ("<think>", "</think>")
    assert (profile.reasoning_field, profile.thinking_in_history) == ("reasoning_content", "keeps")
    assert (profile.bos, profile.developer_role) == ("none", False)
    assert not profile.tools_in_tail
    assert not profile.calls_before_tool


def test_a_profile_can_be_overridden(codec_with: MakeCodec, smol_like: str) -> None:
    codec = codec_with(smol_like)
    assert codec.profile.reasoning_tags is None
    ids = codec.encode_sample("<think>r</think>a")
    assert codec.parse(ids, reasoning_open=False, finish_reason="stop").content == "<think>r</think>a"
    thinking = codec.with_profile(dataclasses.replace(codec.profile, reasoning_tags=("<think>", "</think>")))
    turn = thinking.parse(ids, reasoning_open=False, finish_reason="stop")
    assert (turn.reasoning, turn.content) == ("r", "a")


def test_several_tool_results_are_grouped_as_the_template_groups_them(
    toy: ChatCodec, granted: Granted
) -> None:
    results = [Message("tool", text, tool_call_id=text) for text in ("r1", "r2")]
    delta = granted(toy.extend(_prefix(toy, granted), results, TOOLS))
    assert toy.decode(delta.ids) == (
        "\n<|im_start|>user\n<tool_response>\nr1\n</tool_response>\n<tool_response>\nr2\n</tool_response>"
        "<|im_end|>\n<|im_start|>assistant\n"
    )
    assert toy.decode(delta.ids[~delta.frame]) == "r1r2"


def test_system_and_context_only_assistant_messages_can_be_appended(toy: ChatCodec, granted: Granted) -> None:
    appended = [Message("system", "mid"), Message("assistant", "a", tool_calls=(CALL,)), Message("tool", "r")]
    delta = granted(toy.extend(_prefix(toy, granted), appended, TOOLS))
    assert toy.decode(delta.ids) == (
        "\n<|im_start|>system\nmid<|im_end|>\n"
        '<|im_start|>assistant\na\n<tool_call>\n{"name": "shell", "arguments": {"command": "ls"}}'
        "\n</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\nr\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_developer_message_is_a_system_message_where_the_template_knows_none(
    toy: ChatCodec, codec_with: MakeCodec, granted: Granted
) -> None:
    messages = [Message("developer", "d"), Message("user", "u")]
    start = granted(toy.start(messages))
    assert toy.decode(start.ids).startswith("<|im_start|>system\nd<|im_end|>")
    knows = codec_with(
        TEMPLATE.replace("(message.role == 'system'", "(message.role in ['system', 'developer']")
    )
    assert not knows.profile.developer_role
    generic = TEMPLATE.replace("(message.role == 'system' and not loop.first)", "message.role == 'developer'")
    knows = codec_with(generic)
    assert knows.profile.developer_role
    assert "<|im_start|>developer\nd" in knows.decode(granted(knows.start(messages)).ids)


def test_a_role_that_the_template_refuses_is_refused_in_its_words(
    codec_with: MakeCodec, granted: Granted
) -> None:
    guard = (
        "{%- for m in messages %}{%- if m.role == 'system' and not loop.first %}"
        "{{- raise_exception('System message must be at the beginning.') }}{%- endif %}{%- endfor %}"
    )
    codec = codec_with(guard + TEMPLATE)
    refused = codec.extend(_prefix(codec, granted), [Message("system", "mid")], TOOLS)
    assert isinstance(refused, Refusal)
    assert refused.reason == "template_error"
    assert "System message must be at the beginning." in refused.detail


def test_a_message_that_the_template_drops_or_changes_is_refused_by_place(codec_with: MakeCodec) -> None:
    codec = codec_with(TEMPLATE.replace("message.role == 'tool'", "message.role == 'never'"))
    messages = [Message("user", "u"), Message("assistant", "a"), Message("tool", "r", tool_call_id="c")]
    refused = codec.start(messages)
    assert isinstance(refused, Refusal)
    assert refused.reason == "message_dropped"
    assert "messages[2] (role tool)" in refused.detail
    codec = codec_with(
        TEMPLATE.replace(
            "'\\n' + message.content + '<|im_end|>", "'\\n' + message.content | upper + '<|im_end|>"
        )
    )
    refused = codec.start([Message("user", "words")])
    assert isinstance(refused, Refusal)
    assert refused.reason == "message_dropped"


def test_a_template_that_looks_at_the_ends_of_content_is_still_followed(
    codec_with: MakeCodec, granted: Granted
) -> None:
    template = TEMPLATE.replace(
        "{{- '<|im_start|>' + message.role + '\\n'",
        "{{- '<|im_start|>' + message.role + ('!' if message.content.startswith('x') else '') + '\\n'",
    )
    assert template != TEMPLATE
    codec = codec_with(template)
    start = granted(codec.start([Message("user", "xy"), Message("user", "  ab ")]))
    assert codec.decode(start.ids).startswith(
        "<|im_start|>user!\nxy<|im_end|>\n<|im_start|>user\n  ab <|im_end|>"
    )
    assert codec.decode(start.ids[~start.frame]) == "xy  ab "


def test_a_template_that_trims_content_is_followed(codec_with: MakeCodec, granted: Granted) -> None:
    codec = codec_with(
        TEMPLATE.replace(
            "'\\n' + message.content + '<|im_end|>", "'\\n' + message.content.strip() + '<|im_end|>"
        )
    )
    messages = [Message("user", " \n x y \n"), Message("user", " \n ")]
    start = granted(codec.start(messages))
    assert codec.decode(start.ids).startswith("<|im_start|>user\nx y<|im_end|>\n<|im_start|>user\n<|im_end|>")
    assert start.ids.tolist() == codec.encode_sample(str(codec.reference_text(messages)))
    assert codec.decode(start.ids[~start.frame]) == "x y"


def test_tools_are_refused_where_the_template_ignores_them(codec_with: MakeCodec, smol_like: str) -> None:
    codec = codec_with(smol_like)
    assert codec.profile.tool_grammar == "none"
    assert not codec.supports_tools
    for refused in (
        codec.start([Message("user", "u")], TOOLS),
        codec.start([Message("user", "u"), Message("assistant", "", tool_calls=(CALL,))]),
        codec.extend([1], [Message("user", "u")], TOOLS),
    ):
        assert isinstance(refused, Refusal)
        assert refused.reason == "tools_unsupported"
    assert isinstance(codec.start([Message("user", "u")]), Encoded)
    assert isinstance(codec.start([Message("user", "u")], []), Encoded)


def test_calls_in_a_grammar_that_is_not_parsed_are_refused_too(codec_with: MakeCodec) -> None:
    codec = codec_with(TEMPLATE.replace('<tool_call>\\n{"name": "', '[CALL]{"name": "'))
    assert codec.profile.tool_grammar == "unknown"
    refused = codec.start([Message("user", "u")], TOOLS)
    assert isinstance(refused, Refusal)
    assert "grammar" in refused.detail


def test_a_family_that_closes_turns_with_plain_text_is_not_extended(
    codec_with: MakeCodec, granted: Granted
) -> None:
    codec = codec_with(
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{{ 'assistant: ' }}"
    )
    start = granted(codec.start([Message("user", "u")]))
    refused = codec.extend([*start.ids, *codec.encode_plain("hi")], [Message("user", "v")])
    assert isinstance(refused, Refusal)
    assert refused.reason == "closing_not_a_control_token"


def test_nothing_and_no_prefix_are_refused(toy: ChatCodec) -> None:
    prompt = toy.start([Message("user", "u")])
    assert isinstance(prompt, Encoded)
    for refused, reason in (
        (toy.start([]), "no_messages"),
        (toy.extend(prompt.ids, []), "no_messages"),
        (toy.extend([], []), "empty_prefix"),
        (toy.extend([1, 2], [Message("robot", "x")]), "unsupported_role"),
        (toy.extend([], [Message("user", "u")]), "empty_prefix"),
    ):
        assert isinstance(refused, Refusal)
        assert refused.reason == reason


def test_template_arguments_hold_per_codec_and_per_call(
    model_folder: Callable[[str], Path], qwen3: ChatCodec, granted: Granted
) -> None:
    off = {"enable_thinking": False}
    once = granted(qwen3.start([Message("user", "u")], template_kwargs=off))
    assert qwen3.decode(once.ids).endswith("<think>\n\n</think>\n\n")
    assert not once.reasoning_open
    later = granted(
        qwen3.extend(
            [*once.ids, *qwen3.encode_sample("a<|im_end|>")], [Message("user", "v")], template_kwargs=off
        )
    )
    assert qwen3.decode(later.ids).endswith("<think>\n\n</think>\n\n")
    plain = granted(qwen3.start([Message("user", "u")]))
    assert "<think>" not in qwen3.decode(plain.ids)


def test_a_template_that_prints_tools_late_is_rendered_with_them(
    codec_with: MakeCodec, granted: Granted
) -> None:
    template = TEMPLATE.replace(
        "message.content + '<|im_end|>\\n' }}\n    {%- elif message.role == 'assistant' %}",
        "message.content + ('[' + tools[0].function.name + ']' if tools else '') + '<|im_end|>\\n' }}"
        "\n    {%- elif message.role == 'assistant' %}",
    )
    assert template != TEMPLATE
    codec = codec_with(template)
    assert codec.profile.tools_in_tail
    delta = granted(codec.extend(_prefix(codec, granted), [Message("user", "v")], TOOLS))
    assert codec.decode(delta.ids).endswith("v[shell]<|im_end|>\n<|im_start|>assistant\n")


def test_a_template_that_wants_a_call_before_its_result_gets_one(
    codec_with: MakeCodec, granted: Granted
) -> None:
    guard = (
        "{%- for m in messages %}{%- if m.role == 'tool' and messages[loop.index0 - 1].role != 'tool' "
        "and not messages[loop.index0 - 1].tool_calls %}{{- raise_exception('no call') }}{%- endif %}"
        "{%- endfor %}"
    )
    codec = codec_with(guard + TEMPLATE)
    assert codec.profile.calls_before_tool
    results = [Message("tool", text, tool_call_id=text, name="shell") for text in ("r1", "r2")]
    delta = granted(codec.extend(_prefix(codec, granted), results, TOOLS))
    assert codec.decode(delta.ids) == (
        "\n<|im_start|>user\n<tool_response>\nr1\n</tool_response>\n<tool_response>\nr2\n</tool_response>"
        "<|im_end|>\n<|im_start|>assistant\n"
    )


def test_the_first_tokens_of_a_sentence_stay_with_a_bos_printed_once(
    tmp_path: Path, granted: Granted
) -> None:
    folder = write_toy_tokenizer(
        tmp_path / "bos", template="{{ bos_token }}" + TEMPLATE, more_special=["<s>"]
    )
    (folder / "tokenizer_config.json").write_text(
        '{"bos_token": "<s>", "eos_token": {"content": "<|im_end|>"}}'
    )
    codec = ChatCodec.from_folder(folder)
    assert codec.profile.bos == "template"
    bos = codec.encode_sample("<s>")[0]
    prefix = _prefix(codec, granted)
    delta = granted(codec.extend(prefix, [Message("user", "v")], TOOLS))
    assert [*prefix, *delta.ids.tolist()].count(bos) == 1
    assert prefix[0] == bos


def test_prefixes_come_as_lists_or_arrays_and_deltas_join(toy: ChatCodec, granted: Granted) -> None:
    prefix = _prefix(toy, granted)
    as_list = granted(toy.extend(prefix, [Message("user", "v")], TOOLS))
    as_array = granted(toy.extend(np.array(prefix, dtype=np.int32), [Message("user", "v")], TOOLS))
    assert np.array_equal(as_list.ids, as_array.ids)
    both = concat_encoded([as_list, as_array])
    assert len(both.ids) == len(both.frame) == 2 * len(as_list.ids)
    with pytest.raises(ValueError, match="at least one"):
        concat_encoded([])


def test_a_prefix_that_is_already_closed_is_not_closed_again(toy: ChatCodec, granted: Granted) -> None:
    delta = granted(toy.extend(_prefix(toy, granted, "ok<|im_end|>\n"), [Message("user", "v")], TOOLS))
    assert toy.decode(delta.ids) == "<|im_start|>user\nv<|im_end|>\n<|im_start|>assistant\n"


def test_a_turn_without_any_sampled_id_is_closed(toy: ChatCodec, granted: Granted) -> None:
    delta = granted(toy.extend(_prefix(toy, granted, ""), [Message("user", "v")], TOOLS))
    assert toy.decode(delta.ids).startswith("<|im_end|>\n<|im_start|>user\nv")


def test_added_tokens_that_swallow_blanks_do_so_in_the_frame(tmp_path: Path, granted: Granted) -> None:
    import json

    folder = write_toy_tokenizer(tmp_path / "f")
    data = json.loads((folder / "tokenizer.json").read_text())
    for item in data["added_tokens"]:
        if item["content"] == "<|im_end|>":
            item["rstrip"] = True
        if item["content"] == "<tool_response>":
            item["lstrip"] = True
    (folder / "tokenizer.json").write_text(json.dumps(data))
    codec = ChatCodec.from_folder(folder)
    messages = [Message("user", "u"), Message("assistant", "a"), Message("tool", "r", tool_call_id="c")]
    text = codec.reference_text(messages, TOOLS)
    assert isinstance(text, str)
    assert granted(codec.start(messages, TOOLS)).ids.tolist() == codec.encode_sample(text)


SWALLOWING = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '<|sep|>' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant<|sep|>' }}{%- endif %}
"""


@pytest.mark.parametrize("sides", [("lstrip",), ("rstrip",), ("lstrip", "rstrip")])
def test_blanks_of_a_message_that_the_tokens_beside_it_swallow_are_swallowed(
    tmp_path: Path, granted: Granted, sides: tuple[str, ...]
) -> None:
    """As with the tokens of Phi-3 and Phi-4."""
    import json

    folder = write_toy_tokenizer(tmp_path / "f", template=SWALLOWING, more_special=["<|sep|>"])
    data = json.loads((folder / "tokenizer.json").read_text())
    for item in data["added_tokens"]:
        if item["content"] in {"<|im_end|>", "<|sep|>"}:
            item.update(dict.fromkeys(sides, True))
    (folder / "tokenizer.json").write_text(json.dumps(data))
    codec = ChatCodec.from_folder(folder)
    for content in (" u ", "\n\n", "", "\u3000a  b\t", "\x1cu\x1f", " <|im_end|> ", "a", "  <|sep|>"):
        messages = [Message("user", content), Message("assistant", content), Message("user", "x " + content)]
        start = granted(codec.start(messages))
        if "<|" not in content:
            text = codec.reference_text(messages)
            assert isinstance(text, str)
            assert start.ids.tolist() == codec.encode_sample(text)
            prompt = granted(codec.start(messages[:1])).ids.tolist()
            sampled = codec.encode_sample("a<|im_end|>")
            delta = granted(codec.extend([*prompt, *sampled], messages[2:]))
            text = codec.reference_text([messages[0], Message("assistant", "a"), messages[2]])
            assert isinstance(text, str)
            assert [*prompt, *sampled, *delta.ids.tolist()] == codec.encode_sample(text)
        control = [token for token in start.ids.tolist() if token in codec.control_ids]
        assert len(control) == 3 * 3 + 2
        assert not any(token in codec.control_ids for token in start.ids[~start.frame].tolist())
    assert certify(folder, conversations=30).certified


def test_an_id_that_ends_turns_by_the_profile_is_a_mismatch_though_it_is_not_special(
    toy: ChatCodec, granted: Granted
) -> None:
    marker = toy.encode_sample("</think>")
    codec = toy.with_profile(dataclasses.replace(toy.profile, stop_ids=(*toy.stop_token_ids, *marker)))
    prefix = _prefix(toy, granted, "r</think>")
    assert isinstance(toy.extend(prefix, [Message("user", "v")], TOOLS), Encoded)
    refused = codec.extend(prefix, [Message("user", "v")], TOOLS)
    assert isinstance(refused, Refusal)
    assert refused.reason == "stop_mismatch"


def test_a_reply_is_written_as_the_model_would_write_it_and_read_back(toy: ChatCodec) -> None:
    reply = Message("assistant", "I look.", "hm", (CALL,))
    written = reply_text(toy, [Message("user", "u")], reply, TOOLS)
    assert not isinstance(written, Refusal)
    text, close = written
    assert close == "<|im_end|>"
    assert text.endswith(close)
    ids = toy.encode_sample(text)
    parsed = toy.parse(ids, reasoning_open=False, finish_reason="stop", tools=TOOLS)
    assert (parsed.content, parsed.reasoning) == (reply.content, reply.reasoning)
    assert [(call.name, call.arguments) for call in parsed.tool_calls] == [("shell", {"command": "ls"})]


def test_a_reply_that_the_template_cannot_write_is_refused(codec_with: MakeCodec) -> None:
    codec = codec_with(TEMPLATE.replace("{%- if tools %}", "{%- if tools %}{{ raise_exception('no') }}"))
    refused = reply_text(codec, [Message("user", "u")], Message("assistant", "a"), TOOLS)
    assert isinstance(refused, Refusal)
