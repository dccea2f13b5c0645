"""Calls as each grammar's family writes them: for tests, which get this module from a fixture."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

Calls = list[tuple[str, dict[str, Any]]]
M3 = "]<]minimax[>["


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _raw(value: Any) -> str:
    return value if isinstance(value, str) else _dump(value)


def _each(form: str, calls: Calls, between: str = "\n") -> str:
    return between.join(
        form.replace("@NAME", name).replace("@INDEX", str(index)).replace("@ARGS", _dump(arguments))
        for index, (name, arguments) in enumerate(calls)
    )


def _tagged(head: str, parameter: str, tail: str, calls: Calls, between: str = "\n") -> str:
    return between.join(
        head.replace("@NAME", name)
        + "".join(
            parameter.replace("@KEY", key)
            .replace("@STRING", str(isinstance(value, str)).lower())
            .replace("@TYPE", "string" if isinstance(value, str) else "other")
            .replace("@VALUE", _raw(value))
            for key, value in arguments.items()
        )
        + tail
        for name, arguments in calls
    )


def _gemma(value: Any) -> str:
    if isinstance(value, str):
        return f'<|"|>{value}<|"|>'
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_gemma(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(_gemma(item) for item in value) + "]"
    return _dump(value)


def _python(value: Any) -> str:
    if isinstance(value, str):
        text = value.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\r", "\\r")
        return f"'{text}'"
    return _dump(value) if isinstance(value, dict | list) else str(value)


def _lfm2(calls: Calls) -> str:
    inner = ", ".join(
        f"{name}({', '.join(f'{key}={_python(value)}' for key, value in arguments.items())})"
        for name, arguments in calls
    )
    return f"<|tool_call_start|>[{inner}]<|tool_call_end|>"


RENDER: dict[str, Callable[[Calls], str]] = {
    "hermes": lambda calls: _each('<tool_call>\n{"name": "@NAME", "arguments": @ARGS}\n</tool_call>', calls),
    "qwen3_coder": lambda calls: _tagged(
        "<tool_call>\n<function=@NAME>\n",
        "<parameter=@KEY>\n@VALUE\n</parameter>\n",
        "</function>\n</tool_call>",
        calls,
    ),
    "glm": lambda calls: _tagged(
        "<tool_call>@NAME\n",
        "<arg_key>@KEY</arg_key>\n<arg_value>@VALUE</arg_value>\n",
        "</tool_call>",
        calls,
    ),
    "minimax_m2": lambda calls: (
        "<minimax:tool_call>\n"
        + _tagged(
            '<invoke name="@NAME">\n', '<parameter name="@KEY">@VALUE</parameter>\n', "</invoke>\n", calls, ""
        )
        + "</minimax:tool_call>"
    ),
    "deepseek_dsml": lambda calls: (
        "<｜DSML｜function_calls>\n"
        + _tagged(
            '<｜DSML｜invoke name="@NAME">\n',
            '<｜DSML｜parameter name="@KEY" string="@STRING">@VALUE</｜DSML｜parameter>\n',
            "</｜DSML｜invoke>\n",
            calls,
            "",
        )
        + "</｜DSML｜function_calls>"
    ),
    "deepseek_v3": lambda calls: (
        "<｜tool▁calls▁begin｜>"
        + _each(
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>@NAME\n```json\n@ARGS\n```<｜tool▁call▁end｜>", calls
        )
        + "<｜tool▁calls▁end｜>"
    ),
    "deepseek_v3_1": lambda calls: (
        "<｜tool▁calls▁begin｜>"
        + _each("<｜tool▁call▁begin｜>@NAME<｜tool▁sep｜>@ARGS<｜tool▁call▁end｜>", calls, "")
        + "<｜tool▁calls▁end｜>"
    ),
    "kimi_k2": lambda calls: (
        "<|tool_calls_section_begin|>"
        + _each(
            "<|tool_call_begin|>functions.@NAME:@INDEX<|tool_call_argument_begin|>@ARGS<|tool_call_end|>",
            calls,
            "",
        )
        + "<|tool_calls_section_end|>"
    ),
    "harmony": lambda calls: _each(
        "<|start|>assistant<|channel|>commentary to=functions.@NAME"
        " <|constrain|>json<|message|>@ARGS<|call|>",
        calls,
        "",
    ),
    "mistral": lambda calls: _each("[TOOL_CALLS]@NAME[CALL_ID]call0000@INDEX[ARGS]@ARGS", calls, ""),
    "llama3_json": lambda calls: _each('{"name": "@NAME", "parameters": @ARGS}', calls, "; "),
    "gemma4": lambda calls: "".join(
        f"<|tool_call>call:{name}{_gemma(arguments)}<tool_call|>" for name, arguments in calls
    ),
    "lfm2": _lfm2,
    "cohere": lambda calls: (
        "<|START_ACTION|>[\n    "
        + _each('{"tool_call_id": "@INDEX", "tool_name": "@NAME", "parameters": @ARGS}', calls, ",\n    ")
        + "\n]<|END_ACTION|>"
    ),
}

RENDER["kimi_k3"] = lambda calls: (
    "<|open|>tools<|sep|>"
    + _tagged(
        '<|open|>call tool="@NAME" index="1"<|sep|>',
        '<|open|>argument key="@KEY" type="@TYPE"<|sep|>@VALUE<|close|>argument<|sep|>',
        "<|close|>call<|sep|>",
        calls,
        "",
    )
    + "<|close|>tools<|sep|>"
)
RENDER["json_list"] = lambda calls: (
    "<TOOLCALL>[" + _each('{"name": "@NAME", "arguments": @ARGS}', calls, ", ") + "]</TOOLCALL>"
)

RENDER["apertus"] = lambda calls: (
    "<|tools_prefix|>[" + _each('{"@NAME": @ARGS}', calls, ", ") + "]<|tools_suffix|>"
)
RENDER["seed_oss"] = lambda calls: _tagged(
    "<seed:tool_call>\n<function=@NAME>\n",
    "<parameter=@KEY>@VALUE</parameter>\n",
    "</function>\n</seed:tool_call>",
    calls,
)
RENDER["hunyuan3"] = lambda calls: (
    "<tool_calls:opensource>\n"
    + _tagged(
        "<tool_call:opensource>@NAME<tool_sep:opensource>\n",
        "<arg_key:opensource>@KEY</arg_key:opensource>\n"
        "<arg_value:opensource>@VALUE</arg_value:opensource>\n",
        "</tool_call:opensource>\n",
        calls,
        "",
    )
    + "</tool_calls:opensource>"
)
RENDER["minicpm5"] = lambda calls: _tagged(
    '<function name="@NAME">', '<param name="@KEY">@VALUE</param>', "</function>", calls
)


def _elements(value: Any) -> str:
    if isinstance(value, dict | list):
        pairs = value.items() if isinstance(value, dict) else [("item", item) for item in value]
        return "".join(f"{M3}<{key}>{_elements(item)}{M3}</{key}>" for key, item in pairs)
    return _raw(value)


RENDER["minimax_m3"] = lambda calls: (
    f"{M3}<tool_call>\n"
    + "".join(f'{M3}<invoke name="{name}">{_elements(arguments)}{M3}</invoke>\n' for name, arguments in calls)
    + f"{M3}</tool_call>"
)


def _has_only_texts(value: Any) -> bool:
    """Elements name no types: below a parameter a schema must, and what is empty looks like no text."""
    if isinstance(value, dict):
        return set(value) - {"item"} != set() and all(map(_has_only_texts, value.values()))
    return (
        bool(value) and all(map(_has_only_texts, value))
        if isinstance(value, list)
        else isinstance(value, str)
    )


AMBIGUOUS = {
    "seed_oss": r"</parameter>\s*(?:<parameter=|</function>)|</function>[\s\S]*<function="
    r"|</seed:tool_call>\s*<seed:tool_call>",
    "hunyuan3": r"</arg_value:opensource>\s*(?:<arg_key:|</tool_call:)"
    r"|</tool_call:opensource>(?:[\s\S]*<tool_call:|\s*<)",
    "minicpm5": r"</param>\s*(?:<param name=|</function>)|</function>[\s\S]*<function name=|^<!\[CDATA\[",
    "minimax_m3": r"\]<\]minimax\[>\[",
    "kimi_k3": r"<\|close\|>argument<\|sep\|>\s*<\||<\|close\|>call<\|sep\|>(?:[\s\S]*<\|open\|>call|\s*<\|)",
    "qwen3_coder": r"</parameter>\s*(?:<parameter=|</function>)|</function>[\s\S]*<function="
    r"|</function>\s*</tool_call>\s*<tool_call>",
    "glm": r"</arg_value>\s*(?:<arg_key>|</tool_call>)|</tool_call>[\s\S]*<tool_call>",
    "minimax_m2": r"</parameter>\s*(?:<parameter name=|</invoke>)|</invoke>(?:[\s\S]*<invoke|\s*<)",
    "deepseek_dsml": r"</｜DSML｜parameter>\s*(?:<｜DSML｜parameter|</｜DSML｜invoke>)"
    r"|</｜DSML｜invoke>(?:[\s\S]*<｜DSML｜invoke|\s*<)",
    "gemma4": r'<\|"\|>\s*[,}\]:]|<tool_call\|>\s*<\|tool_call>',
    "lfm2": r"<\|tool_call_end\|>\s*<\|tool_call_start\|>",
}
"""Raw text that a grammar cannot tell from its own frame: no value may hold it."""

OPENINGS = {
    "seed_oss": "<parameter=",
    "hunyuan3": "<arg_key:",
    "minicpm5": "<param name=",
    "kimi_k3": "<|open|>argument",
    "qwen3_coder": "<parameter=",
    "glm": "<arg_key>",
    "minimax_m2": "<parameter name=",
    "deepseek_dsml": "<｜DSML｜parameter",
}
"""What begins a parameter: on a line of its own in a value, it says that a closing tag is missing."""

CLOSE = {
    "apertus": "<|tools_suffix|>",
    "seed_oss": "</seed:tool_call>",
    "hunyuan3": "</tool_call:opensource>",
    "minicpm5": "</function>",
    "minimax_m3": "]<]minimax[>[</invoke>",
    "hermes": "</tool_call>",
    "qwen3_coder": "</tool_call>",
    "glm": "</tool_call>",
    "minimax_m2": "</invoke>",
    "deepseek_dsml": "</｜DSML｜invoke>",
    "deepseek_v3": "<｜tool▁call▁end｜>",
    "deepseek_v3_1": "<｜tool▁call▁end｜>",
    "kimi_k2": "<|tool_call_end|>",
    "harmony": "<|call|>",
    "gemma4": "<tool_call|>",
    "lfm2": "<|tool_call_end|>",
    "cohere": "<|END_ACTION|>",
    "kimi_k3": "<|close|>call<|sep|>",
    "json_list": "</TOOLCALL>",
}
"""What ends a call; the others' calls end with the turn alone."""


def speaks(name: str, calls: Calls) -> bool:
    """Whether the grammar can write these calls so that they can be told from its frame."""
    texts = [text for _, arguments in calls for text in _strings(arguments)]
    if name == "minimax_m3":
        nested = [value for _, arguments in calls for value in arguments.values()]
        if not all(_has_only_texts(value) for value in nested if isinstance(value, dict | list)):
            return False
    if any(re.search(r"\n\s*" + re.escape(OPENINGS.get(name, "\0")), text) for text in texts):
        return False
    pattern = AMBIGUOUS.get(name)
    return pattern is None or not any(re.search(pattern, text) for text in texts)


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for item in value.values() for text in _strings(item)]
    return [text for item in value for text in _strings(item)] if isinstance(value, list) else []
