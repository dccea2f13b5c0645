"""Where a request hangs in the tree, and the ids that it is sampled after."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from dressage_segments import BranchKind, IdsDigest, Origin
from dressage_segments.turn import ROOT
from dressage_tito import ChatCodec, Encoded, Message, MessageError, Refusal, message_from_json
from numpy.typing import NDArray

from dressage_proxy.branches import kind_of_root
from dressage_proxy.canonical import merge_leading_system, message_key
from dressage_proxy.dialects.base import ModelRequest
from dressage_proxy.errors import RequestError
from dressage_proxy.generation import Prompt
from dressage_proxy.session import Session
from dressage_proxy.volatile import pin_volatile

_THREAD_CHARS = 1 << 15
"""From here on encoding is worth a thread: byte-level tokenizers release the GIL, the event loop goes on."""
_BUSY_THREAD_CHARS = 1 << 10
"""The same while many turns share the event loop: a turn takes longer, all of them together less."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a request attaches: ``new_keys`` are its messages beyond the walk of turn ``parent``."""

    parent: int
    raw: Sequence[Mapping[str, Any]]
    keys: tuple[str, ...]
    matched: int
    tools_hash: str
    cut_reason: str
    flags: tuple[str, ...]

    @property
    def new_keys(self) -> tuple[str, ...]:
        """Keys of the messages that this request adds."""
        return self.keys[self.matched :]


@dataclass(frozen=True, slots=True)
class Plan:
    """What the engine is asked after: the turn's delta (ids int32 [D], origin uint8 [D]) and whole prompt."""

    place: Place
    kind: BranchKind
    delta_ids: NDArray[np.int32]
    delta_origin: NDArray[np.uint8]
    prompt: Prompt
    reasoning_open: bool
    system_key: str


def locate(session: Session, codec: ChatCodec, request: ModelRequest) -> Place:
    """Match a request to the tree. Raises RequestError naming the message at fault."""
    raw = pin_volatile(session.pinned, request.raw)
    known = session.known_prefix(raw)
    flags: list[str] = []
    keys = list(known)
    for index in range(len(known), len(raw)):
        message = _message(raw[index], index)
        keys.append(session.key_of(message))
        if message.tool_calls and keys[-1] != message_key(message):
            flags.append(f"messages[{index}] is not what was returned under its call ids")
        if message.role == "tool" and message.tool_call_id not in session.reply_keys:
            flags.append(f"messages[{index}] answers the unknown call {message.tool_call_id!r}")
    if not raw:
        raise RequestError("messages is empty", field="messages", fix="send at least one message")
    if raw[-1].get("role") == "assistant":
        raise RequestError(
            "the last message is an assistant message: continuing it is not supported",
            field=f"messages[{len(raw) - 1}].role",
            fix="end the list with a user or tool message",
        )
    session.note_request(raw, tuple(keys))
    tools_hash = codec.tools_hash(request.tools)
    if request.template_kwargs:
        tools_hash += "+" + repr(sorted(request.template_kwargs.items()))
    match = session.tree.match(keys, tools_hash)
    if match is None:
        reason = session.tree.divergence(keys, tools_hash)
        return Place(ROOT, raw, tuple(keys), 0, tools_hash, reason, tuple(flags))
    others = [session.tree.turn(child).input_keys for child in session.tree.children(match.index)]
    reason = "branched" if others and tuple(keys[match.matched :]) not in others else ""
    return Place(match.index, raw, tuple(keys), match.matched, tools_hash, reason, tuple(flags))


async def plan(
    session: Session, codec: ChatCodec, request: ModelRequest, place: Place, *, busy: bool = False
) -> Plan:
    """Encode what is new; where the codec refuses to extend, a new branch starts with its reason.

    ``busy`` says that many turns are under way. Raises RequestError where even a start is refused.
    """
    if place.parent != ROOT:
        prefix = session.tree.ids(place.parent)
        digest = session.tree.digest(place.parent)
        appended = [_native(session, _message(place.raw[i], i)) for i in range(place.matched, len(place.raw))]
        encoded = await _run(
            appended,
            lambda: codec.extend(
                prefix, appended, request.tools or None, template_kwargs=request.template_kwargs
            ),
            busy,
        )
        if isinstance(encoded, Encoded):
            origin = np.where(encoded.frame, Origin.BRIDGE, Origin.ENVIRONMENT).astype(np.uint8)
            kind = request.kind or session.tree.turn(place.parent).kind
            prompt = Prompt(np.concatenate([prefix, encoded.ids]), digest.update(encoded.ids))
            return Plan(place, kind, encoded.ids, origin, prompt, encoded.reasoning_open, "")
        place = replace(place, parent=ROOT, matched=0, cut_reason=f"refused_{encoded.reason}")
    return await _start(session, codec, request, place, busy)


async def _start(session: Session, codec: ChatCodec, request: ModelRequest, place: Place, busy: bool) -> Plan:
    messages = [_native(session, _message(item, index)) for index, item in enumerate(place.raw)]
    merged = merge_leading_system(messages)
    encoded = await _run(
        merged,
        lambda: codec.start(merged, request.tools or None, template_kwargs=request.template_kwargs),
        busy,
    )
    if isinstance(encoded, Refusal):
        raise RequestError(
            f"the chat template cannot express this conversation: {encoded.detail}",
            field="tools" if encoded.reason == "tools_unsupported" else "messages",
            code=encoded.reason,
        )
    system = merged[0].content if merged[0].role in ("system", "developer") else ""
    system_key = place.keys[0] if system else ""
    kind = kind_of_root(session.tree, system_key, system, request.kind)
    origin = np.full(len(encoded.ids), Origin.PROMPT, np.uint8)
    prompt = Prompt(encoded.ids, IdsDigest().update(encoded.ids))
    return Plan(place, kind, encoded.ids, origin, prompt, encoded.reasoning_open, system_key)


async def _run(
    messages: Sequence[Message], encode: Callable[[], Encoded | Refusal], busy: bool
) -> Encoded | Refusal:
    """Encode here when it is short, else in a thread."""
    size = sum(len(message.content) for message in messages)
    here = size < (_BUSY_THREAD_CHARS if busy else _THREAD_CHARS)
    return encode() if here else await asyncio.to_thread(encode)


def _message(raw: Any, index: int) -> Message:
    try:
        return message_from_json(raw, f"messages[{index}]")
    except MessageError as error:
        raise RequestError(str(error), field=error.field) from error  # its text ends with the fix


def _native(session: Session, message: Message) -> Message:
    """The message with the model's own call ids, where its grammar prints them."""
    if not session.native_ids:
        return message
    calls = tuple(replace(call, id=session.native_ids.get(call.id, call.id)) for call in message.tool_calls)
    answers = session.native_ids.get(message.tool_call_id, message.tool_call_id)
    return replace(message, tool_calls=calls, tool_call_id=answers)
