"""The reasoning at the head of a turn."""

from __future__ import annotations

from dressage_tito.grammars.base import Piece, TurnContext

_CLOSED_ALONE = frozenset({"</mm:think>"})
"""MiniMax M3 begins a turn without thinking with the closing tag."""


def read_reasoning(text: str, context: TurnContext, warnings: list[str]) -> tuple[list[Piece], int]:
    """The pieces of the leading reasoning and where the rest begins.

    Whether reasoning was open already is told by the prompt, never read from the output; a model that writes
    the opening tag again after such a prompt loses nothing. Reasoning without its end takes the whole turn.
    """
    if context.reasoning_tags is None:
        return [], 0
    opening, closing = context.reasoning_tags
    start = 0
    blank = len(text) - len(text.lstrip())
    if text.startswith(opening, blank):
        start = blank + len(opening)
    elif opening.strip() != opening and text[blank:] == opening.strip():
        start = len(text)
    elif closing in _CLOSED_ALONE and not context.reasoning_open and text.startswith(closing, blank):
        start = blank
    elif not context.reasoning_open:
        return [], 0
    end = text.find(closing, start)
    after = end + len(closing)
    if end < 0:
        warnings.append("unclosed_reasoning: the turn ended inside its reasoning")
        end = after = len(text)
    while start < end and text[start] == "\n":
        start += 1
    last = end
    while last > start and text[last - 1] == "\n":
        last -= 1
    while after < len(text) and text[after] == "\n":
        after += 1
    pieces = [Piece("frame", 0, start), Piece("reasoning", start, last), Piece("frame", last, after)]
    return [piece for piece in pieces if piece.start < piece.end], after
