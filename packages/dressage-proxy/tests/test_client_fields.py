"""Fields that official clients and agents put into what they send back: taken, or refused by name."""

from typing import get_type_hints

import anthropic.types as anthropic_types
import anthropic.types.beta as anthropic_beta
import openai.types.responses as openai_types
import pytest
from dressage_proxy.dialects.memo import Memo
from dressage_proxy.dialects.messages import MESSAGES
from dressage_proxy.dialects.responses import RESPONSES
from dressage_proxy.errors import RequestError
from dressage_tito import MessageError, message_from_json
from openai.types.responses.response_input_param import FunctionCallOutput, Message

USER = {"role": "user", "content": "q"}
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
CUSTOM = {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "x"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "x"}
CUSTOM_OUTPUT = {"type": "custom_tool_call_output", "call_id": "c", "output": "x"}
SAID = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "x"}]}
THOUGHT = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "x"}]}
VALUES = {
    "id": "x_1", "status": "completed", "phase": "commentary", "namespace": "n", "name": "f", "async": True,
    "caller": {"type": "direct"}, "encrypted_content": "gAAA", "annotations": [{"type": "url_citation"}],
    "logprobs": [{"token": "x"}], "prompt_cache_breakpoint": {"mode": "explicit"}, "strict": True,
    "allowed_callers": ["direct"], "defer_loading": True, "output_schema": {"type": "object"},
    "description": "d", "format": {"type": "text"}, "parameters": {}, "cache_control": {"type": "ephemeral"},
    "citations": [{"type": "char_location"}], "is_error": True, "content": "x", "input_schema": {},
    "eager_input_streaming": True, "input_examples": [{"a": 1}], "summary": [],
    "signature": "dressage-1",
}  # fmt: skip
INPUT_ITEMS = [
    (openai_types.EasyInputMessageParam, USER),
    (Message, {**USER, "type": "message"}),
    (openai_types.ResponseOutputMessageParam, SAID),
    (openai_types.ResponseFunctionToolCallParam, CALL),
    (openai_types.ResponseCustomToolCallParam, CUSTOM),
    (FunctionCallOutput, OUTPUT),
    (openai_types.ResponseCustomToolCallOutputParam, CUSTOM_OUTPUT),
    (openai_types.ResponseReasoningItemParam, THOUGHT),
]
TOOLS = [
    (openai_types.FunctionToolParam, {"type": "function", "name": "f"}),
    (openai_types.CustomToolParam, {"type": "custom", "name": "f"}),
]
BLOCKS = [
    (anthropic_types.TextBlockParam, {"type": "text", "text": "x"}, "user"),
    (anthropic_types.TextBlockParam, {"type": "text", "text": "x"}, "assistant"),
    (anthropic_types.ToolResultBlockParam, {"type": "tool_result", "tool_use_id": "t"}, "user"),
    (anthropic_types.ToolUseBlockParam, {"type": "tool_use", "id": "t", "name": "f"}, "assistant"),
    (anthropic_types.ThinkingBlockParam, {"type": "thinking", "thinking": "x"}, "assistant"),
    (anthropic_types.RedactedThinkingBlockParam, {"type": "redacted_thinking", "data": "x"}, "assistant"),
]
OTHERS = ("toolset_name", "input", "type")
"""Of tools that only a vendor's servers have; and what every item has anyhow."""


def filled(kind, base):
    """The item with each further field of its type, one after the other."""
    fields = [name for name in get_type_hints(kind) if name not in base and name not in OTHERS]
    return [{**base, name: VALUES[name]} for name in fields]


def read_responses(**body):
    return RESPONSES.parse({"model": "m", **body}, {}, Memo())


def read_messages(*messages, **body):
    return MESSAGES.parse({"model": "m", "max_tokens": 9, "messages": list(messages), **body}, {}, Memo())


@pytest.mark.parametrize(("kind", "base"), INPUT_ITEMS)
def test_every_field_that_openais_client_has_for_an_item_is_taken(kind, base):
    plain = read_responses(input=[USER, base, USER]).raw
    for item in filled(kind, base):
        read = read_responses(input=[USER, item, USER]).raw
        if "namespace" in item and "output" not in item:
            assert read[1]["tool_calls"][0]["function"]["name"] == "n__f"
        elif "encrypted_content" not in item:
            assert read == plain, item


@pytest.mark.parametrize(("kind", "base"), TOOLS)
def test_every_field_that_openais_client_has_for_a_tool_is_taken(kind, base):
    for tool in filled(kind, base):
        assert len(read_responses(input="q", tools=[tool]).tools) == 1


@pytest.mark.parametrize(("kind", "base", "role"), BLOCKS)
def test_every_field_that_anthropics_client_has_for_a_block_is_taken(kind, base, role):
    for block in filled(kind, base):
        assert read_messages(USER, {"role": role, "content": [block]}, USER).raw


def test_every_field_that_anthropics_client_has_for_a_tool_is_taken():
    for kind in (anthropic_types.ToolParam, anthropic_beta.BetaToolParam):
        for tool in filled(kind, {"name": "f", "input_schema": {}}):
            read = read_messages(USER, tools=[tool, {"name": "g", "input_schema": {}}])
            assert len(read.tools) + len(read.deferred) == 2


MARKED = {
    "id": "x", "status": "completed", "metadata": {"turn": 1}, "annotations": ["a"], "created_by": "me",
    "cache_control": {"type": "ephemeral"}, "internal_chat_message_metadata_passthrough": {"a": 1},
    "internal_of_the_next_release": [1], "__clientsSource": {"kind": "tool"}, "made_up": None,
    "also_made_up": [], "nor_this": False,
}  # fmt: skip


def test_marks_that_say_nothing_to_a_model_change_no_message():
    items = [USER, SAID, CALL, OUTPUT, THOUGHT, SAID, CUSTOM, CUSTOM_OUTPUT]
    plain, marked = (
        read_responses(input=items),
        read_responses(input=[{**item, **MARKED} for item in items]),
    )
    assert marked.raw == plain.raw
    inner = {"type": "input_text", "text": "q", **MARKED}
    assert read_responses(input=[{"role": "user", "content": [inner]}]).raw[0]["content"] == "q"
    said = {"role": "assistant", "content": [{"type": "text", "text": "x", **MARKED}], **MARKED}
    assert read_messages(USER, said, USER).raw[1] == {"role": "assistant", "content": "x"}
    assert message_from_json({**USER, **MARKED}) == message_from_json(USER)


STRANGE = {"made_up": "x"}
CARRIERS = [
    lambda: read_responses(input=[USER, {**CALL, **STRANGE}]),
    lambda: read_responses(
        input=[{"role": "user", "content": [{"type": "input_text", "text": "q", **STRANGE}]}]
    ),
    lambda: read_messages({**USER, **STRANGE}),
    lambda: read_messages({"role": "user", "content": [{"type": "text", "text": "q", **STRANGE}]}),
    lambda: message_from_json({**USER, **STRANGE}),
]


@pytest.mark.parametrize("read", CARRIERS)
def test_a_field_that_may_carry_something_is_refused_by_name(read):
    with pytest.raises((RequestError, MessageError), match=r"made_up.*is not supported") as refused:
        read()
    assert refused.value.field.endswith(".made_up")


@pytest.mark.parametrize("model", [5, True, ["m"], {}])
def test_a_model_that_is_no_name_is_refused(model):
    with pytest.raises(RequestError, match="model is"):
        RESPONSES.parse({"model": model, "input": "q"}, {}, Memo())
