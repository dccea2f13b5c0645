"""Where a request hangs in the tree."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import replace
from typing import Any

from dressage_segments import Turn
from dressage_segments.turn import ROOT
from dressage_tito import ChatCodec, Message

from dressage_proxy.added import Addition, Behind, Further, grown, joined, own_text, parts
from dressage_proxy.branches import ASIDE, text_blocks
from dressage_proxy.canonical import message_key
from dressage_proxy.dialects.base import ModelRequest
from dressage_proxy.echoes import Echo, echo_flag
from dressage_proxy.errors import RequestError
from dressage_proxy.reading import read_message
from dressage_proxy.recents import Read
from dressage_proxy.records import record
from dressage_proxy.renamed import as_issued, issued_id
from dressage_proxy.rows import row_behind
from dressage_proxy.session import Session


@record
class Place:
    """Where a request attaches: ``new_keys`` are its messages beyond the walk of turn ``parent``."""

    parent: int
    raw: Sequence[Mapping[str, Any]]
    keys: tuple[str, ...]
    matched: int
    tools_hash: str
    cut_reason: str
    flags: tuple[str, ...]
    handles: Mapping[int, str]
    """Index of a message -> the turn handle that its reasoning carries."""
    read: Mapping[int, Message]
    """Messages that were read already, by index."""

    @property
    def new_keys(self) -> tuple[str, ...]:
        """Keys of the messages that this request adds."""
        return self.keys[self.matched :]


def locate(session: Session, codec: ChatCodec, request: ModelRequest, *, counting: bool = False) -> Place:
    """Match a request to the tree. Raises RequestError naming the message at fault.

    Looks at the messages that are new alone. With ``counting`` nothing is sampled after it: the session keeps
    nothing of it, and it may end as it likes.
    """
    pinned, added = session.pinned, session.echoes.added
    if counting:
        pinned, added = dict(pinned), dict(added)
    echoes = session.echoes
    read = session.recents.read(echoes.calls, pinned, request.raw, request.handles, added, echoes.texts)
    if not read.raw:
        raise RequestError("messages is empty", field="messages", fix="send at least one message")
    reader = _Reader(session, codec, request, read, added)
    reader.run()
    if not counting:
        if request.prefilled and read.raw[-1].get("role") == "assistant":
            raise RequestError(
                "the last message is an assistant message: continuing it is not supported",
                field=f"messages[{len(request.raw) - 1}].role",
                fix="end the list with a user or tool message",
            )
        session.recents.note(reader.read, tuple(reader.keys))
    salted = _salted(request.thread, reader.keys)
    parent, matched, cut_reason = _attached(session, salted, reader.tools_hash)
    return Place(
        parent, reader.raw, salted, matched, reader.tools_hash, cut_reason, tuple(reader.flags),
        reader.read.handles, reader.messages,
    )  # fmt: skip


class _Reader:
    """Reads what is new of a request's messages, each after those before it."""

    def __init__(
        self,
        session: Session,
        codec: ChatCodec,
        request: ModelRequest,
        read: Read,
        added: MutableMapping[str, Behind],
    ) -> None:
        self._session = session
        self._codec = codec
        self._thread = request.thread
        self._added = added
        self.read = read
        """The messages as the client has them, one for each turn."""
        self.raw: list[Any] = read.raw
        """The same, with results under the ids that their calls were handed out with."""
        self.keys = list(read.known)
        self.messages: dict[int, Message] = {}
        self.flags = list(request.notes)
        self.tools_hash = _tools_hash(codec, request)

    def run(self) -> None:
        """To the last message; there may be more of them then. Raises RequestError."""
        while len(self.keys) < len(self.raw):
            index = len(self.keys)
            message = self._message(index)
            echo = None
            if message.role == "assistant":
                echo = self._echo(index, message)
                while echo is not None and echo.by_calls and (first := self._joined(index, message, echo)):
                    message, echo = first, self._echo(index, first)
                if echo is not None and echo.behind is not None:
                    message = self._apart(index, message, echo.behind)
                if echo is None and isinstance(self.raw[index], Addition):
                    message = self._grown(index, message)
                if echo is not None and any(call.id not in self._known for call in message.tool_calls[:1]):
                    message = as_issued(message, self._session.tree.turn(echo.turn)) or message
            elif message.role == "tool" and message.tool_call_id not in self._known:
                message = self._answer(index, message)
            self.messages[index] = message
            self.keys.append(message_key(message) if echo is None else echo.key)
            self._flag(index, message, echo)

    def _message(self, index: int) -> Message:
        """One message. Raises RequestError naming it by where the client has it."""
        try:
            return read_message(self.raw[index], index)
        except RequestError:
            added = sum(isinstance(before, Addition | Further) for before in self.raw[:index])
            return read_message(self.raw[index], index - added)

    @property
    def _known(self) -> Mapping[str, str]:
        return self._session.reply_keys

    def _echo(self, index: int, message: Message) -> Echo | None:
        handle, before = self.read.handles.get(index, ""), _salted(self._thread, self.keys)
        blocks = text_blocks(self.raw[index])
        return echo_of(self._session, self._codec, handle, message, before, self.tools_hash, blocks)

    def _apart(self, index: int, message: Message, found: Behind) -> Message:
        """An assistant message as the turn that it begins with; what was put behind that comes next."""
        self._added[message.content] = found
        self._put(index, parts(self.raw[index], found))
        return replace(message, content=found.told)

    def _joined(self, index: int, message: Message, echo: Echo) -> Message | None:
        """What comes before a turn of calls in its message, where that is another turn's text, or ends with
        that of the turn which this one followed: it comes next then."""
        tree = self._session.tree
        turn = tree.turn(echo.turn)
        later = self._later(index, message, turn)
        if later is not None:
            return later
        found = joined(self._codec, turn, message)
        if found is None:
            return None
        if message_key(Message("assistant", found[0])) not in self._session.echoes.texts:
            follows = turn.parent != ROOT and not turn.input_keys
            told = own_text(self._codec, tree.turn(turn.parent)) if follows else ""
            if not told or not found[0].endswith(told):
                return None
        raw = {name: value for name, value in self.raw[index].items() if name != "tool_calls"}
        calls = Further(role="assistant", content=found[1], tool_calls=self.raw[index]["tool_calls"])
        self._put(index, [{**raw, "content": found[0]}, calls])
        if self._thinker(index) >= turn.index:
            self._hand_on(index, index + 1)
        return self._message(index)

    def _later(self, index: int, message: Message, turn: Turn) -> Message | None:
        """A message less the texts at its end, where turns said those which followed its calls, or further
        calls in the next messages, with nothing between: they come after them."""
        found = row_behind(self._session.tree, self._codec, self.raw[index + 1 :], turn, message.content)
        if found is None:
            return None
        rest, row = found
        at = index
        self._put(at, [{**self.raw[at], "content": rest}])
        for later, text in row:
            if later.extra.get("wire_ids"):
                self._put(at + 1, [{**self.raw[at + 1], "content": text}])
            else:
                self._put(at, [self.raw[at], Further(role="assistant", content=text)])
                if self._thinker(index) == later.index:
                    self._hand_on(index, at + 1)
            at += 1
        return self._message(index)

    def _thinker(self, index: int) -> int:
        """The turn that thought what a message has of thinking, by its handle."""
        return self._session.echoes.handles.get(self.read.handles.get(index, ""), ROOT)

    def _hand_on(self, index: int, at: int) -> None:
        """What a message has of thinking, to the one at ``at``: no earlier turn thought it."""
        first = dict(self.raw[index])
        thought = first.pop("reasoning_content", "")
        self._put(index, [first])
        self._put(at, [Further(self.raw[at], reasoning_content=thought)])
        handles = dict(self.read.handles)
        handles[at] = handles.pop(index)
        self.read = replace(self.read, handles=handles)

    def _grown(self, index: int, message: Message) -> Message:
        """What was put behind a turn as it was put there before, where another turn answered that and comes
        next; else as it is."""
        echoes, tree = self._session.echoes, self._session.tree
        key = self.keys[-1]
        before = echoes.same.get(key) or [turn for turn in (echoes.texts.get(key),) if turn is not None]
        turns = [tree.turn(child) for turn in before for child in tree.children(turn)]
        found = grown(self._codec, turns, self.raw[index])
        self._put(index, found)
        return replace(message, content=found[0]["content"])

    def _put(self, index: int, said: Sequence[Mapping[str, Any]]) -> None:
        """Messages in the place of one; what it carried stays with the first."""
        further = len(said) - 1
        handles = {at + further * (at > index): handle for at, handle in self.read.handles.items()}
        kept = [*self.read.raw[:index], *said, *self.read.raw[index + 1 :]]
        self.read = replace(self.read, raw=kept, handles=handles)
        self.raw = [*self.raw[:index], *said, *self.raw[index + 1 :]]

    def _answer(self, index: int, message: Message) -> Message:
        """A result under the id that its call was handed out with."""
        issued = issued_id(message.tool_call_id, self.raw[:index], _turns(self._session, self.keys))
        if not issued:
            return message
        result = {**self.raw[index], "tool_call_id": issued}
        self.raw = [*self.raw[:index], result, *self.raw[index + 1 :]]
        return replace(message, tool_call_id=issued)

    def _flag(self, index: int, message: Message, echo: Echo | None) -> None:
        where = f"messages[{index}]"
        if echo is None and any(call.id not in self._known for call in message.tool_calls):
            self.flags.append(f"{where} makes calls that were not sampled in this session")
        if echo is not None and echo.differs:
            self.flags.append(echo_flag(echo, where))
        if isinstance(self.raw[index], Addition):
            self.flags.append(f"{where} was put behind what the model said, in the same message")
        if message.role == "tool" and message.tool_call_id not in self._known:
            self.flags.append(f"{where} answers the unknown call {message.tool_call_id!r}")


