"""Where a request hangs in the tree, and the ids that it is sampled after."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from dressage_segments import BranchKind, Origin
from dressage_segments.turn import ROOT
from dressage_tito import ChatCodec, Message, MessageError, Refusal, message_from_json
from numpy.typing import NDArray

from dressage_proxy.branches import ASIDE, Start, kind_from_messages, kind_of_start, kind_that_goes_on
from dressage_proxy.canonical import merge_leading_system, message_key
from dressage_proxy.composing import Composed, Piece, compose
from dressage_proxy.dialects.base import ModelRequest
from dressage_proxy.echoes import Echo, echo_flag
from dressage_proxy.engine.prompt import Prompt
from dressage_proxy.errors import RequestError
from dressage_proxy.records import record
from dressage_proxy.session import Session
from dressage_proxy.surrogates import whole

_THREAD_CHARS = 1 << 15
"""From here on encoding is worth a thread: byte-level tokenizers release the GIL, the event loop goes on."""
_ORIGINS = np.array([Origin.ENVIRONMENT, Origin.BRIDGE], np.uint8)
"""Of ids that are not the template's frame, and of those that are."""
_BUSY_THREAD_CHARS = 1 << 10
"""The same for texts that are not encoded word by word, while many turns share the event loop."""


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


@record
class Plan:
    """What the engine is asked after: the turn's delta (ids int32 [D], origin uint8 [D]) and whole prompt."""

    place: Place
    kind: BranchKind
    delta_ids: NDArray[np.int32]
    delta_origin: NDArray[np.uint8]
    prompt: Prompt
    reasoning_open: bool
    system_key: str
    copied: int = 0
    """Earlier turns whose sampled ids are in the delta."""
    rendered: int = 0
    """Earlier turns that had to be rendered as text: the codec refused to go on after their ids."""
    noted: int = 0
    """System messages that the template does not take where they stand, written as notes of the user."""
    joined: int = 0
    """Messages of the user that the template takes as a part of the one before alone."""
    broken: tuple[int, ...] = ()
    """Turns of which the client shows to have the beginning alone."""


def locate(session: Session, codec: ChatCodec, request: ModelRequest, *, counting: bool = False) -> Place:
    """Match a request to the tree. Raises RequestError naming the message at fault.

    Looks at the messages that are new alone. With ``counting`` nothing is sampled after it: the session keeps
    nothing of it, and it may end as it likes.
    """
    pinned = dict(session.pinned) if counting else session.pinned
    read = session.recents.read(session.echoes.calls, pinned, request.raw, request.handles)
    raw, handles, known = read.raw, read.handles, read.known
    if not raw:
        raise RequestError("messages is empty", field="messages", fix="send at least one message")
    flags = list(request.notes)
    keys = list(known)
    messages: dict[int, Message] = {}
    tools_hash = _tools_hash(codec, request)
    for index in range(len(known), len(raw)):
        message = messages[index] = _message(raw[index], index)
        echo = None
        if message.role == "assistant":
            before = _salted(request.thread, keys)
            echo = _echo(session, codec, handles.get(index, ""), message, before, tools_hash)
        keys.append(message_key(message) if echo is None else echo.key)
        if echo is None and any(call.id not in session.reply_keys for call in message.tool_calls):
            flags.append(f"messages[{index}] makes calls that were not sampled in this session")
        if echo is not None and echo.differs:
            flags.append(echo_flag(echo, f"messages[{index}]"))
        if message.role == "tool" and message.tool_call_id not in session.reply_keys:
            flags.append(f"messages[{index}] answers the unknown call {message.tool_call_id!r}")
    if not counting:
        if raw[-1].get("role") == "assistant":
            raise RequestError(
                "the last message is an assistant message: continuing it is not supported",
                field=f"messages[{len(raw) - 1}].role",
                fix="end the list with a user or tool message",
            )
        session.recents.note(read, tuple(keys))
    salted = _salted(request.thread, keys)
    parent, matched, cut_reason = _attached(session, salted, tools_hash)
    return Place(parent, raw, salted, matched, tools_hash, cut_reason, tuple(flags), handles, messages)


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


async def plan(
    session: Session, codec: ChatCodec, request: ModelRequest, place: Place, *, busy: bool = False
) -> Plan:
    """Encode what is new; where the codec refuses to extend, a new branch starts with its reason.

    ``busy`` says that many turns are under way. Raises RequestError where even a start is refused.
    """
    if place.parent != ROOT:
        prefix = session.tree.ids(place.parent)
        digest = session.tree.digest(place.parent)
        pieces = _pieces(session, codec, place)
        composed = await _run(session, codec, request, pieces, prefix, busy)
        if isinstance(composed, Composed):
            encoded = composed.encoded
            origin = _ORIGINS[encoded.frame.view(np.uint8)]
            prompt = Prompt(prefix, encoded.ids, digest.update(encoded.ids))
            kind = _said_kind(request, place) or kind_that_goes_on(
                session.tree, place.parent, tools=bool(request.tools)
            )
            return Plan(
                place, kind, encoded.ids, origin, prompt, encoded.reasoning_open, "",
                composed.copied, composed.rendered, composed.noted, composed.joined, _broken(pieces),
            )  # fmt: skip
        place = replace(place, parent=ROOT, matched=0, cut_reason=f"refused_{composed.reason}")
    return await _start(session, codec, request, place, busy)


