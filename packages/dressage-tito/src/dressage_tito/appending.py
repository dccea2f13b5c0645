"""What may be appended without changing what stands before, found by rendering short conversations."""

from __future__ import annotations

import re

from dressage_tito.grammars import REASONING_TAGS
from dressage_tito.probe import CALL_ID, OTHER, USER, WORD, Probe
from dressage_tito.template import Json

_LATER = "Xq7later"
_LATER_ID = "call00002"
_ROLES = ("user", "tool", "system", "assistant")


def not_appendable(probe: Probe, with_tools: bool, block: tuple[str, str] | None) -> dict[str, str]:
    """Roles (``user``; ``user+tools``) that change earlier text when they are appended, with the reason."""
    found: dict[str, str] = {}
    for role in _ROLES:
        for tools in (False, True) if with_tools else (False,):
            reason = _why_not(probe, role, tools, block)
            if reason:
                found[f"{role}+tools" if tools else role] = reason
    return found


def _why_not(probe: Probe, role: str, tools: bool, block: tuple[str, str] | None) -> str:
    calls = role == "tool" and tools
    choices: dict[str, list[Json]] = {
        "user": [{"role": "user", "content": OTHER}],
        "tool": [probe.result()],
        "system": [{"role": "system", "content": OTHER}],
        "assistant": [{"role": "assistant", "content": OTHER}, USER],
    }
    appended = choices[role]
    for system in ([], [{"role": "system", "content": "Xq7system"}]):
        base: list[Json] = [*system, USER, probe.calls() if calls else probe.reply()]
        before = probe.try_text(base, tools=tools)
        after = probe.try_text([*base, *appended], generation=True, tools=tools)
        if before is None or after is None:
            continue
        if head_of(before, block) != head_of(after, block):
            return "template_rewrites_history"
        prompt = probe.try_text(base[:-1], generation=True, tools=tools)
        if prompt is not None and not head_of(after, block).startswith(unopened(prompt, block)):
            return "template_rewrites_history"
        again: Json = probe.calls(word=_LATER, call_id=_LATER_ID) if calls else probe.reply(_LATER)
        then = [probe.result(call_id=_LATER_ID)] if role == "tool" else appended
        between = appended if role in ("user", "tool") else [USER]
        later = probe.try_text([*base, *between, again, *then], generation=True, tools=tools)
        tail = "" if later is None else later.rpartition(_LATER)[2].replace(_LATER_ID, CALL_ID)
        if later is not None and tail != after.rpartition(WORD)[2]:
            return "template_counts_turns"
    return ""


def without_reasoning(text: str, block: tuple[str, str] | None) -> str:
    """A render less its reasoning blocks and the blank lines after them."""
    if block is None:
        return text
    opening, closing = map(re.escape, block)
    text = re.sub(rf"{opening}(?:(?!{opening}).)*?{closing}\n*", "", text, flags=re.DOTALL)
    # A tag may close what a generation prompt opened, or stand alone for a block that is skipped.
    return re.sub(rf"{closing}\n*", "", text) if block in REASONING_TAGS else text


def head_of(text: str, block: tuple[str, str] | None) -> str:
    """What a render of a probe has before the last turn's own word, less reasoning."""
    return without_reasoning(text.rpartition(WORD)[0], block)


def unopened(prompt: str, block: tuple[str, str] | None) -> str:
    """A prompt less its reasoning, also where its generation prompt leaves a block open."""
    text = without_reasoning(prompt, block)
    opening = block[0].strip() if block else ""
    head, found, after = text.rpartition(opening) if opening else (text, "", "")
    return head if found and not after.strip() else text