def _turns(session: Session, keys: Sequence[str]) -> list[Turn | None]:
    """What messages with these keys were sampled as."""
    found = (session.echoes.texts.get(key) for key in keys)
    return [None if index is None else session.tree.turn(index) for index in found]


def _tools_hash(codec: ChatCodec, request: ModelRequest) -> str:
    tools_hash = codec.tools_hash(request.tools)
    if request.template_kwargs:
        tools_hash += "+" + repr(sorted(request.template_kwargs.items()))
    return tools_hash


def _salted(thread: str, keys: Sequence[str]) -> tuple[str, ...]:
    """Keys of a named sub-agent's own: sub-agents that are asked the very same are not one."""
    if not thread or not keys:
        return tuple(keys)
    salted = f"{thread}:{keys[0]}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(salted, digest_size=16).hexdigest(), *keys[1:]


def _attached(session: Session, keys: tuple[str, ...], tools_hash: str) -> tuple[int, int, str]:
    """The turn that messages go on from, how many of them its walk has, and why a branch starts there: on the
    longest recorded branch, or ROOT with what is new about them."""
    tree = session.tree
    match = tree.match(keys, tools_hash)
    if match is None:
        reason = "" if _asked_before(session, keys, tools_hash) else tree.divergence(keys, tools_hash)
        return ROOT, 0, reason
    children = (tree.turn(child) for child in tree.children(match.index))
    others = [child.input_keys for child in children if child.kind not in ASIDE]
    reason = "branched" if others and keys[match.matched :] not in others else ""
    return match.index, match.matched, reason


def _asked_before(session: Session, keys: Sequence[str], tools_hash: str) -> bool:
    """Whether a branch started with just this request: it is asked again, and no other branch."""
    return any(
        turn.parent == ROOT and turn.tools_hash == tools_hash and turn.input_keys == tuple(keys)
        for turn in session.tree.turns
    )


def echo_of(
    session: Session,
    codec: ChatCodec,
    handle: str,
    message: Message,
    before: Sequence[str],
    tools_hash: str,
    blocks: Sequence[str] = (),
) -> Echo | None:
    """The turn that an assistant message is; ``blocks`` are its texts."""

    def asked() -> list[int]:
        match = session.tree.match(before, tools_hash)
        new = tuple(before if match is None else before[match.matched :])
        parent = ROOT if match is None else match.index
        return [
            turn.index
            for turn in reversed(session.tree.turns)
            if (turn.parent, turn.input_keys, turn.tools_hash) == (parent, new, tools_hash)
        ]

    return session.echoes.find(session.tree, codec, message, handle, asked, before, blocks)
