"""The families' own templates: what they print for a call is read back as that call, by one grammar alone."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from dressage_tito.folder import read_folder
from dressage_tito.grammars import GRAMMARS, REASONING_TAGS
from dressage_tito.template import ChatTemplate, RenderError
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

THINK = REASONING_TAGS[0]
USER = {"role": "user", "content": "Q"}
PROPERTIES = {
    "s": {"type": "string", "description": "Text."},
    "t": {"type": "string", "description": "Text."},
    "i": {"type": "integer", "description": "A whole number."},
    "f": {"type": "number", "description": "A number."},
    "b": {"type": "boolean", "description": "Yes or no."},
    "o": {"type": "object", "description": "An object.", "properties": {}},
    "l": {"type": "array", "description": "A list.", "items": {"type": "object"}},
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Does it.",
            "parameters": {"type": "object", "properties": PROPERTIES, "required": []},
        },
    }
    for name in ("shell", "read_file")
]

COHERE_CLOSING = (
    "<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|><|START_THINKING|><|END_THINKING|>"
)
"""The template prints a generation prompt whether it is asked for one or not."""


@dataclass(frozen=True)
class Row:
    model: str
    grammar: str
    closing: str = "<|im_end|>\n"
    tags: tuple[str, str] | None = None
    parallel: bool = True
    escapes: bool = True
    """The template escapes strings, or marks their ends so that they need it not."""


ROWS = (
    Row("qwen2_5", "hermes"),
    Row("qwen3", "hermes", tags=THINK),
    Row("qwen3-2507", "hermes"),
    Row("hermes3", "hermes"),
    Row("qwen3-coder", "qwen3_coder"),
    Row("qwen3_5-think", "qwen3_coder", tags=THINK),
    Row("qwen3_5-nothink", "qwen3_coder", tags=THINK),
    Row("qwen3_6", "qwen3_coder", tags=THINK),
    Row("qwen3_8", "qwen3_coder", tags=THINK),
    Row("nemotron_3-nano", "qwen3_coder", tags=THINK),
    Row("nemotron_3-super", "qwen3_coder", tags=THINK),
    Row("nemotron_3-ultra", "qwen3_coder", tags=THINK),
    Row("nemotron_3_5", "qwen3_coder", tags=THINK),
    Row("glm4_5", "glm", "", THINK),
    Row("glm4_6", "glm", "", THINK),
    Row("glm4_7", "glm", "", THINK),
    Row("deepseek_v3-trl", "deepseek_v3", "<｜end▁of▁sentence｜>", THINK),
    Row("deepseek_v3_1", "deepseek_v3_1", "<｜end▁of▁sentence｜>", THINK),
    Row("kimi_k2", "kimi_k2", "<|im_end|>"),
    Row("gpt-oss", "harmony", "<|call|>", parallel=False),
    Row("minimax_m2", "minimax_m2", "[e~[\n", THINK),
    Row("mistral-nemo", "mistral", "</s>"),
    Row("mistral-small-3_2", "mistral", "</s>"),
    Row("ministral-3", "mistral", "</s>"),
    Row("llama3_1", "llama3_json", "<|eot_id|>", parallel=False),
    Row("llama3_2", "llama3_json", "<|eot_id|>", parallel=False),
    Row("llama3_3", "llama3_json", "<|eot_id|>", parallel=False),
    Row("gemma4", "gemma4", "<|tool_response>", REASONING_TAGS[3]),
    Row("lfm2", "lfm2"),
    Row("lfm2_5", "lfm2", tags=THINK, escapes=False),
    Row("command-r7b", "cohere", COHERE_CLOSING, REASONING_TAGS[2]),
)

PIECES = (
    *(
        "</parameter>",
        "</tool_call>",
        "<tool_call>",
        "</arg_value>",
        "<parameter=s>",
        "</invoke>",
        "</function>",
    ),
    *(
        "<|tool_call_end|>",
        "<｜tool▁call▁end｜>",
        "<tool_call|>",
        "<|call|>",
        "<|end|>",
        "[TOOL_CALLS]",
        "```",
    ),
    *(
        "<|END_ACTION|>",
        "<think>",
        "</think>",
        "\n",
        "\n\n",
        " ",
        "\t",
        '"',
        "'",
        "\\",
        "\\n",
        "{",
        "}",
        "[1,",
    ),
    *("é", "👩‍👩‍👧", "\u2028", "a", "word ", "True", "null", "7", "&<>", "$(x)", "</think>\n\n<tool_call>"),
)
TEXT = st.lists(st.sampled_from(PIECES), max_size=6).map("".join) | st.text(max_size=6)
ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**25), 10**25) | st.floats(-1e9, 1e9) | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("kqr"), inner, max_size=2),
    max_leaves=4,
)
ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "s": TEXT,
        "t": TEXT,
        "i": st.integers(-(10**25), 10**25),
        "f": st.floats(-1e9, 1e9),
        "b": st.booleans(),
        "o": st.dictionaries(st.sampled_from("kqr"), ANY, max_size=2),
        "l": st.lists(st.dictionaries(st.sampled_from("kqr"), ANY, max_size=2), max_size=2),
    },
)
CALLS = st.lists(st.tuples(st.sampled_from(["shell", "read_file"]), ARGUMENTS), min_size=1, max_size=3)
Calls = list[tuple[str, dict[str, Any]]]


@pytest.fixture(scope="module")
def template_of(model_folder: Callable[[str], Path]) -> Callable[[str], ChatTemplate]:
    made: dict[str, ChatTemplate] = {}

    def load(model: str) -> ChatTemplate:
        if model not in made:
            folder = read_folder(model_folder(model))
            made[model] = ChatTemplate(folder.templates, folder.special, lambda: datetime(2026, 1, 1))
        return made[model]

    return load


def _render(template: ChatTemplate, row: Row, calls: Calls) -> tuple[str, bool]:
    """What the template prints for these calls after its generation prompt, and whether thinking is open."""
    prompt = template.render([USER], TOOLS, generation=True)
    for as_text in (False, True):
        made = [
            {
                "id": GRAMMARS[row.grammar].call_id(name, index) or f"call{index:05d}",  # type: ignore[index]
                "type": "function",
                "function": {
                    "name": name,
                    "arguments": json.dumps(arguments, ensure_ascii=False) if as_text else arguments,
                },
            }
            for index, (name, arguments) in enumerate(calls)
        ]
        message = {"role": "assistant", "content": "", "tool_calls": made}
        try:
            whole = template.render([USER, message], TOOLS, generation=False)
        except RenderError:
            if as_text:
                raise
            continue
        break
    if row.tags and not whole.startswith(prompt):
        prompt = prompt[: prompt.rfind(row.tags[0])]
    assert whole.startswith(prompt)
    assert whole.endswith(row.closing)
    text = whole[len(prompt) : len(whole) - len(row.closing)]
    if row.tags is None:
        return text, False
    # Without reasoning in it, one template prints only the closing tag of an earlier turn's.
    is_open = prompt.rfind(row.tags[0]) > prompt.rfind(row.tags[1]) or text.startswith(row.tags[1])
    return text, is_open


_SPELLS_A_BORDER = re.compile(
    r'\\n\s*<(parameter|arg_key)|</parameter>\\n|</(parameter|arg_value)>(\s|\\[nrtf]|\\u[0-9a-f]{4})*<|<\|\\"\|>'
)
"""In JSON: where a value ends and the next begins, with any white space between, or a value's own quotes; or
where a line begins with a parameter's opening tag."""


