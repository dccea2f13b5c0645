"""JSON calls in one block, as a list or one after the other.

``<TOOLCALL>[{"name": …, "arguments": {…}}]</TOOLCALL>`` (Nemotron Nano v2); ``<tool_calls>`` with a list or
with lines (Apriel, MiniMax M1, Hunyuan A13B); ``<|action_start|><|plugin|>`` (InternLM 2 and later);
``<|tool_call|>[…]`` (Granite 3) and ``<|function_call|>{…}`` (GigaChat 3.1), which the turn's end closes.
"""

from __future__ import annotations

import re
from typing import ClassVar

from dressage_tito.grammars.base import ToolGrammar
from dressage_tito.grammars.jsoncall import read_calls, read_list
from dressage_tito.grammars.scan import Broken, CallFinder, Found, reader
from dressage_tito.jsonspan import skip_blank

_BLOCKS = {
    "<TOOLCALL>": "</TOOLCALL>",
    "<tool_calls>": "</tool_calls>",
    "<|action_start|><|plugin|>": "<|action_end|>",
    "<|tool_call|>": "",
    "<|function_call|>": "",
}
"""What opens a block, and what closes it; "" for the turn's end."""


class _Finder(CallFinder):
    opening: ClassVar[str] = "|".join(map(re.escape, _BLOCKS))

    def find(self, start: int, after: int) -> Found | Broken:
        opening = self.text[start:after]
        close = _BLOCKS[opening]
        body = skip_blank(self.text, after)
        if self.text.startswith("[", body):
            found = read_list(self.text, body, self.context.schemas)
        elif self.text.startswith("{", body):
            found = read_calls(self.text, body, self.context.schemas)
        else:
            return Broken(after, close or opening, begun=False)
        if isinstance(found, int):
            # Without a closing mark nothing after a broken call is known to stand outside of it.
            return Broken(found, close) if close else Broken(len(self.text), opening)
        calls, warnings, end = found
        if close:
            return self.closed(calls, end, close, list(warnings))
        return Found(calls, skip_blank(self.text, end), closed=False, warnings=warnings)


JSON_LIST = ToolGrammar(
    "json_list",
    reader(_Finder),
    control_literals_needed=(*_BLOCKS, *filter(None, _BLOCKS.values())),
)
