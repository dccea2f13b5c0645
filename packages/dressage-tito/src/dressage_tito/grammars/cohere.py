"""Cohere Command R7B and later: a JSON list of ``tool_name`` and ``parameters`` in an action block.

A model may leave out the list's brackets around one.
"""

from __future__ import annotations

import re
from typing import ClassVar

from dressage_tito.grammars.base import ToolGrammar
from dressage_tito.grammars.jsoncall import read_calls, read_list
from dressage_tito.grammars.scan import Broken, CallFinder, Found, reader
from dressage_tito.jsonspan import skip_blank

_OPEN, _CLOSE = "<|START_ACTION|>", "<|END_ACTION|>"


class _Finder(CallFinder):
    opening: ClassVar[str] = re.escape(_OPEN)
    before: ClassVar[tuple[str, ...]] = ()
    lead: ClassVar[tuple[str, ...]] = ("<|START_RESPONSE|>", "<|START_TEXT|>")
    trail: ClassVar[tuple[str, ...]] = ("<|END_RESPONSE|>", "<|END_TEXT|>")

    def find(self, start: int, after: int) -> Found | Broken:
        body = skip_blank(self.text, after)
        read = read_list if self.text.startswith("[", body) else read_calls
        found = read(
            self.text, body, self.context.schemas, names=("tool_name", "name"), ids=("tool_call_id",)
        )
        if isinstance(found, int):
            return Broken(found, _CLOSE, begun=self.text.startswith(("[", "{"), body))
        calls, warnings, end = found
        return self.closed(calls, end, _CLOSE, list(warnings))


def _call_id(name: str, index: int) -> str:
    return str(index)


COHERE = ToolGrammar(
    "cohere",
    reader(_Finder),
    carries_ids=True,
    control_literals_needed=(_OPEN, _CLOSE, "<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    call_id=_call_id,
)
