"""Probes what a chat template makes of tools, calls and their results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dressage_tito.grammars import GRAMMARS, ToolGrammar, ToolGrammarName
from dressage_tito.probe import CALL_ID, KEY, OTHER, TOOL_NAME, USER, WORD, Probe
from dressage_tito.profile import ArgumentsAs
from dressage_tito.template import ChatTemplate, Json, RenderError

if TYPE_CHECKING:
    from dressage_tito.tokens import Tokens


@dataclass(frozen=True, slots=True)
class ToolsShown:
    """Whether a template prints the tools that it is given and the calls of earlier turns, in which grammar,
    and why tools cannot be offered where they cannot."""

    tools: bool
    calls: bool
    grammar: ToolGrammarName
    note: str = ""


class ToolProbe(Probe):
    """What a profile says of tools. ``arguments`` must have been found before the rest is asked."""

    def __init__(self, template: ChatTemplate, kwargs: Json, tokens: Tokens) -> None:
        super().__init__(template, kwargs)
        self.tokens = tokens

    def common(self, one: str, other: str) -> str:
        """The longest common beginning that cuts no control literal."""
        size = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), -1)
        size = min(len(one), len(other)) if size < 0 else size
        for match in self.tokens.literals.finditer(one):
            if match.start() < size < match.end():
                size = match.start()
        return one[:size]

    def find_arguments(self) -> ArgumentsAs:
        """What the template takes a call's arguments as."""
        if self.try_text([USER, self.calls()], tools=True) is None:
            self.arguments = "text"
            if self.try_text([USER, self.calls()], tools=True) is not None:
                return "text"
        return "object"

    def tools_shown(self) -> ToolsShown:
        """Whether the template prints tools and calls, and in which grammar."""
        try:
            plain = self.text([USER], tools=True)
        except RenderError as error:
            return ToolsShown(False, False, "none", f"the chat template fails on tools ({error})")
        tools = TOOL_NAME in plain
        renders = {name: self._rendered_call(grammar) for name, grammar in GRAMMARS.items()}
        texts = {name: text for name, text in renders.items() if isinstance(text, str) and WORD in text}
        if not tools:
            return ToolsShown(False, bool(texts), "none", "the chat template prints no tools")
        if not texts:
            errors = [text for text in renders.values() if isinstance(text, RenderError)]
            fails = f"the chat template fails on a tool call ({errors[0]})" if errors else ""
            note = fails or "the chat template prints tools, but no calls of earlier turns"
            return ToolsShown(True, False, "none", note)
        for name, text in texts.items():
            call = text[len(self.common(text, plain)) :]
            if GRAMMARS[name].recognise(call, TOOL_NAME, KEY, WORD):
                return ToolsShown(True, True, name)
        return ToolsShown(
            True, True, "unknown", "the chat template writes tool calls in a grammar that is not parsed"
        )

    def _rendered_call(self, grammar: ToolGrammar) -> str | RenderError:
        call_id = grammar.call_id(TOOL_NAME, 0) or CALL_ID
        try:
            return self.text([USER, self.calls(call_id=call_id)], tools=True)
        except RenderError as error:
            return error

    def _tail(self, appended: Json, *, tools: bool, calls: Json | None = None) -> str | None:
        """What follows an assistant turn that ends in the probe word."""
        text = self.try_text([USER, calls or self.reply(), appended], generation=True, tools=tools)
        return None if text is None or WORD not in text else text.rpartition(WORD)[2]

    def tools_in_tail(self) -> bool:
        """Whether the tool list changes what is printed after an earlier turn."""
        pairs = ((USER, None), (self.result(), None), (self.result(), self.calls()))
        return any(
            self._tail(message, tools=False, calls=calls) != self._tail(message, tools=True, calls=calls)
            for message, calls in pairs
        )

    def calls_before_tool(self) -> bool:
        """Whether a result is printed rightly only after a turn with calls."""
        plain = self._tail(self.result(), tools=False)
        after_call = self._tail(self.result(), tools=False, calls=self.calls())
        if plain is None:
            return True
        return after_call is not None and not after_call.endswith(plain)

    def tool_result_needs(self) -> tuple[str, ...]:
        """Which fields of a result are printed beside its content."""
        base = self._tail(self.result(), tools=True, calls=self.calls())
        other_name = self._tail(self.result(name="other"), tools=True, calls=self.calls(name="other"))
        other_id = self._tail(
            self.result(call_id="call00002"), tools=True, calls=self.calls(call_id="call00002")
        )
        needs = []
        if base is not None and other_name != base:
            needs.append("name")
        if base is not None and other_id != base:
            needs.append("tool_call_id")
        return tuple(needs)

    def parallel_calls(self) -> bool:
        """Whether every call of a turn is printed."""
        both = self.calls()
        both["tool_calls"] += self.calls(call_id="call00002", word=OTHER)["tool_calls"]
        text = self.try_text([USER, both], tools=True)
        if text is None:
            return self.try_text([USER, self.calls()], tools=True) is None
        return OTHER in text or WORD not in text

    def content_beside_calls(self) -> bool:
        """Whether content and calls of one turn are printed, in this order, before the calls' results."""
        both = {**self.calls(), "content": OTHER}
        text = self.try_text([USER, both, {**self.result(), "content": "Xq7result"}], tools=True)
        if text is None or WORD not in text:
            return True
        places = [text.find(word) for word in (OTHER, WORD, "Xq7result")]
        return places == sorted(places) and places[0] >= 0
