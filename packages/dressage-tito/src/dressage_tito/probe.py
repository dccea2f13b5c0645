"""Short conversations that a chat template is probed with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from dressage_tito.profile import ArgumentsAs
from dressage_tito.template import ChatTemplate, Json, RenderError

WORD = "Xq7dressage"
OTHER = "Xq7another"
ASK = "Xq7question"
CALL_ID = "call00001"
TOOL_NAME = "probe_tool"
KEY = "probe_key"
PROBE_TOOL: Json = {
    "type": "function",
    "function": {
        "name": TOOL_NAME,
        "description": "A probe.",
        "parameters": {"type": "object", "properties": {KEY: {"type": "string"}}},
    },
}
USER: Json = {"role": "user", "content": ASK}


class Probe:
    """Renders probe conversations. ``arguments`` is what the template takes a call's arguments as,
    ``trailing`` a generation prompt that it prints unasked."""

    def __init__(self, template: ChatTemplate, kwargs: Json) -> None:
        self.template = template
        self.kwargs = kwargs
        self._clock = template.stopped_clock()
        self.arguments: ArgumentsAs = "object"
        self.trailing = ""

    def text(self, messages: Sequence[Json], *, generation: bool = False, tools: bool = False) -> str:
        """The render of these messages, less a generation prompt that nobody asked for."""
        offered = [PROBE_TOOL] if tools else None
        text = self.template.render(
            messages, offered, generation=generation, kwargs=self.kwargs, clock=self._clock
        )
        return text if generation or not self.trailing else text.removesuffix(self.trailing)

    def try_text(
        self, messages: Sequence[Json], *, generation: bool = False, tools: bool = False
    ) -> str | None:
        """The same; None where the template fails."""
        try:
            return self.text(messages, generation=generation, tools=tools)
        except RenderError:
            return None

    def reply(self, word: str = WORD, **more: object) -> Json:
        """An assistant message."""
        return {"role": "assistant", "content": word, **more}

    def calls(self, *, call_id: str = CALL_ID, name: str = TOOL_NAME, word: str = WORD) -> dict[str, Any]:
        """An assistant message that makes a call, whose argument is the word."""
        arguments: object = {KEY: word}
        if self.arguments == "text":
            arguments = json.dumps(arguments)
        function = {"name": name, "arguments": arguments}
        return {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": call_id, "type": "function", "function": function}],
        }

    def result(self, *, call_id: str = CALL_ID, name: str = TOOL_NAME) -> Json:
        """A tool message."""
        return {"role": "tool", "content": "r", "tool_call_id": call_id, "name": name}