async def _start(session: Session, codec: ChatCodec, request: ModelRequest, place: Place, busy: bool) -> Plan:
    pieces = _pieces(session, codec, place)
    composed = await _run(session, codec, request, pieces, None, busy)
    if isinstance(composed, Refusal):
        raise RequestError(
            f"the chat template cannot express this conversation: {composed.detail}",
            field="tools" if composed.reason == "tools_unsupported" else "messages",
            code=composed.reason,
        )
    encoded = composed.encoded
    lead = merge_leading_system([piece.message for piece in pieces])[0]
    system = lead.content if lead.role in ("system", "developer") else ""
    system_key = place.keys[0] if system else ""
    kind = _said_kind(request, place)
    if kind is None:
        echoed = [piece.echo.turn for piece in pieces if piece.echo is not None]
        kind = kind_of_start(
            session.tree,
            Start(
                system_key=system_key,
                system_text=system,
                tools_hash=place.tools_hash,
                keys=place.keys,
                raw=place.raw,
                echoed=session.tree.turn(max(echoed)).kind if echoed else None,
                tools=bool(request.tools),
            ),
        )
    origin = np.full(len(encoded.ids), Origin.PROMPT, np.uint8)
    prompt = Prompt.of(encoded.ids)
    return Plan(
        place, kind, encoded.ids, origin, prompt, encoded.reasoning_open, system_key,
        composed.copied, composed.rendered, composed.noted, composed.joined, _broken(pieces),
    )  # fmt: skip


def _said_kind(request: ModelRequest, place: Place) -> BranchKind | None:
    return request.kind or kind_from_messages(place.raw, request.asked, tools=bool(request.tools))


def _broken(pieces: Sequence[Piece]) -> tuple[int, ...]:
    return tuple(piece.echo.turn for piece in pieces if piece.echo is not None and piece.echo.cut)


def _pieces(session: Session, codec: ChatCodec, place: Place) -> list[Piece]:
    """The messages to encode, each with the sampled ids that take its place where it is an echo.

    Where thinking follows the template, an earlier turn is written as the template writes it: its sampled
    ids may hold the thinking that is to go.
    """
    copied = session.thinking == "keep"
    named = "name" in codec.profile.tool_result_needs
    pieces = []
    for index in range(place.matched, len(place.raw)):
        message = place.read.get(index) or _message(place.raw[index], index)
        echo = None
        if message.role == "assistant":
            before, handle = place.keys[:index], place.handles.get(index, "")
            echo = _echo(session, codec, handle, message, before, place.tools_hash)
        ids = None if echo is None or not copied else session.tree.turn(echo.turn).output_ids[: echo.tokens]
        if named and message.role == "tool" and not message.name:
            message = replace(message, name=_call_name(session, codec, message.tool_call_id, place.raw))
        pieces.append(Piece(_native(session, message), echo, ids))
    return pieces


def _call_name(session: Session, codec: ChatCodec, call_id: str, raw: Sequence[Any]) -> str:
    """The name of the call that a result answers, whatever the order of results: the model's own, or that of
    a call which the client brought; "" for neither."""
    name = session.echoes.call_name(session.tree, codec, call_id)
    calls = (call for said in raw if isinstance(said, Mapping) for call in said.get("tool_calls") or ())
    return name or next((call["function"]["name"] for call in calls if call.get("id") == call_id), "")


def _echo(
    session: Session, codec: ChatCodec, handle: str, message: Message, before: Sequence[str], tools_hash: str
) -> Echo | None:
    """The turn that an assistant message is."""

    def asked() -> list[int]:
        match = session.tree.match(before, tools_hash)
        new = tuple(before if match is None else before[match.matched :])
        parent = ROOT if match is None else match.index
        return [
            turn.index
            for turn in reversed(session.tree.turns)
            if (turn.parent, turn.input_keys, turn.tools_hash) == (parent, new, tools_hash)
        ]

    return session.echoes.find(session.tree, codec, message, handle, asked)


async def _run(
    session: Session,
    codec: ChatCodec,
    request: ModelRequest,
    pieces: Sequence[Piece],
    prefix: NDArray[np.int32] | None,
    busy: bool,
) -> Composed | Refusal:
    """Encode here when it is short, else in a thread."""
    tools, kwargs = request.tools or None, request.template_kwargs
    texts = [piece.message.content for piece in pieces]
    limit = _BUSY_THREAD_CHARS if busy and not all(map(str.isascii, texts)) else _THREAD_CHARS
    if sum(map(len, texts)) < limit:
        return compose(codec, pieces, prefix, tools, kwargs, session.thinking)
    return await asyncio.to_thread(compose, codec, pieces, prefix, tools, kwargs, session.thinking)


def _message(raw: Any, index: int) -> Message:
    try:
        message = message_from_json(raw, f"messages[{index}]")
        if any("\\u" in call.arguments_text for call in message.tool_calls):  # it may spell half a pair
            whole_calls = (replace(call, arguments=whole(call.arguments)) for call in message.tool_calls)
            message = replace(message, tool_calls=tuple(whole_calls))
        return message
    except MessageError as error:
        raise RequestError(str(error), field=error.field) from error  # its text ends with the fix


def _native(session: Session, message: Message) -> Message:
    """The message with the model's own call ids, where its grammar prints them."""
    if not session.native_ids:
        return message
    calls = tuple(replace(call, id=session.native_ids.get(call.id, call.id)) for call in message.tool_calls)
    answers = session.native_ids.get(message.tool_call_id, message.tool_call_id)
    return replace(message, tool_calls=calls, tool_call_id=answers)
