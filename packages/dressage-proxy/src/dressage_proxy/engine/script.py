"""What a scripted engine answers: policies, and the faults that can be put into its replies."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias


class Fault(StrEnum):
    """A defect of one reply, each seen of real engines or of the machines between."""

    DROP = "drop"
    """The connection closes in the middle of the reply."""
    BAD_REQUEST = "bad_request"
    """HTTP 400."""
    BUSY = "busy"
    """HTTP 429 with Retry-After: 0."""
    SERVER_ERROR = "server_error"
    """HTTP 500."""
    UNAVAILABLE = "unavailable"
    """HTTP 503."""
    NO_JSON = "no_json"
    """HTTP 200 with a body that is no JSON."""
    SHORT_LOGPROBS = "short_logprobs"
    """One logprob entry fewer than ids."""
    LONG_LOGPROBS = "long_logprobs"
    """One logprob entry more than ids."""
    OTHER_IDS = "other_ids"
    """As many logprob entries as ids, but they name other ids."""
    NO_LOGPROBS = "no_logprobs"
    NULL_LOGPROB = "null_logprob"
    """One entry's logprob is null."""
    WRONG_COUNT = "wrong_count"
    """completion_tokens is one too many."""
    NO_EXPERTS = "no_experts"
    """No routed_experts although they were asked for."""
    SHORT_EXPERTS = "short_experts"
    """Fewer routed experts than tokens."""
    WILD_EXPERT = "wild_expert"
    """The last routed expert is one that the model does not have."""
    NO_VERSION = "no_version"
    """No weight_version in meta_info."""
    DEFAULT_VERSION = "default_version"
    """weight_version is "default", SGLang's label of weights that nobody numbered."""
    QUEUED_ABORT = "queued_abort"
    """Aborted before it ran: empty output, no prompt_tokens, no cached_tokens."""
    FAILED_ABORT = "failed_abort"
    """An abort whose finish_reason carries status_code 500, sent with HTTP 500."""
    SLOW = "slow"
    """The reply waits ``slow_s`` first."""


@dataclass(frozen=True, slots=True)
class Output:
    """A scripted reply in full. ``logprobs`` default to :func:`logprob`; ``matched`` is a stop string or id
    that ends the reply as ``stop``; without it the ids tell (a stop token stops, else ``length``)."""

    ids: Sequence[int]
    logprobs: Sequence[float] | None = None
    matched: int | str | None = None


Policy: TypeAlias = Callable[[list[int], Mapping[str, Any], int], "Sequence[int] | Output"]
"""``(input_ids, sampling_params, call_number from 0) -> ids``. Ids end at the first stop token (kept), at
``max_new_tokens``, or where the policy's ids end (told as ``length``)."""


@dataclass(slots=True)
class Sampled:
    """One /generate call as the engine saw it, and what it answered once it ended."""

    number: int
    rid: str
    input_ids: list[int]
    sampling_params: Mapping[str, Any]
    output_ids: list[int] = field(default_factory=list)
    finish: str = ""
    """``stop``, ``length`` or ``abort``; "" while running or when a fault took the reply's place."""
    fault: Fault | None = None


def logprob(token: int, position: int) -> float:
    """The logprob of a scripted token: a fixed function of the id and its place in the whole sequence."""
    return -((token * 31 + position * 17) % 997 + 1) / 500


def letters(tokens: int = 8, *, seed: int = 0, low: int = 64, high: int = 89) -> Policy:
    """``tokens`` pseudo-random ids of low..high, then the first stop token where one is asked for.

    64..89 are the letters a to z in byte-level vocabularies that start with the sorted alphabet (GPT-2, Qwen,
    the toy tokenizer), so that a reply never spells markup.
    """

    def policy(input_ids: list[int], sampling_params: Mapping[str, Any], number: int) -> list[int]:
        ids = random.Random(seed * 1_000_003 + number).choices(range(low, high + 1), k=tokens)
        return [*ids, *list(sampling_params.get("stop_token_ids") or ())[:1]]

    return policy


def replies(ids: Sequence[Sequence[int]]) -> Policy:
    """The given replies in order, the last one again and again; each ends with the first stop token."""
    if not ids:
        raise ValueError("replies needs at least one reply")

    def policy(input_ids: list[int], sampling_params: Mapping[str, Any], number: int) -> list[int]:
        reply = list(ids[min(number, len(ids) - 1)])
        stops = list(sampling_params.get("stop_token_ids") or ())
        return reply if not stops or reply[-1:] == stops[:1] else [*reply, stops[0]]

    return policy
