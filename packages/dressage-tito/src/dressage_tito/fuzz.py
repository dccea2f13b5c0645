"""Made-up conversations for certification: small, odd, and the same for the same seed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dressage_tito.messages import Message, Tool, ToolCall

TOOLS: tuple[Tool, ...] = tuple(
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Runs {name}.",
            "parameters": {
                "type": "object",
                "properties": {"command": {"type": "string"}, "options": {"type": "object"}},
            },
        },
    }
    for name in ("shell", "read_file")
)

_PIECES = (
    "a",
    "word",
    "Hello, world!",
    " ",
    "  ",
    "\n",
    "\n\n",
    "\t",
    "1234",
    "naïve café",
    "cafe\u0301",
    "你好，世界",
    "עברית",
    "👩‍👩‍👧‍👦🏳️‍🌈",
    "\u2028",
    "\u00a0",
    "{}",
    '{"k": [1, {"q": "\\"x\\""}]}',
    "```python\nprint(1)\n```",
    "\\n",
    "<b>",
    "|>",
    "<|",
    "<",
    "http://x.y/z?a=b&c",
    "\u200d",
    "Ａ",
)


@dataclass(frozen=True, slots=True)
class Round:
    """Messages from outside, and the model's answer to them."""

    appended: tuple[Message, ...]
    reply: Message


@dataclass(frozen=True, slots=True)
class Conversation:
    """Rounds, of which the first may begin with a system message; ``last`` is what nobody answered yet."""

    rounds: tuple[Round, ...]
    last: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()

    def messages(self) -> list[Message]:
        """All of them, in order."""
        out: list[Message] = []
        for item in self.rounds:
            out += [*item.appended, item.reply]
        return [*out, *self.last]


class Fuzzer:
    """Draws conversations. ``literals`` are control literals that user and tool text may spell;
    ``extra`` roles (``system``, ``assistant``; "" for nothing at all) may be appended in mid-conversation;
    ``parallel`` and ``content_beside_calls`` say what the template prints."""

    def __init__(
        self,
        seed: int,
        literals: Sequence[str],
        *,
        tools: bool,
        reasoning: bool,
        system: bool,
        call_id: Callable[[str, int], str] = lambda name, index: "",
        extra: Sequence[str] = (),
        parallel: bool = True,
        content_beside_calls: bool = True,
    ) -> None:
        self._random = random.Random(seed)
        self._literals = list(literals)
        self._tools = tools
        self._reasoning = reasoning
        self._system = system
        self._call_id = call_id
        self._extra = list(extra)
        self._calls_made = 0
        self._parallel = parallel
        self._content_beside_calls = content_beside_calls

    def conversation(self, *, spelled: bool, rounds: int = 0) -> Conversation:
        """One conversation (of 1 to 4 rounds unless a number is given); with ``spelled`` its content spells
        control literals."""
        draw = self._random
        with_tools = self._tools and draw.random() < 0.6
        self._calls_made = 0
        made: list[Round] = []
        appended: tuple[Message, ...] = (self._message("user", spelled),)
        if self._system and draw.random() < 0.5:
            appended = (self._message("system", spelled), *appended)
        for _ in range(rounds or draw.randint(1, 4)):
            reply = self._reply(with_tools)
            made.append(Round(appended, reply))
            appended = self._next(reply, spelled)
        return Conversation(tuple(made), appended, TOOLS if with_tools else ())

    def text(self, spelled: bool = False) -> str:
        """A few odd pieces in a row."""
        pool = [*_PIECES, *(self._literals if spelled else ())]
        return "".join(self._random.choice(pool) for _ in range(self._random.randint(0, 6)))

    def split(self, text: str) -> list[str]:
        """The text cut at random places."""
        pieces, position = [], 0
        while position < len(text):
            size = self._random.randint(1, 4)
            pieces.append(text[position : position + size])
            position += size
        return pieces

    def cut(self, size: int) -> int:
        """A length at which a turn of ``size`` ids is cut."""
        return self._random.randint(0, max(0, size - 1))

    def _message(self, role: str, spelled: bool) -> Message:
        return Message(role, self.text(spelled))

    def _reply(self, with_tools: bool) -> Message:
        draw = self._random
        calls: tuple[ToolCall, ...] = ()
        if with_tools:
            # What the template cannot print is drawn too, seldom: it must be refused.
            most = 3 if self._parallel or draw.random() < 0.1 else 1
            calls = tuple(self._call() for _ in range(draw.randint(0, most)))
        reasoning = self.text().strip() if self._reasoning and draw.random() < 0.5 else ""
        content = self.text().strip()
        if calls and not self._content_beside_calls and draw.random() < 0.9:
            content = ""
        return Message("assistant", content, reasoning=reasoning, tool_calls=calls)

    def _call(self) -> ToolCall:
        arguments: dict[str, Any] = {
            "command": self.text(),
            "options": {"deep": [1, None, True, self.text()]},
        }
        name = self._random.choice(["shell", "read_file"])
        made_up = "".join(self._random.choice("abcdef0123456789") for _ in range(9))
        call_id = self._call_id(name, self._calls_made) or made_up
        self._calls_made += 1
        return ToolCall(call_id, name, arguments, json.dumps(arguments, ensure_ascii=False))

    def _next(self, reply: Message, spelled: bool) -> tuple[Message, ...]:
        if "" in self._extra and self._random.random() < 0.1:
            return ()  # the model goes on by itself
        if not reply.tool_calls:
            return (*self._aside(spelled), self._message("user", spelled), *self._late(spelled))
        results = tuple(
            Message("tool", self.text(spelled), tool_call_id=call.id, name=call.name)
            for call in reply.tool_calls
        )
        return (*results, self._message("user", spelled)) if self._random.random() < 0.3 else results

    def _aside(self, spelled: bool) -> tuple[Message, ...]:
        """An assistant message that nobody sampled (of another model, or a canned one)."""
        if "assistant" not in self._extra or self._random.random() > 0.1:
            return ()
        return (Message("assistant", self.text(spelled).strip() or "noted"),)

    def _late(self, spelled: bool) -> tuple[Message, ...]:
        """A system message in mid-conversation."""
        if "system" not in self._extra or self._random.random() > 0.1:
            return ()
        return (self._message("system", spelled),)


