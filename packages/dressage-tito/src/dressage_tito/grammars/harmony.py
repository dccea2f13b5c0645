"""gpt-oss (harmony): a turn of several messages, each with a header of channel and recipient.

``<|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>commentary to=functions.name
<|constrain|>json<|message|>{…}<|call|>``: analysis is reasoning, a message with a recipient is a call, and
all others are content. The prompt ends with ``<|start|>assistant``, so that the turn begins in mid-header.
"""

from __future__ import annotations

import re

from dressage_tito.grammars.base import Piece, PieceKind, Reading, ToolGrammar, TurnContext
from dressage_tito.grammars.jsoncall import read_arguments, typed_call
from dressage_tito.jsonspan import skip_blank

_START, _MESSAGE = "<|start|>", "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_HEADER = re.compile(
    r"(?:<\|start\|>)?(?:assistant)?(?P<words>(?:\s*+to=[^\s<>]++)?+(?:\s*+<\|channel\|>\s*+[a-zA-Z_]++"
    r"(?:\s++to=[^\s<>]++)?+\s*+(?:<\|constrain\|>)?+\s*+[\w.+/-]*+)?+\s*+)<\|message\|>"
)
_RECIPIENT = re.compile(r"(?:^|\s|>)to=(?P<to>[^\s<>]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(?P<channel>[a-zA-Z_]+)")
_END = re.compile(r"<\|(?:end|call|return)\|>|(?=<\|start\|>)")


class _Turn:
    def __init__(self, text: str, context: TurnContext) -> None:
        self.pieces: list[Piece] = []
        self.warnings: list[str] = []
        self._text = text
        self._context = context

    def read(self) -> None:
        """Cut the whole text into pieces."""
        position = 0
        while position < len(self._text):
            header = _HEADER.match(self._text, position)
            if header is None:
                position = self._stray(position)
                continue
            recipient = _RECIPIENT.search(header["words"])
            after = self._call(position, header.end(), recipient["to"]) if recipient else None
            position = self._message(position, header, recipient is not None) if after is None else after

    def _stray(self, position: int) -> int:
        """Text that no header introduces stays content."""
        following = self._text.find(_START, position + 1)
        end = len(self._text) if following < 0 else following
        if self._text[position:end].strip() in {"", *_ENDS}:
            self._piece("frame", position, end)
        else:
            self.warnings.append("malformed_message: a text without a header was left in the content")
            self._piece("content", position, end)
        return end

    def _message(self, start: int, header: re.Match[str], is_call: bool) -> int:
        """A message up to its end; one that should be a call and is none stays content as a whole."""
        mark = _END.search(self._text, header.end())
        end, after = mark.span() if mark else (len(self._text), len(self._text))
        if is_call:
            self._piece("content", start, after)
            return after
        channel = _CHANNEL.search(header["words"])
        kind: PieceKind = "reasoning" if channel and channel["channel"] == "analysis" else "content"
        if kind == "reasoning" and mark is None:
            self.warnings.append("unclosed_reasoning: the turn ended inside its reasoning")
        self._piece("frame", start, header.end())
        self._piece(kind, header.end(), end)
        self._piece("frame", end, after)
        return after

    def _call(self, start: int, body: int, to: str) -> int | None:
        """Where the call ends whose arguments begin at ``body``; None, with a warning, where it is none."""
        if not self._context.tools:
            self.warnings.append("tool_call_without_tools: the turn writes a call, but no tools were offered")
            return None
        name = to.removeprefix("functions.")
        arguments = read_arguments(self._text, body)
        end = arguments if isinstance(arguments, int) else skip_blank(self._text, arguments[2])
        mark = _END.match(self._text, end)
        if end == len(self._text) and self._context.finish_reason != "stop":
            self.warnings.append("incomplete_tool_call: a call without its end was left in the content")
            return None
        if isinstance(arguments, int) or not name or (mark is None and end < len(self._text)):
            self.warnings.append("malformed_tool_call: a call that does not parse was left in the content")
            return None
        call, odd = typed_call("", name, arguments[0], arguments[1], self._context.schemas)
        after = mark.end() if mark else end
        self.pieces.append(Piece("call", start, after, (call,)))
        self.warnings += odd
        return after

    def _piece(self, kind: PieceKind, start: int, end: int) -> None:
        if start < end:
            self.pieces.append(Piece(kind, start, end))


def _read(text: str, context: TurnContext) -> Reading:
    turn = _Turn(text, context)
    turn.read()
    return Reading(tuple(turn.pieces), tuple(dict.fromkeys(turn.warnings)))


HARMONY = ToolGrammar(
    "harmony",
    _read,
    control_literals_needed=(_START, _MESSAGE, "<|channel|>", "<|constrain|>", *_ENDS),
)
