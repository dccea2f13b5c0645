"""Where a stop string ends a reply, whatever the engine sampled past it or a pause split."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from dressage_proxy.engine.wire import CallResult

_UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""What the bytes of a character decode to before its last id."""


def cut_at_stop(
    decode: Callable[[NDArray[np.int32]], str],
    before: NDArray[np.int32],
    result: CallResult,
    stop: Sequence[str],
) -> tuple[CallResult, str, int | str | None]:
    """The call, cut after the id that completed a stop string, with how the reply ends and at what.

    ``before`` is what earlier calls of the reply sampled, int32 [N]. A decoding step may go past the stop
    string that the engine names. One that a pause split is seen by no engine, since each call looks at its
    own output alone: then the reply's text tells.
    """
    named = result.matched if result.finish_reason == "stop" and result.matched else None
    unchanged = result, result.finish_reason, result.matched
    if not isinstance(named, str) and not (stop and len(before) and len(result.output_ids)):
        return unchanged
    ids = np.concatenate([before, result.output_ids])
    text = decode(ids)
    place, found = text.rfind(named) if isinstance(named, str) else -1, named
    if len(before):
        border = len(decode(before).rstrip(_UNFINISHED))
        split = [(text.find(end, max(0, border - len(end) + 1)), end) for end in stop]
        split = [(start, end) for start, end in split if 0 <= start < border]
        if isinstance(named, str) and place + len(named) <= border:
            place = -1  # of an earlier call: not what ended this one
        place, found = min(split, default=(place, found), key=lambda item: item[0])
    if place < 0 or not isinstance(found, str):
        return unchanged
    low, high = 0, len(result.output_ids)
    while low < high:
        middle = (low + high) // 2
        if decode(ids[: len(before) + middle]).rfind(found) >= place:
            high = middle
        else:
            low = middle + 1
    return result.first(low), "stop", found
