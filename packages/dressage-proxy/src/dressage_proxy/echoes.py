"""Assistant messages that clients send back: which turn each is, and which of its sampled ids it stands for.

An echo is recognised by the ids of its tool calls, then by the turn handle that its reasoning carries, then
by its text; calls that a client gave ids of its own by what they say, where something before them is the same
too. What a client made of it on the way (dropped reasoning, repaired arguments, a call renamed to
``invalid``) changes nothing: the turn's sampled ids take its place, and the difference is flagged. Where a
stream broke, and the client kept what it had, the echo lacks what came last: then it stands for the ids up to
there, and no longer for the turn. A beginning without calls or handle is recognised by its place alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from dressage_segments import TrajectoryTree, Turn
from dressage_tito import ChatCodec, Message

from dressage_proxy.added import Behind, behind
from dressage_proxy.canonical import message_key
from dressage_proxy.lookalikes import Nameless, likeliest
from dressage_proxy.records import record
from dressage_proxy.renamed import as_issued
from dressage_proxy.replies import returned
from dressage_proxy.said import ANY_TOOL, parsed

_HANDLE = "dressage-"


@record
class Echo:
    """An assistant message as the first ``tokens`` sampled ids of turn ``turn``."""

    turn: int
    tokens: int
    key: str
    """The key by which the tree knows it."""
    cut: bool = False
    """The client has the beginning of the turn alone."""
    differs: bool = False
    """It is not what was returned."""
    by_calls: bool = False
    """It was recognised by its call ids."""
    behind: Behind | None = None
    """It is the turn and what the client put behind its text."""


def turn_handle(session_id: str, turn: int) -> str:
    """The handle of a turn: names it to this session alone, and tells a reader nothing."""
    return _HANDLE + hashlib.blake2b(f"{session_id}:{turn}".encode(), digest_size=16).hexdigest()


@dataclass(slots=True)
class Echoes:
    """What a session handed out, by what comes back."""

    calls: dict[str, int] = field(default_factory=dict)
    """Wire id of a tool call -> the turn that made it."""
    handles: dict[str, int] = field(default_factory=dict)
    """Turn handle -> turn."""
    texts: dict[str, int] = field(default_factory=dict)
    """Key of a returned message -> the newest turn that returned it."""
    same: dict[str, list[int]] = field(default_factory=dict)
    """Key of a message that several turns returned -> these turns."""
    thoughts: dict[int, str] = field(default_factory=dict)
    """One of these turns -> key of what it thought, once that was asked for."""
    nameless: Nameless = field(default_factory=Nameless)
    """What turns with calls said, whatever ids the calls have."""
    added: dict[str, Behind] = field(default_factory=dict)
    """Text of a message in which a client put something behind a turn's text."""

    def remember(self, turn: Turn, session_id: str) -> None:
        """Note what a committed turn handed out."""
        for wire in turn.extra.get("wire_ids", {}):
            self.calls[wire] = turn.index
        self.handles[turn_handle(session_id, turn.index)] = turn.index
        before = self.texts.get(turn.reply_key)
        if before is not None:
            self.same.setdefault(turn.reply_key, [before]).append(turn.index)
        self.texts[turn.reply_key] = turn.index

    def find(
        self,
        tree: TrajectoryTree,
        codec: ChatCodec,
        message: Message,
        handle: str,
        asked: Callable[[], Sequence[int]] = tuple,
        before: Sequence[str] = (),
        blocks: Sequence[str] = (),
    ) -> Echo | None:
        """The turn that an assistant message is; None for one that was not sampled in this session.

        ``before`` are the keys of the messages before it, ``blocks`` its texts.
        ``asked`` gives the turns that answered just these: what is no turn by its call ids, handle or text
        may still be the beginning of what one of them said.
        """
        key = message_key(replace(message, name=""))  # agents sign what was sampled with their own name
        index = self._called(message)
        by_calls = index is not None
        if index is None and handle:
            index = self.handles.get(handle)
        if index is None:
            said = message.content or message.tool_calls
            index = self._told(tree, codec, message, key, before) if said else None
            if index is None:
                index = self._renamed(tree, codec, message, asked, before)
                key = key if index is None else tree.turn(index).reply_key
            if index is None:
                if not message.content.strip():
                    return None
                return self._begun(tree, codec, message, key, asked) or self._gone_on(
                    tree, codec, message, asked(), blocks
                )
        turn = tree.turn(index)
        if key == turn.reply_key or as_issued(message, turn) is not None:
            return Echo(index, len(turn.output_ids), turn.reply_key)
        gone_on = self._gone_on(tree, codec, message, [index], blocks)
        if gone_on is not None:
            return gone_on
        issued = list(turn.extra.get("wire_ids", {}))
        kept = [call.id for call in message.tool_calls]
        # A stream breaks at its end: who has a later call and not the first one left that out by itself.
        if kept == issued[: len(kept)] and (len(kept) < len(issued) or not issued):
            tokens = _kept(codec, turn, message)
            if tokens is not None:
                return Echo(index, tokens, key, cut=True, differs=True)
        return Echo(index, len(turn.output_ids), turn.reply_key, differs=True, by_calls=by_calls)

    def call_name(self, tree: TrajectoryTree, codec: ChatCodec, wire_id: str) -> str:
        """The name of a call that was handed out, as the model wrote it; "" for another."""
        index = self.calls.get(wire_id)
        if index is None:
            return ""
        turn = tree.turn(index)
        made = parsed(codec, turn).tool_calls
        names = {wire: call.name for wire, call in zip(turn.extra["wire_ids"], made, strict=False)}
        return names.get(wire_id, "")

    def said(self, tree: TrajectoryTree, codec: ChatCodec, handle: str) -> Message | None:
        """The message that a turn was returned as, by its handle; None where it is no turn of the session."""
        index = self.handles.get(handle)
        return None if index is None else self._said(tree, codec, index)

    def _said(self, tree: TrajectoryTree, codec: ChatCodec, index: int) -> Message | None:
        turn = tree.turn(index)
        issued = list(turn.extra.get("wire_ids", {}))
        matched = turn.calls[-1].matched if turn.calls else None
        said = []
        for tools in (ANY_TOOL, None):  # whether it was offered tools is not kept
            found = parsed(codec, turn, tools=tools)
            if len(found.tool_calls) == len(issued):
                said.append(returned(found, turn.finish_reason, matched, issued))
        return next((one for one in said if message_key(one) == turn.reply_key), said[0] if said else None)

    def _told(
        self, tree: TrajectoryTree, codec: ChatCodec, message: Message, key: str, before: Sequence[str]
    ) -> int | None:
        """The turn that returned a text; of several those that thought what the message has, and of these
        the newest one that answered most of what is before it. Where none answered that, they are taken in
        their order."""
        turns = self.same.get(key)
        if turns is None:
            return self.texts.get(key)
        if message.reasoning.strip():
            thought = _thought_key(message.reasoning)
            turns = [turn for turn in turns if self._thought(tree, codec, turn) == thought] or turns
        best, most = likeliest(tree, turns, before)
        return best if most > 0 else turns[min(before.count(key), len(turns) - 1)]

    def _thought(self, tree: TrajectoryTree, codec: ChatCodec, index: int) -> str:
        if index not in self.thoughts:
            self.thoughts[index] = _thought_key(parsed(codec, tree.turn(index)).reasoning)
        return self.thoughts[index]

    def _renamed(
        self,
        tree: TrajectoryTree,
        codec: ChatCodec,
        message: Message,
        asked: Callable[[], Sequence[int]],
        before: Sequence[str],
    ) -> int | None:
        """The turn that a message is whose calls the client gave ids of its own: the one in its place, else
        one in a place like it."""
        turns = asked() if message.tool_calls else ()
        here = next((turn for turn in turns if as_issued(message, tree.turn(turn)) is not None), None)
        if here is not None or not message.tool_calls:
            return here
        index = self.nameless.find(tree, partial(self._said, tree, codec), message, before)
        return None if index is None or as_issued(message, tree.turn(index)) is None else index

    def _gone_on(
        self,
        tree: TrajectoryTree,
        codec: ChatCodec,
        message: Message,
        turns: Sequence[int],
        blocks: Sequence[str],
    ) -> Echo | None:
        """Of several the turn that says most of it."""
        found = [(index, behind(codec, tree.turn(index), message, blocks)) for index in turns]
        gone_on = [(len(more.text), index, more) for index, more in found if more is not None]
        if not gone_on:
            return None
        _, index, more = min(gone_on, key=lambda one: one[0])
        turn = tree.turn(index)
        unsaid = not more.text and not more.restored
        return Echo(index, len(turn.output_ids), turn.reply_key, differs=unsaid, behind=more)

    def _begun(
        self,
        tree: TrajectoryTree,
        codec: ChatCodec,
        message: Message,
        key: str,
        asked: Callable[[], Sequence[int]],
    ) -> Echo | None:
        for index in asked() if not message.tool_calls else ():
            tokens = _kept(codec, tree.turn(index), message)
            if tokens is not None:
                return Echo(index, tokens, key, cut=True, differs=True)
        return None

    def _called(self, message: Message) -> int | None:
        return next((self.calls[call.id] for call in message.tool_calls if call.id in self.calls), None)


def _kept(codec: ChatCodec, turn: Turn, message: Message) -> int | None:
    """How many of a turn's first ids say just what a broken message says; None where none do.

    What ids say only ever grows with them, so that the longest prefix is found by halving.
    """
    said, calls = message.content.rstrip(), len(message.tool_calls)

    low, high = 0, len(turn.output_ids)
    while low < high:
        middle = (low + high + 1) // 2
        found = parsed(codec, turn, middle)
        over = len(found.tool_calls) - calls
        if over > 0 or (over == 0 and len(found.content.rstrip()) > len(said)):
            high = middle - 1
        else:
            low = middle
    if low in (0, len(turn.output_ids)):
        return None
    found = parsed(codec, turn, low)
    same = found.content.strip() == said.strip() and len(found.tool_calls) == calls
    return low if same else None


def _thought_key(reasoning: str) -> str:
    return message_key(Message("assistant", reasoning))


def echo_flag(echo: Echo, where: str) -> str:
    """What is recorded of an echo that differs."""
    if echo.cut:
        return f"{where} is the beginning of what was returned as turn {echo.turn}"
    by = "under its call ids" if echo.by_calls else f"as turn {echo.turn}"
    return f"{where} is not what was returned {by}"
