"""Text that a client puts behind what was sampled, in the same message.

Agents that call their tools in plain text let a turn end at a stop string, put that string back, and write
what the tool said behind it. What was sampled stays what it was; what was put behind it is read as a message
of its own: encoded in the same message where the sampled turn is not closed yet, else after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from dressage_segments import Turn
from dressage_tito import ChatCodec, Message
from numpy.typing import NDArray

from dressage_proxy.branches import text_blocks
from dressage_proxy.canonical import message_key
from dressage_proxy.records import record
from dressage_proxy.said import parsed

Raw = Mapping[str, Any]
_TRIES = 16
"""What a tool said may have a turn's words too, so many times at most: each is looked at in full."""


@record
class Behind:
    """What an assistant message is made of."""

    told: str
    """The text that a turn was returned as."""
    text: str
    """What the client put behind it; "" where it put a stop string there alone."""
    restored: str = ""
    """What the turn sampled between the two and the client put back: the stop string that ended it."""


class Addition(dict[str, Any]):
    """A message of the chat shape that is the text which a client put behind the message before it, after
    what it ``restored`` of that message's turn."""

    def __init__(self, found: Behind) -> None:
        super().__init__(role="assistant", content=found.text)
        self.restored = found.restored


class Further(dict[str, Any]):
    """A message of the chat shape that comes after another turn, or an addition, in one message of a client:
    a further turn, and what was put behind that."""


def closed(codec: ChatCodec, ids: NDArray[np.int32]) -> bool:
    """Whether sampled ids (int32 [N]) end with one that closes a turn, and not at a stop string or a cap."""
    return len(ids) > 0 and int(ids[-1]) in codec.stop_token_ids


def behind(codec: ChatCodec, turn: Turn, message: Message, blocks: Sequence[str] = ()) -> Behind | None:
    """What a client put behind the text of a turn without calls; None where the message does not begin with
    all of that text. ``blocks`` are the message's texts.

    After a turn that is closed, what was put behind it begins with white space, is a text of its own, or
    begins with a stop string that the client asked for: there are clients that end each step with it. A stop
    string alone is left out, since the turn ended without it."""
    if message.tool_calls or turn.extra.get("wire_ids"):
        return None
    said, told = _texts(codec, turn)
    whole = message.content.strip()
    for text in () if told is None else (said, told):
        if not text.strip() or not whole.startswith(text.strip()):
            continue
        rest = whole[len(text.strip()) :]
        if closed(codec, turn.output_ids):
            if rest.strip() in map(str.strip, _stops(turn)):
                rest = ""
            elif not (_begins_anew(rest, blocks, text.strip()) or rest.startswith(tuple(_stops(turn)))):
                return None
        told = told or ""
        return Behind(told, rest.removeprefix(text[len(text.rstrip()) :]), text[len(told) :])
    return None


def _begins_anew(rest: str, blocks: Sequence[str], text: str) -> bool:
    """Whether what stands behind ``text``, which the first of ``blocks`` say together, is told from it by
    white space or begins another one of them."""
    if not rest or rest[0].isspace():
        return True
    begun = ""
    for block in blocks[:-1]:
        begun += block
        if len(begun) >= len(text) and len(begun.strip()) >= len(text):
            return begun.strip() == text
    return False


def grown(codec: ChatCodec, turns: Iterable[Turn], addition: Addition) -> list[Raw]:
    """What a client put behind a turn as what one of ``turns`` answered, each of them one message, and then
    that turn with what was put behind it in turn; as it is where it holds none."""
    text = addition["content"]
    for turn in turns:
        told = (_texts(codec, turn)[1] or "").strip()
        at = -1
        for _ in range(_TRIES if told else 0):
            at = text.find(told, at + 1)
            if at < 0:
                break
            if (_key(text[:at]),) != turn.input_keys:
                continue
            first = Addition(Behind("", text[:at].rstrip(), addition.restored))
            rest = Further(role="assistant", content=text[at:])
            more = behind(codec, turn, Message("assistant", text[at:]))
            if more is not None:
                return [first, *parts(rest, more)]
            if _key(text[at:]) == turn.reply_key:
                return [first, rest]
    return [addition]


def joined(codec: ChatCodec, turn: Turn, message: Message) -> tuple[str, str] | None:
    """The text of a message with a turn's calls, as what was said before the turn, and what the turn said
    itself; None where its text does not end with that, or is that alone."""
    whole, own = message.content.strip(), own_text(codec, turn)
    before = whole[: len(whole) - len(own)].rstrip()
    return (before, own) if before and whole.endswith(own) else None


def own_text(codec: ChatCodec, turn: Turn) -> str:
    """What a turn said, less its calls and the white space around it."""
    if not turn.extra.get("wire_ids"):
        return (_texts(codec, turn)[1] or "").strip()
    return parsed(codec, turn).content.strip()


def _texts(codec: ChatCodec, turn: Turn) -> tuple[str, str | None]:
    """The text of a turn as it was sampled, and as it was returned; None for that of a turn with calls."""
    said = parsed(codec, turn, tools=None).content
    return said, next((text for text in _told(said, turn) if _key(text) == turn.reply_key), None)


def _told(said: str, turn: Turn) -> Iterator[str]:
    """What the text of a turn may have been returned as: without the stop string that ended it."""
    yield said
    for stop in _stops(turn):
        if stop in said:
            yield said[: said.rfind(stop)]


def _stops(turn: Turn) -> Sequence[str]:
    """The stop strings that a turn was sampled under."""
    found: Sequence[str] = turn.sampling.get("stop", ())
    return found


def _key(text: str) -> str:
    return message_key(Message("assistant", text))


def apart(
    added: Mapping[str, Behind], raw: Sequence[Raw], handles: Mapping[int, str]
) -> tuple[Sequence[Raw], Mapping[int, str]]:
    """Messages with each of ``added`` (their whole texts) as the turn that it begins with and what was put
    behind that, and ``handles`` by the new indices; the very same where there is none."""
    if not added or not any(_added(added, message) for message in raw):
        return raw, handles
    parted: list[Raw] = []
    moved: dict[int, str] = {}
    for index, message in enumerate(raw):
        if index in handles:
            moved[len(parted)] = handles[index]
        found = _added(added, message)
        parted += [message] if found is None else parts(message, found)
    return parted, moved


def parts(message: Raw, found: Behind) -> list[Raw]:
    """A message as the turn that it begins with, and what was put behind that."""
    turn = {**message, "content": found.told}
    turn = Further(turn) if isinstance(message, Further) else turn
    return [turn, Addition(found)] if found.text else [turn]


def _added(added: Mapping[str, Behind], message: object) -> Behind | None:
    if not isinstance(message, Mapping) or message.get("role") != "assistant":
        return None
    return None if message.get("tool_calls") else added.get("".join(text_blocks(message)))
