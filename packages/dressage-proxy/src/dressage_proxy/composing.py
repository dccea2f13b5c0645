"""A prompt from messages and from the sampled ids of earlier turns among them.

Where a client's history holds turns of this session in another place than the tree has them (it was
compacted, forked, or a message before them changed), their ids are copied and what lies between is encoded: a
turn that was sampled is never tokenised again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from dressage_tito import ChatCodec, Encoded, Message, Refusal, ThinkingPolicy, Tool
from numpy.typing import NDArray

from dressage_proxy.added import closed
from dressage_proxy.canonical import merge_leading_system
from dressage_proxy.echoes import Echo
from dressage_proxy.records import record

NOTE_PREFIX = "[system] "
"""Before a system message in mid-conversation that the template can only print as the user's."""
_SYSTEM = ("system", "developer")
_CUTS = ("thinking_stripped", "stop_rewritten")
"""Refusals by which a session's policy for thinking begins a new segment."""


@record
class Piece:
    """A message, and the sampled ids (int32 [N]) that take its place where it is an echo."""

    message: Message
    echo: Echo | None
    ids: NDArray[np.int32] | None
    behind: str | None = None
    """It is what a client put behind the text of the message before it, after this: the stop string that it
    put back."""


@record
class Composed:
    """What to append to the prefix. ``copied`` turns are in it by their ids, ``rendered`` ones as text,
    ``noted`` system messages as notes of the user; ``joined`` messages became a part of the one before."""

    encoded: Encoded
    copied: int
    rendered: int
    noted: int = 0
    joined: int = 0


def compose(
    codec: ChatCodec,
    pieces: Sequence[Piece],
    prefix: NDArray[np.int32] | None,
    tools: Sequence[Tool] | None,
    template_kwargs: Mapping[str, Any],
    thinking: ThinkingPolicy = "keep",
) -> Composed | Refusal:
    """Encode ``pieces`` after ``prefix`` (None: from the start) up to the generation prompt.

    Without any, the model's next turn follows its last one. Where the codec refuses to go on after a copied
    turn, that one, or all of them, are rendered as text and counted. Where
    it refuses that too, the conversation is adapted to what templates commonly do not take: a developer who
    leads is the system, system messages in mid-conversation become notes of the user in their place, and
    messages of the user in a row one message. Else so does this refuse.
    """
    encoder = _Encoder(codec, prefix, tools, template_kwargs, thinking)
    composed = _composed(encoder, pieces)
    if isinstance(composed, Composed) or composed.reason in _CUTS:
        return composed
    noted = _noted(pieces, started=prefix is not None)
    changed = [piece.message.role for piece, old in zip(noted, pieces, strict=True) if piece is not old]
    joined = _joined(noted)
    for adapted, changes in ((noted, len(changed)), (joined, len(pieces) - len(joined))):
        again = _composed(encoder, adapted) if changes else composed
        if isinstance(again, Composed):
            return replace(again, noted=changed.count("user"), joined=len(pieces) - len(adapted))
    return composed


def _composed(encoder: _Encoder, pieces: Sequence[Piece]) -> Composed | Refusal:
    echoes = sum(piece.ids is not None for piece in pieces)
    if echoes:
        composed = encoder.run(pieces)
        if isinstance(composed, Composed):
            return composed
    encoded = encoder.encode(pieces)
    return encoded if isinstance(encoded, Refusal) else Composed(encoded, 0, echoes)


def _noted(pieces: Sequence[Piece], *, started: bool) -> list[Piece]:
    """Pieces with the user's notes in place of system messages that do not lead the conversation; who leads
    it is the system."""
    adapted = []
    for piece in pieces:
        message = piece.message
        if message.role not in _SYSTEM:
            started = True
        elif started:
            message = replace(message, role="user", content=NOTE_PREFIX + message.content)
        elif message.role != "system":
            message = replace(message, role="system")
        adapted.append(piece if message is piece.message else replace(piece, message=message))
    return adapted


def _joined(pieces: Sequence[Piece]) -> list[Piece]:
    """Pieces with one message of the user where several follow each other."""
    adapted: list[Piece] = []
    for piece in pieces:
        if adapted and piece.message.role == adapted[-1].message.role == "user":
            text = f"{adapted[-1].message.content}\n\n{piece.message.content}"
            adapted[-1] = replace(piece, message=replace(piece.message, content=text))
        else:
            adapted.append(piece)
    return adapted


