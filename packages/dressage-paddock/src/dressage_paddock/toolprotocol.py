"""How a model asks for tools and gets their results: its native tool grammar, or plain text."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from dressage_paddock.errors import TaskError
from dressage_paddock.messages import CallRequest, ChatMessage, JsonObject
from dressage_paddock.tools import Tool, tool_schema


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """A call and the text that answers it. ``mistake`` says that the call itself was wrong."""

    call: CallRequest
    text: str
    mistake: bool


class ToolProtocol(Protocol):
    """Turns replies into calls and outcomes into messages."""

    def schemas(self, tools: Sequence[Tool]) -> list[JsonObject]:
        """What goes in the request's ``tools``; empty for a model without a tool grammar."""

    def calls(self, message: ChatMessage) -> tuple[CallRequest, ...]:
        """The calls that an assistant message makes; none ends the rollout."""

    def results(self, outcomes: Sequence[CallOutcome]) -> list[ChatMessage]:
        """The messages that carry the outcomes back, in the order of the calls."""


class NativeCallProtocol:
    """OpenAI tool calls: schemas in the request, one ``tool`` message per call."""

    def schemas(self, tools: Sequence[Tool]) -> list[JsonObject]:
        """Every tool's function schema."""
        return [tool_schema(tool) for tool in tools]

    def calls(self, message: ChatMessage) -> tuple[CallRequest, ...]:
        """The message's own tool calls."""
        return message.tool_calls

    def results(self, outcomes: Sequence[CallOutcome]) -> list[ChatMessage]:
        """One tool message per call."""
        return [ChatMessage("tool", o.text, tool_call_id=o.call.id) for o in outcomes]


class TextCallProtocol:
    """Calls written in the assistant's text, for models without a tool grammar.

    ``pattern`` has one group: what it holds goes to ``tool``'s argument ``argument`` (the shell's command).
    The first match of a reply counts. The output comes back as a user message, ``result`` with
    ``{output}`` in it. Reasoning text is never searched.
    """

    def __init__(
        self,
        pattern: str = r"<call>(.*?)</call>",
        *,
        tool: str = "shell",
        argument: str = "command",
        result: str = "{output}",
    ) -> None:
        try:
            self._pattern = re.compile(pattern, re.DOTALL)
        except re.error as error:
            raise TaskError(f"pattern {pattern!r} is not a regular expression: {error}") from error
        if self._pattern.groups != 1:
            raise TaskError(f"pattern {pattern!r} has {self._pattern.groups} groups: give exactly one")
        if "{output}" not in result:
            raise TaskError(f"result {result!r} has no {{output}}: the tool's text would be lost")
        self._tool = tool
        self._argument = argument
        self._result = result

    def schemas(self, tools: Sequence[Tool]) -> list[JsonObject]:
        """None: the prompt's own words say how to call.

        Raises :class:`TaskError` where ``tools`` lack the one that calls go to.
        """
        chosen = next((tool for tool in tools if tool.name == self._tool), None)
        if chosen is None:
            named = ", ".join(tool.name for tool in tools) or "none"
            raise TaskError(
                f"calls go to the tool {self._tool!r}, but the tools are {named}: name one of them"
            )
        if self._argument not in chosen.parameters["properties"]:
            raise TaskError(f"calls give {self._argument!r}, which the tool {self._tool!r} does not take")
        return []

    def calls(self, message: ChatMessage) -> tuple[CallRequest, ...]:
        """The first match in the content."""
        found = self._pattern.search(message.content)
        if found is None:
            return ()
        arguments = json.dumps({self._argument: found.group(1).strip()}, ensure_ascii=False)
        return (CallRequest("", self._tool, arguments),)

    def results(self, outcomes: Sequence[CallOutcome]) -> list[ChatMessage]:
        """One user message per call."""
        return [ChatMessage("user", self._result.replace("{output}", o.text)) for o in outcomes]
