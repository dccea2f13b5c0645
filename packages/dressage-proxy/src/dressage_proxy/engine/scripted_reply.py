"""The scripted engine's replies: SGLang's meta_info, and how a fault spoils it."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dressage_proxy.engine.script import Fault, Output, Sampled, logprob
from dressage_proxy.engine.scripted_http import RefusedError
from dressage_proxy.engine.scripted_runs import Run

DEFAULT_MAX_NEW_TOKENS = 128

SAMPLING_KEYS = frozenset(
    (
        *("max_new_tokens", "min_new_tokens", "n", "stop", "stop_token_ids", "stop_regex", "ignore_eos"),
        *("temperature", "top_p", "top_k", "min_p", "sampling_seed", "logit_bias", "custom_params"),
        *("frequency_penalty", "presence_penalty", "repetition_penalty", "stream_interval", "no_stop_trim"),
        *("json_schema", "regex", "ebnf", "structural_tag"),
        *("skip_special_tokens", "spaces_between_special_tokens"),
    )
)
"""The sampling parameters that SGLang knows; it refuses others."""


def asked(payload: Mapping[str, Any]) -> tuple[list[int], Mapping[str, Any]]:
    """The input ids and sampling parameters of a /generate body. Raises RefusedError."""
    ids, params = payload.get("input_ids"), payload.get("sampling_params") or {}
    if not isinstance(ids, list) or not ids or type(ids[0]) is not int:
        raise RefusedError("input_ids must be a non-empty list of token ids")
    if unknown := params.keys() - SAMPLING_KEYS:
        raise RefusedError(f"unknown sampling_params: {', '.join(sorted(unknown))}")
    if payload.get("stream"):
        raise RefusedError("stream: the scripted engine answers whole; send stream: false")
    return ids, params


def cut(output: Output, sampling_params: Mapping[str, Any]) -> Output:
    """What an engine would have sampled of a scripted output: up to a stop token, or to max_new_tokens."""
    stops = frozenset(sampling_params.get("stop_token_ids") or ())
    limit = sampling_params.get("max_new_tokens", DEFAULT_MAX_NEW_TOKENS)
    ids, matched = list(output.ids), output.matched
    end = next((place for place, token in enumerate(ids) if token in stops), len(ids))
    if end < len(ids):
        ids, matched = ids[: end + 1], ids[end]
    if len(ids) > limit:
        ids, matched = ids[:limit], None
    return Output(ids, output.logprobs, matched)


def finish_reason(output: Output, run: Run) -> dict[str, Any]:
    """SGLang's finish_reason of a call that ended; ``output`` is cut already."""
    if run.aborted.is_set():
        return {"type": "abort", "message": "Aborted", "status_code": None}
    if output.matched is not None:
        return {"type": "stop", "matched": output.matched}
    return {"type": "length", "length": len(output.ids)}


def meta_info(
    call: Sampled,
    run: Run,
    output: Output,
    payload: Mapping[str, Any],
    *,
    labelled: bool,
    spans: bool,
    cached: int,
    experts: tuple[int, int, int] | None,
    delta_experts: bool,
) -> dict[str, Any]:
    """The meta_info of a call that ended with ``call.output_ids``; without prompt counts if it never ran."""
    count, start = len(call.output_ids), len(call.input_ids)
    meta: dict[str, Any] = {
        "id": call.rid,
        "finish_reason": finish_reason(output, run),
        "completion_tokens": count,
    }
    if run.started is not None:
        meta |= {"prompt_tokens": start, "cached_tokens": cached, "e2e_latency": 0.0}
        if experts and payload.get("return_routed_experts"):
            first = int(payload.get("routed_experts_start_len") or 0) if delta_experts else 0
            tokens = [*call.input_ids, *call.output_ids][first:-1]
            meta["routed_experts"] = base64.b64encode(routing(tokens, first, experts).tobytes()).decode(
                "ascii"
            )
    if payload.get("return_logprob"):
        given = output.logprobs
        meta["output_token_logprobs"] = [
            [logprob(token, start + place) if given is None else given[place], token, None]
            for place, token in enumerate(call.output_ids)
        ]
    if labelled:
        meta["weight_version"] = run.version
    if spans and count:
        meta["weight_versions"] = _weight_versions(run, count)
    if call.fault is not None:
        _spoil(meta, call.fault)
    return meta


def routing(tokens: Sequence[int], first: int, experts: tuple[int, int, int]) -> NDArray[np.int32]:
    """What the scripted model routes tokens at positions ``first`` … to: int32 [R, layers, topk], a fixed
    function of each token and its position, so that a row can be told from every other."""
    layers, topk, count = experts
    rows = np.asarray(tokens, np.int64) * 7 + np.arange(first, first + len(tokens))
    grid = np.add.outer(np.add.outer(rows, np.arange(layers) * 3), np.arange(topk)) % count
    return np.asarray(grid, np.int32)


def _weight_versions(run: Run, count: int) -> list[dict[str, Any]]:
    ends = [start for start, _ in run.spans[1:]] + [count]
    return [
        {"version": version, "start": start, "end": min(end, count)}
        for (start, version), end in zip(run.spans, ends, strict=True)
        if start < min(end, count)
    ]


def _spoil(meta: dict[str, Any], fault: Fault) -> None:
    entries = meta.get("output_token_logprobs")
    match fault:
        case Fault.NO_LOGPROBS:
            meta.pop("output_token_logprobs", None)
        case Fault.SHORT_LOGPROBS if entries:
            entries.pop()
        case Fault.LONG_LOGPROBS if entries:
            entries.append(list(entries[-1]))
        case Fault.OTHER_IDS if entries:
            entries[0] = [entries[0][0], entries[0][1] + 1, None]
        case Fault.NULL_LOGPROB if entries:
            entries[0] = [None, *entries[0][1:]]
        case Fault.WRONG_COUNT:
            meta["completion_tokens"] += 1
        case Fault.NO_EXPERTS:
            meta.pop("routed_experts", None)
        case Fault.SHORT_EXPERTS if "routed_experts" in meta:
            meta["routed_experts"] = meta["routed_experts"][4:]
        case Fault.WILD_EXPERT if "routed_experts" in meta:
            wild = base64.b64decode(meta["routed_experts"])[:-4] + b"\xff\xff\x00\x00"
            meta["routed_experts"] = base64.b64encode(wild).decode("ascii")
        case Fault.NO_VERSION:
            meta.pop("weight_version", None)
            meta.pop("weight_versions", None)
        case Fault.DEFAULT_VERSION:
            meta["weight_version"] = "default"
            meta.pop("weight_versions", None)
        case _:
            pass
