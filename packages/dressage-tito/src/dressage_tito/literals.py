"""Control literals: which added tokens are some, where they stand in a text, and which blanks are theirs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

_BLANKS = " \t\n\r\u2581"
"""Blank space; U+2581 is how SentencePiece writes a blank."""
_MARKUP = re.compile(
    r"</?(?:a|b|blockquote|br|caption|code|div|em|h[1-6]|hr|i|img|li|ol|p|pre|s|small|span|strike|strong|sub|sup"
    r"|table|tbody|td|tfoot|th|thead|tr|u|ul)>"
)
"""HTML that people write: some vocabularies (Gemma's) add such tags, and they stand for no structure."""
_WHITE = frozenset(
    "\t\n\x0b\x0c\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
"""White space as Unicode has it; that of ``str.isspace`` has U+001C to U+001F too."""


def is_control(item: Mapping[str, Any]) -> bool:
    """Whether an added token of a tokenizer.json is a control literal."""
    literal = str(item["content"])
    if len(literal.strip(_BLANKS)) < 2:
        return False
    return bool(item.get("special")) or not _MARKUP.fullmatch(literal)


def literal_pattern(added: Sequence[Mapping[str, Any]], *, words: bool) -> re.Pattern[str]:
    """Leftmost, longest first; with ``words`` those that stand for a word alone are no parts of words."""
    parts = []
    for item in sorted(added, key=lambda item: -len(str(item["content"]))):
        part = re.escape(str(item["content"]))
        parts.append(rf"(?<!\w){part}(?!\w)" if words and item.get("single_word") else part)
    return re.compile("|".join(parts) if parts else r"(?!)")


def with_blanks(text: str, after: int, start: int, end: int, left: bool, right: bool) -> tuple[int, int]:
    """The literal's place with the blanks beside it, from ``after`` on."""
    while left and start > after and text[start - 1] in _WHITE:
        start -= 1
    while right and end < len(text) and text[end] in _WHITE:
        end += 1
    return start, end
