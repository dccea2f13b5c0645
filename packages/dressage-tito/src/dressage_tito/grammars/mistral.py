"""Mistral: ``[TOOL_CALLS][{…}, {…}]``, and from v11 on ``[TOOL_CALLS]name[CALL_ID]id[ARGS]{…}``."""

from __future__ import annotations

import re
from typing import ClassVar

from dressage_tito.grammars.base import ToolGrammar
from dressage_tito.grammars.jsoncall import read_arguments, read_list, typed_call
from dressage_tito.grammars.scan import Broken, CallFinder, Found, reader
from dressage_tito.jsonspan import skip_blank

_OPEN = "[TOOL_CALLS]"
_HEAD = re.compile(r"\s*(?P<name>[^\s\[\]{}]+)\s*(?:\[CALL_ID\]\s*(?P<id>[^\s\[\]{}]+)\s*)?\[ARGS\]")


class _Finder(CallFinder):
    opening: ClassVar[str] = re.escape(_OPEN)
    before: ClassVar[tuple[str, ...]] = ()

    def find(self, start: int, after: int) -> Found | Broken:
        # A call has no closing mark, so that nothing after a broken one is known to stand outside of it.
        broken = Broken(len(self.text), _OPEN)
        body = skip_blank(self.text, after)
        if self.text.startswith("[", body):
            found = read_list(self.text, body, self.context.schemas, ids=("id",))
            return broken if isinstance(found, int) else Found(found[0], found[2], warnings=found[1])
        head = _HEAD.match(self.text, after)
        if head is None:
            return broken
        arguments = read_arguments(self.text, head.end())
        if isinstance(arguments, int):
            return broken
        values, text, end = arguments
        call, odd = typed_call(head["id"] or "", head["name"], values, text, self.context.schemas)
        return Found((call,), end, closed=False, warnings=tuple(odd))


def _call_id(name: str, index: int) -> str:
    return f"call{index:05d}"


MISTRAL = ToolGrammar(
    "mistral",
    reader(_Finder),
    carries_ids=True,
    control_literals_needed=(_OPEN,),
    call_id=_call_id,
)
