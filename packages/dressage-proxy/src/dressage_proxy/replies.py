"""What is told of a sampled reply besides its text."""

from __future__ import annotations

import numpy as np
from dressage_tito import ChatCodec, Message
from numpy.typing import NDArray


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
