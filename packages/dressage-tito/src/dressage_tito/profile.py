"""A model family as data, inferred by probing its chat template."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from dressage_tito.errors import ProfileError
from dressage_tito.folder import TokenizerFolder
from dressage_tito.template import ChatTemplate, Json, RenderError

if TYPE_CHECKING:
    from dressage_tito.tokens import Tokens

ToolGrammar = Literal["hermes", "none", "unknown"]
Retention = Literal["keeps", "strips", "none"]

_WORD = "Xq7dressage"
_CALL = {
    "id": "call00001",
    "type": "function",
    "function": {"name": "probe_tool", "arguments": {"probe_key": _WORD}},
}
PROBE_TOOL: Json = {
    "type": "function",
    "function": {
        "name": "probe_tool",
        "description": "A probe.",
        "parameters": {"type": "object", "properties": {"probe_key": {"type": "string"}}},
    },
}
_USER: Json = {"role": "user", "content": "Xq7question"}


@dataclass(frozen=True, slots=True)
class Profile:
    """What the codec knows of a family. Override a field with ``dataclasses.replace``."""

    turn_close_text: str
    """What the template prints after an assistant turn's own text, e.g. ``<|im_end|>\\n``."""
    turn_close_ids: tuple[int, ...]
    stop_ids: tuple[int, ...]
    """Ids that end a sampled turn: the closing id and the model's end-of-sequence ids."""
    generation_prompt: str
    reasoning_tags: tuple[str, str] | None
    reasoning_field: str
    """The message key that the template reads reasoning from; "" where it reads none."""
    thinking_in_history: Retention
    """What the template does with an earlier turn's reasoning. The codec keeps what was sampled
    (append-only); ``strips`` therefore is a declared difference to a full render."""
    tool_grammar: ToolGrammar
    bos: Literal["template", "none"]
    developer_role: bool
    """The template prints the role ``developer``; otherwise it is rendered as ``system``."""
    tools_in_tail: bool
    """The tool list changes what is printed after an earlier turn."""
    calls_before_tool: bool
    """A tool message is printed rightly only after an assistant turn with calls."""

    @property
    def supports_tools(self) -> bool:
        """Tools can be offered: the template prints them and calls come in a grammar that is parsed."""
        return self.tool_grammar == "hermes"


def infer_profile(
    folder: TokenizerFolder, template: ChatTemplate, tokens: Tokens, kwargs: Json | None = None
) -> Profile:
    """Probe the template. Raises ProfileError where it shows no assistant turn."""
    probe = _Probe(template, kwargs or {})
    source = "".join(folder.templates.values())
    close_text = probe.close_text()
    close_ids = tuple(tokens.encode(close_text, (), "\0")[0].tolist())
    eos = folder.special.get("eos_token")
    eos_id = tokens.id_of(eos) if isinstance(eos, str) else None
    stops = [token for token in close_ids[:1] if tokens.is_control(token)]
    stops += [token for token in (eos_id, *folder.eos_ids) if token is not None]
    field = probe.reasoning_field()
    tags = ("<think>", "</think>") if "<think>" in source or "</think>" in source else None
    bos = folder.special.get("bos_token")
    return Profile(
        turn_close_text=close_text,
        turn_close_ids=close_ids,
        stop_ids=tuple(dict.fromkeys(stops)),
        generation_prompt=probe.generation_prompt(),
        reasoning_tags=tags,
        reasoning_field=field,
        thinking_in_history=probe.retention(field),
        tool_grammar=probe.tool_grammar(),
        bos="template" if isinstance(bos, str) and probe.begins_once_with(bos) else "none",
        developer_role=_WORD in (probe.try_text([{"role": "developer", "content": _WORD}, _USER]) or ""),
        tools_in_tail=probe.tools_in_tail(),
        calls_before_tool=probe.calls_before_tool(),
    )


class _Probe:
    def __init__(self, template: ChatTemplate, kwargs: Json) -> None:
        self._template = template
        self._kwargs = kwargs

    def text(self, messages: list[Json], *, generation: bool = False, tools: bool = False) -> str:
        return self._template.render(
            messages, [PROBE_TOOL] if tools else None, generation=generation, kwargs=self._kwargs
        )

    def try_text(self, messages: list[Json], *, generation: bool = False, tools: bool = False) -> str | None:
        try:
            return self.text(messages, generation=generation, tools=tools)
        except RenderError:
            return None

    def begins_once_with(self, bos: str) -> bool:
        """Whether a conversation begins with this text and holds it nowhere else (not a turn's opener)."""
        text = self.text([_USER, {"role": "assistant", "content": "a"}])
        return text.startswith(bos) and text.count(bos) == 1

    def close_text(self) -> str:
        try:
            text = self.text([_USER, {"role": "assistant", "content": _WORD}])
        except RenderError as error:
            raise ProfileError(
                f"the chat template fails on a user and an assistant message: {error}"
            ) from error
        if text.count(_WORD) != 1:
            raise ProfileError("the chat template does not print an assistant message's content once")
        return text.partition(_WORD)[2]

    def generation_prompt(self) -> str:
        without, with_prompt = self.text([_USER]), self.text([_USER], generation=True)
        if not with_prompt.startswith(without):
            raise ProfileError("the chat template's generation prompt is not a suffix of the conversation")
        return with_prompt[len(without) :]

    def reasoning_field(self) -> str:
        for field in ("reasoning_content", "reasoning", "thinking"):
            text = self.try_text([_USER, {"role": "assistant", "content": "a", field: _WORD}])
            if text and _WORD in text:
                return field
        return ""

    def retention(self, field: str) -> Retention:
        if not field:
            return "none"
        text = self.try_text([_USER, {"role": "assistant", "content": "a", field: _WORD}, _USER])
        return "keeps" if text and _WORD in text else "strips"

    def tool_grammar(self) -> ToolGrammar:
        assistant: Json = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
        text = self.try_text([_USER, assistant], tools=True)
        if text is None or "probe_key" not in text.replace(_WORD, ""):
            return "none"
        plain = self.try_text([_USER], tools=True)
        if plain is None or "probe_tool" not in plain:
            return "none"
        match = re.search(r"<tool_call>\s*(\{[^<]*\})\s*</tool_call>", text[len(plain) :])
        return "hermes" if match and _is_hermes(match.group(1)) else "unknown"

    def tail(self, appended: list[Json], *, tools: bool, calls: bool = False) -> str | None:
        """What follows an assistant turn that ends in the probe word."""
        reply: dict[str, Any] = {"role": "assistant", "content": _WORD}
        if calls:
            reply = {"role": "assistant", "content": "", "tool_calls": [_CALL]}
        text = self.try_text([_USER, reply, *appended], generation=True, tools=tools)
        return None if text is None or _WORD not in text else text.rpartition(_WORD)[2]

    def tools_in_tail(self) -> bool:
        tool: Json = {"role": "tool", "content": "r", "tool_call_id": "call00001", "name": "probe_tool"}
        return any(
            self.tail([message], tools=False) != self.tail([message], tools=True) for message in (_USER, tool)
        )

    def calls_before_tool(self) -> bool:
        tool: Json = {"role": "tool", "content": "r", "tool_call_id": "call00001", "name": "probe_tool"}
        plain = self.tail([tool], tools=False)
        after_call = self.tail([tool], tools=False, calls=True)
        if plain is None:
            return True
        return after_call is not None and not after_call.endswith(plain)


def _is_hermes(text: str) -> bool:
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return (
        isinstance(value, Mapping)
        and value.get("name") == "probe_tool"
        and value.get("arguments") == {"probe_key": _WORD}
    )