def _told_apart(row: Row, calls: Calls) -> bool:
    """Whether the template's own text leaves no doubt where a value ends."""
    text = json.dumps([arguments for _, arguments in calls], ensure_ascii=False)
    if row.grammar in {"qwen3_coder", "glm", "minimax_m2", "gemma4"} and _SPELLS_A_BORDER.search(text):
        return False
    return row.escapes or not ("'" in text or "\\\\" in text)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.model)
@given(calls=CALLS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_template_s_own_calls_are_read_back(
    template_of: Callable[[str], ChatTemplate], row: Row, calls: Calls
) -> None:
    calls = calls if row.parallel else calls[:1]
    assume(_told_apart(row, calls))
    text, is_open = _render(template_of(row.model), row, calls)
    turn = GRAMMARS[row.grammar].parse(  # type: ignore[index]
        text, reasoning_open=is_open, finish_reason="stop", tools=TOOLS, reasoning_tags=row.tags
    )
    assert [(call.name, call.arguments) for call in turn.tool_calls] == calls
    assert [json.loads(call.arguments_text) for call in turn.tool_calls] == [values for _, values in calls]
    assert (turn.content, turn.reasoning, turn.warnings) == ("", "", ())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.model)
def test_one_grammar_alone_recognises_a_template_s_call(
    template_of: Callable[[str], ChatTemplate], row: Row
) -> None:
    text, _ = _render(template_of(row.model), row, [("shell", {"s": "Xq7probe"})])
    found = [name for name, grammar in GRAMMARS.items() if grammar.recognise(text, "shell", "s", "Xq7probe")]
    assert found == [row.grammar]
    for name, key, value in (("shel", "s", "Xq7probe"), ("shell", "t", "Xq7probe"), ("shell", "s", "Xq7")):
        assert not GRAMMARS[row.grammar].recognise(text, name, key, value)  # type: ignore[index]
