"""What a template puts between a turn of the model and the model's next one, where nothing was said between.

That is the turn's closing and the generation prompt. It is taken for granted nowhere: a template may refuse
two turns in a row, may join them, or may leave the last turn open. So the template's own renders of two turns
in a row are compared with what it prints where a turn is asked for after another, and after a user.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dressage_tito.appending import head_of, unopened
from dressage_tito.callnames import makes_calls
from dressage_tito.grammars import REASONING_TAGS
from dressage_tito.marking import FIRST_MARKS
from dressage_tito.messages import Refusal
from dressage_tito.probe import OTHER, TOOL_NAME, USER, WORD, Probe
from dressage_tito.profile import Profile
from dressage_tito.rendering import Rendered
from dressage_tito.template import ChatTemplate, Json

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dressage_tito.tokens import Tokens

    Ids = Sequence[int] | NDArray[np.int32]

_SYSTEM: Json = {"role": "system", "content": "Xq7system"}
_LATER = "Xq7later"
_ASKED: Json = {"role": "user", "content": _LATER}
_LATER_ID = "call00002"
_KEPT = 32
_KEPT_CHARS = 4096


@dataclass(frozen=True, slots=True)
class Between:
    """What is put after a plain turn, and after a turn of calls (behind its last call): text, or why none."""

    plain: str | Refusal
    calls: str | Refusal


@dataclass(frozen=True, slots=True)
class Following:
    """What follows a turn of the model where nothing was said after it. May be shared by threads."""

    template: ChatTemplate
    profile: Profile
    tokens: Tokens
    _known: dict[tuple[bool, str], Between] = field(default_factory=dict, repr=False, compare=False)

    def tail(self, prefix_ids: Ids, kwargs: Json, *, tools: bool) -> Rendered | Refusal:
        """The closing of the turn that ``prefix_ids`` end in, and the generation prompt.

        The turn is read only where the template goes on in another way after a turn of calls.
        """
        if self._asks(prefix_ids):
            return Refusal(
                "no_messages",
                "appended is empty, and the prefix ends in the generation prompt: nothing was sampled after "
                "it, or a turn of several messages was cut there",
            )
        between = self._between(kwargs, tools=tools)
        found = between.plain
        if between.calls != found:
            header = self.profile.generation_header.strip()
            texts = [text for text in (found, between.calls) if isinstance(text, str)]
            if not header or not all(header in text for text in texts):
                refused = [text for text in (found, between.calls) if isinstance(text, Refusal)]
                return next(iter(refused), _joins("nothing tells where the last turn begins"))
            if makes_calls(self.profile, self.tokens, prefix_ids):
                found = between.calls
        return found if isinstance(found, Refusal) else Rendered(found, (), FIRST_MARKS)

    def _asks(self, prefix_ids: Ids) -> bool:
        """Whether a prefix ends in the generation prompt."""
        prompt = [int(token) for token in self.tokens.encode(self.profile.generation_prompt, (), "\0")[0]]
        return bool(prompt) and [int(token) for token in prefix_ids[-len(prompt) :]] == prompt

    def _between(self, kwargs: Json, *, tools: bool) -> Between:
        key = (tools, repr(sorted(kwargs.items())))
        found = self._known.get(key)
        if found is None:
            found = self._proven(kwargs, tools=tools)
            if len(self._known) >= _KEPT:
                self._known.clear()
            if len(key[1]) <= _KEPT_CHARS:
                self._known[key] = found
        return found

    def _proven(self, kwargs: Json, *, tools: bool) -> Between:
        probe = _Rows(self.template, kwargs, self.profile, tools=tools)
        plain = probe.after([probe.reply()])
        if not tools:
            return Between(plain, plain)
        if not self.profile.prints_calls:
            dropped = Refusal(
                "calls_dropped", "the chat template does not print the calls of the turn before"
            )
            return Between(plain, dropped)
        calls = probe.after([probe.calls()])
        suffix = self.profile.call_suffix
        if isinstance(calls, str) and not calls.startswith(suffix):
            calls = Refusal("template_shape", "the chat template does not close a turn of tool calls")
        return Between(plain, calls.removeprefix(suffix) if isinstance(calls, str) else calls)


class _Rows(Probe):
    """Renders of turns in a row."""

    def __init__(self, template: ChatTemplate, kwargs: Json, profile: Profile, *, tools: bool) -> None:
        super().__init__(template, kwargs)
        self.arguments = profile.arguments_as
        self.trailing = profile.generation_prompt if profile.trailing_prompt else ""
        self._profile = profile
        self._tools = tools

    def after(self, turn: list[Json]) -> str | Refusal:
        """What is printed after this turn up to where the next one is sampled."""
        asked = self._text([USER, *turn], prompt=True)
        found = _behind(asked, WORD)
        if asked is None or found is None:
            return _raises()
        if self._profile.tools_in_tail and TOOL_NAME in found:
            return _joins("it prints the tools after the turn")
        return self._rewritten(turn, found) or self._compared(turn, found) or found

    def _rewritten(self, turn: list[Json], found: str) -> Refusal | None:
        """Why what stands before is written in another way once the next turn is asked for."""
        for system in ([], [_SYSTEM]):
            prompt = self._text([*system, USER], prompt=True)
            before = self._text([*system, USER, *turn], prompt=False)
            asked = self._text([*system, USER, *turn], prompt=True)
            if prompt is None and system:
                continue  # it takes no system message
            if prompt is None or before is None or asked is None:
                return _raises()
            block = self._profile.reasoning_block or _opened(prompt)
            head = head_of(asked, block)
            if head != head_of(before, block) or not head.startswith(unopened(prompt, block)):
                return Refusal(
                    "template_rewrites_history",
                    "the chat template prints earlier messages in another way where the model goes on",
                )
            if _behind(asked, WORD) != found:
                return _joins("it goes on in another way after a system message")
        return None

    def _compared(self, turn: list[Json], found: str) -> Refusal | None:
        """Why two turns in a row are not printed with ``found`` between them."""
        asked = _behind(self._text([USER, self.reply(), _ASKED], prompt=True), _LATER)
        for more in ([], [USER]):
            plain, after_user = self._pair(turn, self.reply(OTHER), more)
            if asked is None or plain is None or after_user is None:
                return _raises()
            if plain not in (found, _as_history(found, asked, after_user)):
                return _joins(f"it prints {plain!r} between them, and {found!r} before the next one")
            if not self._tools or not self._profile.prints_calls:
                continue
            calls, calls_after_user = self._pair(turn, self.calls(word=OTHER, call_id=_LATER_ID), more)
            if calls is None or calls_after_user is None:
                return _raises()
            own = calls_after_user.removeprefix(after_user)
            if calls not in (plain + own, _as_history(found, asked, calls_after_user)):
                return _joins(f"it prints {calls!r} before calls, and {found!r} before the next turn")
        return self._counted(turn)

    def _pair(self, turn: list[Json], reply: Json, more: Sequence[Json]) -> tuple[str | None, str | None]:
        """What a reply's word follows where it comes after the turn, and where it comes after a user."""
        row = self._text([USER, *turn, reply, *more], prompt=bool(more))
        told = self._text([USER, self.reply(), _ASKED, reply, *more], prompt=bool(more))
        return _behind(_ahead(row), WORD), _behind(_ahead(told), _LATER)

    def _counted(self, turn: list[Json]) -> Refusal | None:
        """Why the third turn in a row is not asked for as the second is."""
        reply = self.reply(OTHER)
        rows = ([USER, *turn * count, reply] for count in range(3))
        tails = {_behind(self._text(row, prompt=True), OTHER) for row in rows}
        return None if len(tails) == 1 else _joins("it goes on in another way after more such turns")

    def _text(self, messages: Sequence[Json], *, prompt: bool) -> str | None:
        return self.try_text(messages, generation=prompt, tools=self._tools)


def _behind(text: str | None, word: str) -> str | None:
    return text.rpartition(word)[2] if text is not None and word in text else None


def _ahead(text: str | None) -> str | None:
    return text.rpartition(OTHER)[0] if text is not None and OTHER in text else None


def _as_history(found: str, asked: str, told: str) -> str | None:
    """What stands before a turn in history where it was sampled after ``found``: the same difference as
    between a prompt that follows a user (``asked``) and that turn in history (``told``). None where the
    prompt is not the one that follows a user."""
    size = 0
    while size < min(len(asked), len(told)) and asked[size] == told[size]:
        size += 1
    prompt = asked[size:]
    return found.removesuffix(prompt) + told[size:] if found.endswith(prompt) else None


def _opened(prompt: str) -> tuple[str, str] | None:
    """The tags of a block that a request's own arguments open: the profile need not know of one."""
    return next((tags for tags in REASONING_TAGS if tags[0] in prompt), None)


def _raises() -> Refusal:
    return Refusal("template_error", "the chat template refuses two turns of the model in a row")


def _joins(how: str) -> Refusal:
    return Refusal(
        "turns_in_a_row", f"the chat template does not print two turns of the model in a row as two: {how}"
    )
