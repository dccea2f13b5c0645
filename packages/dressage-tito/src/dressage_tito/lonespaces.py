"""Whether the words that an expression finds keep to one side of a space that stands alone."""

from __future__ import annotations

import re

_ITEM = re.compile(r"\(\?i?[:!=]|[()|]|\[\^?(?:\\.|[^\]\\])*\]|\\.|\{\d+(?:,\d*)?\}|[?*+]|.", re.DOTALL)
_BLANK = re.compile(r"\[?(?:\\[tnr ]|\\x0[bc]| )+\]?")
"""What finds nothing but white space of ASCII."""
_ENDS_SPACE = ["(?!", r"[^\t\n\x0b\x0c\r ]", ")"]
"""White space that nothing visible follows."""


def keeps_lone_spaces(pattern: str) -> bool:
    """Whether no match of an expression (in the dialect of ``re``, its classes cut to ASCII) has something
    visible before a space, nor looks over one; so it is for the whole of its classes too.

    False where that does not show in how it is written: in each alternative, what may be a space comes
    before all that may be something else, or is its one first character.
    """
    items = _ITEM.findall(pattern)
    depth, visible, at = 0, False, 0
    while at < len(items):
        item = items[at]
        if items[at : at + 3] == _ENDS_SPACE and not depth and not visible:
            at += 3
            continue
        at += 1
        if item in ("(?!", "(?=", "(?i!", "(?i="):
            return False
        if item in ("(?:", "(?i:", ")"):
            depth += -1 if item == ")" else 1
        elif item == "|":
            visible = visible and depth > 0
        elif item not in ("?", "*", "+") and not item.startswith("{"):
            atom = re.compile(item, re.IGNORECASE)
            other = not _BLANK.fullmatch(item)
            many = at < len(items) and items[at] != "?" and items[at][0] in "*+{"
            if atom.fullmatch(" ") and (depth or visible or (other and many)):
                return False
            visible = visible or other
    return True
