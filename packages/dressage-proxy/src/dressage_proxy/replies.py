"""What is told of a sampled reply besides its text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from dressage_tito import ChatCodec, Message, ParsedTurn
from numpy.typing import NDArray


def returned(
    parsed: ParsedTurn, finish_reason: str, matched: int | str | None, wire_ids: Sequence[str]
) -> Message:
    """The assistant message as clients see it: calls under their wire ids, without the stop string
    (``matched``) that ended it."""
    calls = [replace(call, id=wire) for call, wire in zip(parsed.tool_calls, wire_ids, strict=True)]
    content = parsed.content
    if finish_reason == "stop" and isinstance(matched, str) and matched and matched in content:
        content = content[: content.rfind(matched)]
    return Message("assistant", content, parsed.reasoning, tuple(calls))


def reasoning_tokens(codec: ChatCodec, ids: NDArray[np.int32], message: Message) -> int:
    """How many of a reply's ids (int32 [N]) are reasoning, its closing tag included."""
    tags = codec.profile.reasoning_tags
    if not message.reasoning or tags is None:
        return 0
    closing = codec.encode_sample(tags[1])
    if len(closing) == 1:
        found = np.flatnonzero(ids == closing[0])
        return int(found[0]) + 1 if len(found) else len(ids)
    return min(len(ids), len(codec.encode_plain(message.reasoning)) + len(closing))