class _Encoder:
    def __init__(
        self,
        codec: ChatCodec,
        prefix: NDArray[np.int32] | None,
        tools: Sequence[Tool] | None,
        template_kwargs: Mapping[str, Any],
        thinking: ThinkingPolicy,
    ) -> None:
        self._codec = codec
        self._prefix = prefix
        self._tools = tools
        self._kwargs = template_kwargs
        self._thinking = thinking

    def run(self, pieces: Sequence[Piece]) -> Composed | Refusal:
        """With the ids of echoes in their place.

        Where the codec does not let a turn follow another one, or be followed by none, that turn alone is
        rendered as text. One that ended on a stop which the template does not go on from is there without it.
        """
        ids: list[NDArray[np.int32]] = []
        frames: list[NDArray[np.bool_]] = []
        between: list[Piece] = []
        before: list[Piece] = []
        copied = rendered = 0
        for piece in pieces:
            encoded = None if piece.ids is None else self._next(between, ids, frames)
            if isinstance(encoded, Refusal) and between:
                return encoded
            if piece.ids is None or not isinstance(encoded, Encoded):
                rendered += piece.ids is not None
                between.append(piece)
                continue
            ids += [encoded.ids, piece.ids]
            frames += [encoded.frame, np.zeros(len(piece.ids), np.bool_)]
            before, between = between, []
            copied += 1
        encoded = self._next(between, ids, frames)
        if isinstance(encoded, Refusal) and not between and copied:
            del ids[-2:], frames[-2:]
            copied, rendered = copied - 1, rendered + 1
            encoded = self._next([*before, pieces[-1]], ids, frames)
        if isinstance(encoded, Refusal):
            return encoded
        whole = Encoded(
            np.concatenate([*ids, encoded.ids]),
            np.concatenate([*frames, encoded.frame]),
            encoded.reasoning_open,
        )
        return Composed(whole, copied, rendered)

    def _next(
        self, pieces: Sequence[Piece], ids: list[NDArray[np.int32]], frames: list[NDArray[np.bool_]]
    ) -> Encoded | Refusal:
        """Messages after ``ids``, which end with a turn, and lose a stop of it that is in the way."""
        encoded = self.encode(pieces, ids)
        if not ids or not isinstance(encoded, Refusal) or encoded.reason != "stop_mismatch":
            return encoded
        again = self.encode(pieces, [*ids[:-1], ids[-1][:-1]])
        if isinstance(again, Encoded):
            ids[-1], frames[-1] = ids[-1][:-1], frames[-1][:-1]
            return again
        return encoded

    def encode(self, pieces: Sequence[Piece], before: Sequence[NDArray[np.int32]] = ()) -> Encoded | Refusal:
        """Messages after the prefix and ``before``; for none what stands before the model's next turn."""
        prefix = self._prefix
        if before:
            prefix = np.concatenate(before if prefix is None else [prefix, *before])
        messages = _written(pieces)
        if prefix is None:
            merged = merge_leading_system(messages)
            return self._codec.start(merged, self._tools, template_kwargs=self._kwargs)
        if not pieces or pieces[0].behind is None or closed(self._codec, prefix):
            return self._extend(prefix, messages)
        behind = np.asarray(self._codec.encode_plain(messages[0].content), np.int32)
        encoded = self._extend(np.concatenate([prefix, behind]), messages[1:])
        if isinstance(encoded, Refusal):
            return encoded
        frame = np.concatenate([np.zeros(len(behind), np.bool_), encoded.frame])
        return replace(encoded, ids=np.concatenate([behind, encoded.ids]), frame=frame)

    def _extend(self, prefix: NDArray[np.int32], messages: Sequence[Message]) -> Encoded | Refusal:
        return self._codec.extend(
            prefix, messages, self._tools, template_kwargs=self._kwargs, thinking=self._thinking
        )


def _written(pieces: Sequence[Piece]) -> list[Message]:
    """The messages to encode: what was put behind one that is among them is in it again."""
    messages: list[Message] = []
    for piece in pieces:
        if piece.behind is not None and messages:
            text = messages[-1].content + piece.behind + piece.message.content
            messages[-1] = replace(messages[-1], content=text)
        else:
            messages.append(piece.message)
    return messages
