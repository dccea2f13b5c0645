"""Marks that keep frame and content apart while both go through a chat template as one text.

Content goes in with two kinds of marks, single characters that occur nowhere in the conversation: an *escape*
inside every control literal that content spells (so that neither the template nor the encoder takes it for
structure), and *start* / *end* marks around it (so that its place in the render is known). A render without
start and end marks shows that they changed nothing. Where they did (a template may look at how content begins
or ends), both stand in its middle instead, with the message's index between them.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from dressage_tito.messages import Message, Tool, ToolCall
from dressage_tito.profile import ArgumentsAs
from dressage_tito.spans import Span
from dressage_tito.template import Json

# Unicode noncharacters and the end of a private plane: where a text holds some, others are taken.
_POOL = [chr(code) for code in (*range(0xFDD0, 0xFDF0), *range(0x10FF00, 0x10FFFE))]


@dataclass(frozen=True, slots=True)
class Marks:
    """Four characters that occur in none of the texts that they were chosen for."""

    start: str
    end: str
    escape: str
    cut: str

    def unspelled(self, text: str) -> str:
        """A render with the escape itself where the template spelled it: in a list that it prints as Python
        does, or in JSON of ASCII."""
        for form in _spelled(self.escape):
            text = text.replace(form, self.escape)
        return text


FIRST_MARKS = Marks(*_POOL[:4])


def choose_marks(texts: Iterable[str], *, spelled: bool = False) -> Marks | None:
    """Marks that occur in none of the texts (with ``spelled``: nor as ASCII spells them); None where all are
    taken."""
    wide = [text for text in texts if spelled or not text.isascii()]
    if not wide:
        return FIRST_MARKS

    def occurs(mark: str) -> bool:
        forms = (mark, *_spelled(mark)) if spelled else (mark,)
        return any(form in text for text in wide for form in forms)

    free = list(islice((mark for mark in _POOL if not occurs(mark)), 4))
    return Marks(*free) if len(free) == 4 else None


@functools.cache
def _spelled(mark: str) -> tuple[str, ...]:
    """A mark as JSON spells it in ASCII, and as Python shows it."""
    return tuple({json.dumps(mark)[1:-1], repr(mark)[1:-1]} - {mark})


def conversation_texts(messages: Sequence[Message], tools: Sequence[Tool] | None) -> Iterator[str]:
    """Every text of a conversation that goes into a template."""
    for message in messages:
        yield from (message.content, message.reasoning, message.tool_call_id, message.name)
        for call in message.tool_calls:
            yield from (call.id, call.name, call.arguments_text)
            yield from _json_texts(call.arguments)
    for tool in tools or ():
        yield from _json_texts(tool)


def _json_texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield str(key)
            yield from _json_texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _json_texts(item)


class Marker:
    """Turns messages into what a template takes, escaped and (if asked) marked."""

    def __init__(
        self,
        marks: Marks,
        literals: re.Pattern[str],
        reasoning_field: str,
        arguments_as: ArgumentsAs = "object",
    ) -> None:
        self.marks = marks
        self.escaped = False
        """Whether a control literal was broken so far."""
        self._arguments_as = arguments_as
        self._literals = literals
        self._reasoning_field = reasoning_field

    def escape(self, text: str) -> str:
        """Break every control literal in the text."""
        while self._literals.search(text):
            text = self._literals.sub(self._break, text)
        return text

    def _break(self, match: re.Match[str]) -> str:
        self.escaped = True
        literal = match.group()
        return literal[0] + self.marks.escape + literal[1:]

    def mark(self, text: str) -> str:
        """Put start and end marks inside the surrounding blanks (a template may trim those)."""
        bare = text.strip()
        if not bare:
            return text
        head = len(text) - len(text.lstrip())
        tail = head + len(bare)
        return text[:head] + self.marks.start + bare + self.marks.end + text[tail:]

    def mark_inside(self, text: str, index: int) -> str:
        """Put a start mark, an index and an end mark into the middle of the text, if it is not blank."""
        left, right = _halves(text)
        return f"{left}{self.marks.start}{index}{self.marks.end}{right}" if left else text

    def escape_json(self, value: Any) -> Any:
        """The same for every text of a JSON value, keys too; order is kept."""
        if isinstance(value, str):
            return self.escape(value)
        if isinstance(value, Mapping):
            return {self.escape(str(key)): self.escape_json(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.escape_json(item) for item in value]
        return value

    def tools(self, tools: Sequence[Tool] | None) -> list[Json] | None:
        """Tools as the template takes them; None where there are none."""
        return [self.escape_json(tool) for tool in tools] if tools else None

    def messages(self, messages: Sequence[Message], *, marked: bool) -> list[Json]:
        """Messages as the template takes them (tool arguments as objects, absent content as "")."""
        dress: Callable[[str], str] = (lambda text: self.mark(self.escape(text))) if marked else self.escape
        return [self._message(message, dress) for message in messages]

    def messages_marked_inside(self, messages: Sequence[Message]) -> list[Json]:
        """The same with the marks in the middle of each content."""
        said = self.messages(messages, marked=False)
        return [{**one, "content": self.mark_inside(one["content"], index)} for index, one in enumerate(said)]

    def _message(self, message: Message, dress: Callable[[str], str]) -> Json:
        result: dict[str, Any] = {"role": message.role, "content": dress(message.content)}
        if message.reasoning and self._reasoning_field:
            result[self._reasoning_field] = dress(message.reasoning)
        if message.name:
            result["name"] = self.escape(message.name)
        if message.tool_call_id:
            result["tool_call_id"] = self.escape(message.tool_call_id)
        if message.tool_calls:
            result["tool_calls"] = [
                {
                    "id": self.escape(call.id),
                    "type": "function",
                    "function": {
                        "name": self.escape(call.name),
                        "arguments": self._arguments(call),
                    },
                }
                for call in message.tool_calls
            ]
        return result

    def _arguments(self, call: ToolCall) -> object:
        """A call's arguments as the template takes them; what is no JSON object stays text."""
        known = call.arguments or not call.arguments_text.strip(" \t\r\n{}")
        if self._arguments_as == "object" and known:
            return self.escape_json(dict(call.arguments))
        if not known or (call.arguments_text and _same(call)):
            return self.escape(call.arguments_text)
        return json.dumps(self.escape_json(dict(call.arguments)), ensure_ascii=False)


