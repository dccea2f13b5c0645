"""Agents without a program: each writes a conversation down as its own API's requests would carry it."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dressage_proxy.replay.traffic import Row


@dataclass(frozen=True, slots=True)
class Made:
    """A tool call of an answer, with the result that the agent gets for it."""

    name: str
    arguments: Mapping[str, Any]
    result: str = "ok"
    failed: bool = False
    freeform: bool = False
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model says."""

    text: str = ""
    calls: tuple[Made, ...] = ()
    thinking: str = "let me think about that"


@dataclass(slots=True)
class Agent(ABC):
    """One session of an agent; ``ask`` writes a request down, ``take`` the answer that it got."""

    agent: str
    run: str
    system: str
    tools: tuple[str, ...] = ("shell", "edit")
    headers: dict[str, str] = field(default_factory=dict)
    items: list[dict[str, Any]] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    path: str = ""
    _answers: int = 0

    def ask(self, label: str = "") -> None:
        """Send the conversation as it is; ``label`` says what the recording server did."""
        body = json.loads(json.dumps(self.body()))
        row = Row(self.agent, self.run, "POST", self.path, "", dict(self.headers), body, label)
        self.rows.append(row)

    def turn(self, answer: Answer, label: str = "") -> None:
        """Ask, and go on with the answer and what its calls gave."""
        self.ask(label)
        self.take(answer)

    def again(self, **changed: Any) -> Agent:
        """Another conversation of the same session."""
        other = replace(self, items=[], **changed)
        other.rows = self.rows
        return other

    def next_id(self) -> str:
        """A new id, unique in the traffic."""
        self._answers += 1
        return f"{self.agent}{self.run}{len(self.rows)}x{self._answers}".replace("-", "")

    @abstractmethod
    def body(self) -> dict[str, Any]:
        """The request's body."""

    @abstractmethod
    def say(self, text: str) -> None:
        """A user's message."""

    @abstractmethod
    def take(self, answer: Answer) -> None:
        """An answer and the results of its calls."""


class ChatAgent(Agent):
    """Chat completions: opencode, openclaw."""

    def body(self) -> dict[str, Any]:
        """See :meth:`Agent.body`."""
        system = [{"role": "system", "content": self.system}]
        body: dict[str, Any] = {"model": "m", "messages": system + self.items, "stream": True}
        body |= {"max_tokens": 8192, "stream_options": {"include_usage": True}}
        if self.tools:
            tools = [{"type": "function", "function": {"name": n, "parameters": {}}} for n in self.tools]
            body |= {"tools": tools, "tool_choice": "auto"}
        return body

    def say(self, text: str) -> None:
        """See :meth:`Agent.say`."""
        self.items.append({"role": "user", "content": text})

    def take(self, answer: Answer) -> None:
        """Arguments are written again, as a JSON writer of another language does."""
        message: dict[str, Any] = {"role": "assistant", "content": answer.text or None}
        if answer.thinking:
            message["reasoning_content"] = answer.thinking
        results = []
        for made in answer.calls:
            call_id = "call" + self.next_id()
            text = json.dumps(dict(made.arguments), separators=(",", ":"), ensure_ascii=False)
            call = {"id": call_id, "type": "function", "function": {"name": made.name, "arguments": text}}
            message.setdefault("tool_calls", []).append(call)
            results.append({"role": "tool", "tool_call_id": call_id, "content": made.result})
        self.items += [message, *results]


