"""SGLang's /generate on the wire: the request body, and the reply as evidence.

Ids, logprobs and counts of a call either agree or the call is untrainable with a cause (promise P3): nothing
is padded, guessed or cut.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from types import NoneType
from typing import Any, TypeGuard

import numpy as np
import orjson
from dressage_segments import LossCause
from dressage_segments.turn import UNKNOWN_VERSION
from numpy.typing import NDArray

from dressage_proxy.engine.experts import Experts, ExpertsAsk, cut_experts, decode_experts
from dressage_proxy.engine.prompt import Prompt
from dressage_proxy.engine.refusals import refusal
from dressage_proxy.errors import PassingEngineError, StrangeEngineError
from dressage_proxy.records import record


@record
class CallResult:
    """One engine reply. ``output_ids`` int32 [N], ``logprobs`` float32 [N] (NaN: none given), ``versions``
    int32 [N]; ``finish_reason`` stop, length or abort; ``untrainable`` is "" or a LossCause."""

    output_ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    versions: NDArray[np.int32]
    finish_reason: str
    matched: int | str | None
    untrainable: str
    cached_tokens: int | None = None
    experts: Experts | None = None
    """Routed experts [R, layers, topk] of the positions from the one asked for up to the last but one."""

    def first(self, count: int) -> CallResult:
        """The call cut to its first ``count`` tokens."""
        dropped = len(self.output_ids) - count
        experts = self.experts
        return CallResult(
            self.output_ids[:count],
            self.logprobs[:count],
            self.versions[:count],
            self.finish_reason,
            self.matched,
            self.untrainable,
            self.cached_tokens,
            experts if experts is None else experts[: max(0, len(experts) - dropped)],
        )


@record
class Call:
    """One /generate request. ``version`` labels tokens where the reply
    names none (-1: unknown); ``experts`` asks for routed experts; ``vocabulary`` is how many ids the
    tokenizer has."""

    rid: str
    prompt: Prompt
    params: Mapping[str, Any]
    version: int = UNKNOWN_VERSION
    experts: ExpertsAsk | None = None
    vocabulary: int = 2**31

    @property
    def max_tokens(self) -> int:
        """What it may sample."""
        return int(self.params.get("max_new_tokens", 0))


SPARE_ROWS = 4096
"""A model's embedding may have rows beyond its tokenizer's ids, to fill up a block: they are sampled like
others, early in training above all, and so are trained."""
_MAX_INT32 = 2**31 - 1
_NUMBERS_OR_NONE = {float, int, NoneType}
_VERSION = re.compile(r"[0-9]{1,10}")
NOTHING = CallResult(np.empty(0, np.int32), np.empty(0, np.float32), np.empty(0, np.int32), "abort", None, "")
"""An abort that had sampled nothing."""


def request_body(call: Call) -> list[bytes]:
    """The JSON of one /generate request, in pieces to be sent one after the other. Asks for logprobs."""
    body: dict[str, Any] = {
        "rid": call.rid,
        "sampling_params": dict(call.params),
        "return_logprob": True,
        "logprob_start_len": -1,
        "stream": False,
    }
    if call.experts is not None:
        body["return_routed_experts"] = True
        body["routed_experts_start_len"] = call.experts.start
    return [b'{"input_ids":[', *call.prompt.json(), b"],", orjson.dumps(body)[1:]]


def decode_reply(body: bytes, call: Call, others: Container[str] = ()) -> CallResult:
    """Check and decode the reply to a call; ``others`` are the rids of other calls.

    Raises StrangeEngineError when the reply is no /generate reply at all, what an abort's error status means
    (see ``refusal``), and PassingEngineError for an id that no model with this tokenizer has and for another
    call's reply (then ``lost``: the engine may be making the right one still).
    """
    text = None
    if call.experts is not None:
        body, text = cut_experts(body)
    try:
        reply = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise StrangeEngineError("the engine's reply is no JSON", detail=str(error)) from error
    if not isinstance(reply, dict) or not isinstance(reply.get("meta_info"), dict):
        raise StrangeEngineError(
            "the engine's reply has no meta_info", detail="is this an SGLang /generate endpoint?"
        )
    meta: dict[str, Any] = reply["meta_info"]
    rid = meta.get("id")
    if rid != call.rid and isinstance(rid, str) and rid in others:
        raise PassingEngineError(f"the engine answers the call {call.rid} with the reply to {rid}", lost=True)
    finish, matched = _finish(meta.get("finish_reason"), call)
    ids = _ids(reply.get("output_ids"), meta.get("output_token_logprobs"), call.vocabulary)
    logprobs, cause = _logprobs(ids, meta.get("output_token_logprobs"))
    if not cause and not _counts_agree(meta, len(ids), len(call.prompt)):
        cause = LossCause.MISALIGNED.value
    if not cause and finish == "abort" and len(ids) and not _labelled(meta):
        cause = LossCause.VERSION_RULE.value  # built by another route than a finished reply's
    versions, known = _versions(meta, len(ids), call.version)
    if not cause and not known:
        cause = LossCause.VERSION_RULE.value  # a trained token names the version that sampled it (P5)
    experts = None
    if call.experts is not None and len(ids):
        experts, why = _experts(text, call.experts, len(call.prompt) + len(ids))
        cause = cause or why
    cached = meta.get("cached_tokens")
    sampled = np.array(ids, np.int32)
    cached = cached if _whole(cached) and 0 <= cached <= len(call.prompt) else None
    return CallResult(sampled, logprobs, versions, finish, matched, cause, cached, experts)


def _experts(text: memoryview | None, ask: ExpertsAsk, tokens: int) -> tuple[Experts | None, str]:
    """The rows, and why the call must not be trained without them."""
    if text is None:
        return None, LossCause.MISSING_EXPERTS.value
    experts = decode_experts(text, ask, tokens)
    return experts, LossCause.MISALIGNED.value if experts is None else ""


def _finish(reason: object, call: Call) -> tuple[str, int | str | None]:
    if not isinstance(reason, dict) or reason.get("type") not in ("stop", "length", "abort"):
        raise StrangeEngineError(
            "the engine's reply does not say how it ended",
            detail=f"finish_reason is {str(reason)[:200]}: expected type stop, length or abort",
        )
    status = reason.get("status_code")
    if reason["type"] == "abort" and isinstance(status, int) and status >= 400:
        text = str(reason.get("message"))
        raise refusal(status, text, prompt_tokens=len(call.prompt), max_tokens=call.max_tokens)
    matched = reason.get("matched")
    return reason["type"], matched if isinstance(matched, str) or _whole(matched) else None


def _ids(output_ids: object, entries: object, vocabulary: int) -> list[int]:
    """The sampled ids; where ``output_ids`` is absent the logprob entries name them.

    An id that no model with this tokenizer has shows an engine with another model: no context that holds it
    could be trained, so the call is made again elsewhere.
    """
    if output_ids is None and isinstance(entries, list):
        output_ids = [entry[1] for entry in entries if isinstance(entry, list) and len(entry) > 1]
    if output_ids is None or output_ids == []:
        return []
    # By type, before any cast: a cast would make 1 of 1.5, "1" and true.
    if not isinstance(output_ids, list) or set(map(type, output_ids)) != {int}:
        raise StrangeEngineError("the engine's output_ids are no flat list of token ids")
    ids: list[int] = output_ids
    highest = max(ids)
    if min(ids) < 0 or highest > _MAX_INT32:
        raise StrangeEngineError("the engine's output_ids are no flat list of token ids")
    if highest >= vocabulary + SPARE_ROWS:
        raise PassingEngineError(
            f"the engine sampled the id {highest}, the tokenizer ends at {vocabulary - 1}: does the engine "
            "serve the model of --tokenizer?"
        )
    return ids


def _logprobs(ids: Sequence[int], entries: object) -> tuple[NDArray[np.float32], str]:
    """One logprob for each id, and why they must not be trained. An entry is ``[logprob, id, …]``."""
    if not ids:
        return np.empty(0, np.float32), ""
    if not isinstance(entries, list) or not entries:
        return _absent(ids), LossCause.MISSING_LOGPROBS.value
    try:
        values, named, *_ = zip(*entries, strict=False)  # as many columns as the shortest entry has
    except (TypeError, ValueError):
        return _absent(ids), LossCause.MISALIGNED.value
    kinds = set(map(type, values))
    # By type, before any cast: a cast would make a number of "-1" and true, and an id of 1.5.
    if not kinds <= _NUMBERS_OR_NONE or list(named) != ids or set(map(type, named)) != {int}:
        return _absent(ids), LossCause.MISALIGNED.value
    cause = ""
    if NoneType in kinds:
        values = tuple(np.nan if value is None else value for value in values)
        cause = LossCause.MISSING_LOGPROBS.value
    with np.errstate(over="ignore"):  # beyond float32: infinite, which is no logprob either
        return np.array(values, np.float32), cause


def _absent(ids: Sequence[int]) -> NDArray[np.float32]:
    return np.full(len(ids), np.nan, np.float32)


def _counts_agree(meta: Mapping[str, Any], sampled: int, prompt_tokens: int) -> bool:
    """Counts that the reply gives (a queued abort gives none) equal what was sent and returned."""
    completion, prompt = meta.get("completion_tokens"), meta.get("prompt_tokens")
    return completion in (None, sampled) and prompt in (None, prompt_tokens)


def _versions(meta: Mapping[str, Any], sampled: int, dispatch_version: int) -> tuple[NDArray[np.int32], bool]:
    """Per token: the engine's spans, else its one label, else the version at dispatch; never a later one. And
    whether each is known.

    Spans that do not fit the output make every version unknown: which of them would be right?
    """
    spans = meta.get("weight_versions")
    if spans is None or spans == []:
        label = meta.get("weight_version")
        version = dispatch_version if label is None else version_number(label)
        return np.full(sampled, version, np.int32), version != UNKNOWN_VERSION or not sampled
    versions = _spanned(spans, sampled)
    return versions, not bool((versions == UNKNOWN_VERSION).any())


def _spanned(spans: object, sampled: int) -> NDArray[np.int32]:
    unknown = np.full(sampled, UNKNOWN_VERSION, np.int32)
    if not isinstance(spans, list):
        return unknown
    versions = unknown.copy()
    end = 0
    for span in spans:
        fields: Mapping[str, object] = span if isinstance(span, dict) else {}
        start, stop = fields.get("start"), fields.get("end")
        if not _whole(start) or not _whole(stop) or not end <= start <= stop <= sampled:
            return unknown
        versions[start:stop] = version_number(fields.get("version"))
        end = stop
    return versions


def _whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _labelled(meta: Mapping[str, Any]) -> bool:
    return meta.get("weight_version") is not None or bool(meta.get("weight_versions"))


def version_number(label: object) -> int:
    """A version label as a number. SGLang's "default" and other words are unknown, and stay so whatever the
    control plane announced: such an engine was loaded by somebody else."""
    text = label if isinstance(label, str) else str(label) if _whole(label) else ""
    known = _VERSION.fullmatch(text) is not None and int(text) <= _MAX_INT32
    return int(text) if known else UNKNOWN_VERSION