def _same(call: ToolCall) -> bool:
    try:
        return bool(json.loads(call.arguments_text) == dict(call.arguments))
    except ValueError:
        return False


def unmark(text: str, marks: Marks) -> tuple[str, list[Span]]:
    """Take start and end marks out; the spans that lay between them."""
    pieces: list[str] = []
    spans: list[Span] = []
    length = 0
    for part in text.split(marks.start):
        inside, mark, after = part.partition(marks.end)
        if mark:
            spans.append((length, length + len(inside)))
        pieces += (inside, after)
        length += len(inside) + len(after)
    return "".join(pieces), spans


def widen(text: str, spans: Sequence[Span], contents: Sequence[str]) -> list[Span]:
    """Let spans take in the blanks at their content's ends, which marks leave outside, where printed."""
    wide: list[Span] = []
    position = index = 0
    for start, end in spans:
        if index < len(contents) and text[start:end] == contents[index].strip():
            content = contents[index]
            index += 1
            head = len(content) - len(content.lstrip())
            tail = len(content) - len(content.rstrip())
            if start - head >= position and text[start - head : start] == content[:head]:
                start -= head
            if text[end : end + tail] == content[len(content) - tail :]:
                end += tail
        wide.append((start, end))
        position = end
    return wide


def unmark_inside(text: str, marks: Marks, contents: Sequence[str]) -> tuple[str, list[Span], list[int]]:
    """Take marks out of the middles of contents; the spans of those that stand there whole, less the blanks
    at their ends, and their indices."""
    pieces = re.split(f"{marks.start}([0-9]+){marks.end}", text)
    bare = "".join(pieces[::2])
    cut = {str(index): _halves(content.strip()) for index, content in enumerate(contents)}
    spans: list[Span] = []
    indices: list[int] = []
    middle = end = 0
    for piece, index in zip(pieces[::2], pieces[1::2], strict=False):
        middle += len(piece)
        for left, right in zip(*map(forms, cut.get(index, ("", ""))), strict=False):
            start = middle - len(left)
            if left and start >= end and bare.startswith(left + right, start):
                end = middle + len(right)
                spans.append((start, end))
                indices.append(int(index))
                break
    return bare, spans, indices


def _halves(text: str) -> tuple[str, str]:
    """A text cut behind the middle of what is visible of it; ("", text) where nothing is."""
    bare = text.strip()
    middle = len(text) - len(text.lstrip()) + (len(bare) + 1) // 2 if bare else 0
    return text[:middle], text[middle:]


def forms(text: str) -> tuple[str, ...]:
    """A content as a template may print it: as it is, or inside a JSON string."""
    return text, json.dumps(text, ensure_ascii=False)[1:-1]


def is_text(text: str) -> bool:
    """Whether every character can be encoded: JSON may spell halves of surrogate pairs."""
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False