class ResponsesAgent(Agent):
    """Responses: codex."""

    def body(self) -> dict[str, Any]:
        """See :meth:`Agent.body`."""
        developer = {"type": "message", "role": "developer", "content": _input(self.system)}
        tools: list[dict[str, Any]] = [
            {"type": "function", "name": name, "parameters": {"type": "object"}, "strict": False}
            for name in self.tools
        ]
        if tools:
            spawn = {"type": "function", "name": "spawn", "parameters": {"type": "object"}}
            tools.append({"type": "namespace", "name": "agents", "description": "agents", "tools": [spawn]})
            tools += [
                {"type": "custom", "name": "apply_patch", "description": "edit"},
                {"type": "web_search"},
            ]
        return {
            "model": "m",
            "input": [developer, *self.items],
            "tools": tools,
            "tool_choice": "auto",
            "parallel_tool_calls": bool(tools),
            "reasoning": {"summary": "auto"},
            "store": False,
            "stream": True,
            "include": ["reasoning.encrypted_content"],
            "prompt_cache_key": self.run,
        }

    def say(self, text: str) -> None:
        """Input ids are random."""
        self.items.append({"type": "message", "id": self.next_id(), "role": "user", "content": _input(text)})

    def take(self, answer: Answer) -> None:
        """Items come back whole, their reasoning with its signature."""
        if answer.thinking:
            self.items.append(
                {
                    "type": "reasoning",
                    "id": self.next_id(),
                    "summary": [{"type": "summary_text", "text": answer.thinking}],
                    "content": None,
                    "encrypted_content": "sealed" + self.next_id(),
                }
            )
        if answer.text:
            part = {"type": "output_text", "text": answer.text, "annotations": []}
            self.items.append(
                {"type": "message", "role": "assistant", "status": "completed", "content": [part]}
            )
        results = []
        for made in answer.calls:
            call_id = "call_" + self.next_id()
            kind = "custom_tool_call" if made.freeform else "function_call"
            item = {"type": kind, "name": made.name, "call_id": call_id, "status": "completed"}
            if made.freeform:
                item["input"] = str(made.arguments["input"])
            else:
                item["arguments"] = json.dumps(dict(made.arguments))
            if made.namespace:
                item["namespace"] = made.namespace
            self.items.append(item)
            results.append({"type": f"{kind}_output", "call_id": call_id, "output": made.result})
        self.items += results


class MessagesAgent(Agent):
    """Messages: claude-code. Its first system block changes each time, and its last user message goes from a
    list of one text to a text."""

    def body(self) -> dict[str, Any]:
        """See :meth:`Agent.body`."""
        billing = f"x-vendor-billing-header: n={len(self.rows)}"
        system = [{"type": "text", "text": text} for text in (billing, self.system)]
        items = [*self.items]
        if items and items[-1]["role"] == "user" and isinstance(items[-1]["content"], str):
            text = {"type": "text", "text": items[-1]["content"], "cache_control": {"type": "ephemeral"}}
            items[-1] = {"role": "user", "content": [text]}
        return {
            "model": "m",
            "max_tokens": 32000,
            "system": system,
            "messages": items,
            "tools": [{"name": name, "input_schema": {"type": "object"}} for name in self.tools],
            "thinking": {"type": "adaptive"},
            "output_config": {"effort": "high"},
            "metadata": {"user_id": self.run},
            "stream": True,
        }

    def say(self, text: str) -> None:
        """After tool results it joins their message."""
        last = self.items[-1] if self.items else None
        if last is not None and last["role"] == "user" and isinstance(last["content"], list):
            last["content"].append({"type": "text", "text": text})
        else:
            self.items.append({"role": "user", "content": text})

    def note(self, text: str) -> None:
        """A system message inside the conversation."""
        self.items.append({"role": "system", "content": text})

    def take(self, answer: Answer) -> None:
        """Results come in the order of their completion: the last call's first."""
        blocks: list[dict[str, Any]] = []
        if answer.thinking:
            signature = "signed" + self.next_id()
            blocks.append({"type": "thinking", "thinking": answer.thinking, "signature": signature})
        if answer.text:
            blocks.append({"type": "text", "text": answer.text})
        results = []
        for made in answer.calls:
            call_id = "toolu" + self.next_id()
            blocks.append(
                {"type": "tool_use", "id": call_id, "name": made.name, "input": dict(made.arguments)}
            )
            result = {"type": "tool_result", "tool_use_id": call_id, "content": made.result}
            results.append({**result, "is_error": made.failed})
        self.items.append({"role": "assistant", "content": blocks})
        if results:
            self.items.append({"role": "user", "content": results[::-1]})


def _input(text: str) -> list[dict[str, str]]:
    return [{"type": "input_text", "text": text}]
