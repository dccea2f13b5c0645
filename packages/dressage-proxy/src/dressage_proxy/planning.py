"""The ids that a request is sampled after, from its place in the tree."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from dressage_segments import BranchKind, Origin
from dressage_segments.turn import ROOT
from dressage_tito import ChatCodec, Message, Refusal
from numpy.typing import NDArray

from dressage_proxy.added import Addition
from dressage_proxy.branches import Start, forks, kind_from_messages, kind_of_start, kind_that_goes_on
from dressage_proxy.canonical import merge_leading_system
from dressage_proxy.composing import Composed, Piece, compose
from dressage_proxy.dialects.base import ModelRequest
from dressage_proxy.engine.prompt import Prompt
from dressage_proxy.errors import RequestError
from dressage_proxy.placing import Place, echo_of
from dressage_proxy.reading import read_message
from dressage_proxy.records import record
from dressage_proxy.session import Session
from dressage_proxy.thrown import thrown_away

_THREAD_CHARS = 1 << 15
"""From here on encoding is worth a thread: byte-level tokenizers release the GIL, the event loop goes on."""
_BUSY_THREAD_CHARS = 1 << 10
"""The same for texts that are not encoded word by word, while many turns share the event loop."""
_ORIGINS = np.array([Origin.ENVIRONMENT, Origin.BRIDGE], np.uint8)
"""Of ids that are not the template's frame, and of those that are."""


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
    """Turns of which the client shows to have the beginning alone, or nothing."""


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
                composed.copied, composed.rendered, composed.noted, composed.joined,
                _broken(session, place, pieces),
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
                decode=codec.decode,
            ),
        )
    origin = np.full(len(encoded.ids), Origin.PROMPT, np.uint8)
    prompt = Prompt.of(encoded.ids)
    return Plan(
        place, kind, encoded.ids, origin, prompt, encoded.reasoning_open, system_key,
        composed.copied, composed.rendered, composed.noted, composed.joined,
        _broken(session, place, pieces),
    )  # fmt: skip


def _said_kind(request: ModelRequest, place: Place) -> BranchKind | None:
    kind = request.kind or kind_from_messages(place.raw, request.asked, tools=bool(request.tools))
    return BranchKind.SUBAGENT if kind is None and forks(place.raw[place.matched :]) else kind


def _broken(session: Session, place: Place, pieces: Sequence[Piece]) -> tuple[int, ...]:
    known = tuple(piece.echo.turn for piece in pieces if piece.echo is not None and piece.echo.cut)
    return known + thrown_away(session.tree, place.parent, place.raw, place.keys, place.read, place.matched)


def _pieces(session: Session, codec: ChatCodec, place: Place) -> list[Piece]:
    """The messages to encode, each with the sampled ids that take its place where it is an echo.

    Where thinking follows the template, an earlier turn is written as the template writes it: its sampled
    ids may hold the thinking that is to go.
    """
    copied = session.thinking == "keep"
    named = "name" in codec.profile.tool_result_needs
    pieces = []
    last = place.parent
    for index in range(place.matched, len(place.raw)):
        message, raw = place.read.get(index) or read_message(place.raw[index], index), place.raw[index]
        echo = None
        if message.role == "assistant":
            before, handle = place.keys[:index], place.handles.get(index, "")
            echo = echo_of(session, codec, handle, message, before, place.tools_hash)
            if echo is not None and isinstance(raw, Addition) and not _follows(session, echo.turn, last):
                echo = None  # what a tool said may be what a turn said
        last = ROOT if echo is None else echo.turn
        ids = None if echo is None or not copied else session.tree.turn(echo.turn).output_ids[: echo.tokens]
        if named and message.role == "tool" and not message.name:
            message = replace(message, name=_call_name(session, codec, message.tool_call_id, place.raw))
        behind = raw.restored if isinstance(raw, Addition) else None
        pieces.append(Piece(_native(session, message), echo, ids, behind))
    return pieces


def _follows(session: Session, turn: int, last: int) -> bool:
    """Whether a turn was sampled after turn ``last`` with nothing between them."""
    found = session.tree.turn(turn)
    return last != ROOT and found.parent == last and not found.input_keys


def _call_name(session: Session, codec: ChatCodec, call_id: str, raw: Sequence[Any]) -> str:
    """The name of the call that a result answers, whatever the order of results: the model's own, or that of
    a call which the client brought; "" for neither."""
    name = session.echoes.call_name(session.tree, codec, call_id)
    calls = (call for said in raw if isinstance(said, Mapping) for call in said.get("tool_calls") or ())
    return name or next((call["function"]["name"] for call in calls if call.get("id") == call_id), "")


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


def _native(session: Session, message: Message) -> Message:
    """The message with the model's own call ids, where its grammar prints them."""
    if not session.native_ids:
        return message
    calls = tuple(replace(call, id=session.native_ids.get(call.id, call.id)) for call in message.tool_calls)
    answers = session.native_ids.get(message.tool_call_id, message.tool_call_id)
    return replace(message, tool_calls=calls, tool_call_id=answers)