def smaller(conversation: Conversation) -> Iterator[Conversation]:
    """Conversations with one thing less, the boldest cuts first; a user still speaks first, and every tool
    message still answers a call of the reply before it."""
    return filter(_sound, _smaller(conversation))


def _sound(conversation: Conversation) -> bool:
    if not any(message.role == "user" for message in conversation.rounds[0].appended):
        return False
    calls: set[str] = set()
    for message in conversation.messages():
        if message.role == "assistant":
            calls = {call.id for call in message.tool_calls}
        elif message.role == "tool" and message.tool_call_id not in calls:
            return False
    return True


def _smaller(conversation: Conversation) -> Iterator[Conversation]:
    rounds = conversation.rounds
    for index in range(len(rounds)):
        if len(rounds) > 1:
            yield replace(conversation, rounds=rounds[:index] + rounds[index + 1 :])
    if conversation.tools and not any(item.reply.tool_calls for item in rounds):
        yield replace(conversation, tools=())
    for index, item in enumerate(rounds):
        for appended in _smaller_messages(item.appended):
            yield _with_round(conversation, index, replace(item, appended=appended))
        for reply in _smaller_message(item.reply):
            yield _with_round(conversation, index, replace(item, reply=reply))
    for last in _smaller_messages(conversation.last):
        yield replace(conversation, last=last)


def _with_round(conversation: Conversation, index: int, item: Round) -> Conversation:
    rounds = conversation.rounds
    return replace(conversation, rounds=(*rounds[:index], item, *rounds[index + 1 :]))


def _smaller_messages(messages: tuple[Message, ...]) -> Iterator[tuple[Message, ...]]:
    for index in range(len(messages)):
        if len(messages) > 1:
            yield messages[:index] + messages[index + 1 :]
    for index, message in enumerate(messages):
        for less in _smaller_message(message):
            yield (*messages[:index], less, *messages[index + 1 :])


def _smaller_message(message: Message) -> Iterator[Message]:
    if message.tool_calls:
        yield replace(message, tool_calls=message.tool_calls[:-1])
    if message.reasoning:
        yield replace(message, reasoning="")
    for content in _smaller_text(message.content):
        # A reply's blanks at its ends are a template's business: conversations are made up without them.
        yield replace(message, content=content.strip() if message.role == "assistant" else content)
    for reasoning in _smaller_text(message.reasoning):
        yield replace(message, reasoning=reasoning.strip())


def _smaller_text(text: str) -> Iterator[str]:
    size = len(text)
    if size > 1:
        half = size // 2
        yield text[:half]
        yield text[half:]
        yield text[1:]
        yield text[:-1]
