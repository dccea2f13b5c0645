"""Sampling parameters of /generate, and a sampler whose logprobs are of the distribution it drew from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dressage_recipes.local.engine.errors import InvalidRequestError

KNOWN_AND_INERT = frozenset(
    {"skip_special_tokens", "spaces_between_special_tokens", "no_stop_trim", "stream_interval", "n"}
)
"""Accepted when they ask for nothing: they shape text, and this engine returns ids."""
UNSUPPORTED = frozenset(
    {
        "stop", "stop_regex", "frequency_penalty", "presence_penalty", "repetition_penalty", "min_new_tokens",
        "json_schema", "regex", "ebnf", "structural_tag", "logit_bias", "custom_params",
    }
)  # fmt: skip
NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "frequency_penalty": (0, 0.0), "presence_penalty": (0, 0.0), "repetition_penalty": (1, 1.0),
    "min_new_tokens": (0,), "n": (1,),
}  # fmt: skip
"""Values of unsupported parameters that change nothing, and so are let through."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """What one request asks for of /generate."""

    max_new_tokens: int = 128
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    sampling_seed: int | None = None

    @property
    def plain(self) -> bool:
        """Whether it samples the model's own distribution: no filter, temperature 1."""
        return self.temperature == 1.0 and self.top_p >= 1.0 and self.top_k <= 0 and self.min_p <= 0.0


def parse_sampling(raw: object) -> SamplingParams:
    """Check the ``sampling_params`` object of a request. Raises InvalidRequestError naming the key."""
    if raw is None:
        raw = {}
    if not isinstance(raw, Mapping):
        raise InvalidRequestError("sampling_params", "must be an object")
    known: dict[str, Any] = {}
    for key, value in raw.items():
        if key in SamplingParams.__dataclass_fields__:
            if value is not None:
                known[key] = _checked(key, value)
        elif key in KNOWN_AND_INERT or key in UNSUPPORTED:
            _refuse_unless_neutral(key, value)
        else:
            raise InvalidRequestError(f"sampling_params.{key}", "is not a sampling parameter; remove it")
    return SamplingParams(**known)


def _refuse_unless_neutral(key: str, value: object) -> None:
    neutral = NEUTRAL.get(key)
    if value is None or value in ([], {}, ""):
        return
    if (key in UNSUPPORTED or neutral) and value not in (neutral or ()):
        raise InvalidRequestError(f"sampling_params.{key}", "is not supported by the local engine; remove it")


def _checked(key: str, value: Any) -> Any:
    field = f"sampling_params.{key}"
    if key == "stop_token_ids":
        if not isinstance(value, Sequence) or not all(_is_int(v) for v in value):
            raise InvalidRequestError(field, "must be a list of token ids")
        return frozenset(value)
    if key == "ignore_eos":
        if not isinstance(value, bool):
            raise InvalidRequestError(field, "must be true or false")
        return value
    if key in ("max_new_tokens", "top_k", "sampling_seed"):
        if not _is_int(value):
            raise InvalidRequestError(field, "must be an integer")
        if key == "max_new_tokens" and value < 1:
            raise InvalidRequestError(field, "must be at least 1")
        return value
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise InvalidRequestError(field, "must be a number")
    low, high = {"temperature": (0.0, 100.0), "top_p": (0.0, 1.0), "min_p": (0.0, 1.0)}[key]
    if not low <= value <= high or (key == "top_p" and value == 0):
        raise InvalidRequestError(field, f"must be within {low} to {high}, got {value}")
    return float(value)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def distribution(logits_bv: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Log-probabilities float32 [B, V] of what each row samples from; -inf where a filter removed the token.

    Order as SGLang's: temperature, then top-k, top-p and min-p, each over what the one before left,
    renormalised at the end. Temperature 0 is greedy: the best token has log-probability 0.
    """
    logits_bv = logits_bv.float()
    if all(p.plain for p in params):
        return torch.log_softmax(logits_bv, dim=-1)
    rows = [
        torch.log_softmax(row, dim=-1) if p.plain else _filtered(row, p)
        for row, p in zip(logits_bv, params, strict=True)
    ]
    return torch.stack(rows)


def _filtered(logits_v: Tensor, params: SamplingParams) -> Tensor:
    if params.temperature == 0.0 or params.top_k == 1:
        out = torch.full_like(logits_v, -torch.inf)
        out[logits_v.argmax()] = 0.0
        return out
    logps, order = torch.log_softmax(logits_v / params.temperature, dim=-1).sort(descending=True, stable=True)
    keep = torch.ones_like(logps, dtype=torch.bool)
    if params.top_k > 0:
        keep[params.top_k :] = False
    if params.top_p < 1.0:
        probs = torch.where(keep, logps.exp(), 0.0)
        before = probs.cumsum(0) - probs
        keep &= before < params.top_p * probs.sum()
    if params.min_p > 0.0:
        keep &= logps >= logps[0] + torch.log(torch.tensor(params.min_p))
    keep[0] = True
    kept = torch.where(keep, logps, -torch.inf)
    return torch.full_like(logits_v, -torch.inf).scatter(0, order, kept - kept.logsumexp(0))


def draw(logps_bv: Tensor, generators: Sequence[torch.Generator | None], shared: torch.Generator) -> Tensor:
    """One token per row, int64 [B], by inverting the cumulative distribution: one random number a row, since
    one for every token of a large vocabulary takes longer than the model. A row with its own generator is
    reproducible. Where the probability is 0, no number leads."""
    cumulative_bv = logps_bv.exp().cumsum(-1, dtype=torch.float64)
    total_b1 = cumulative_bv[:, -1:]
    uniform_b1 = torch.rand(total_b1.shape, generator=shared, dtype=torch.float64)
    for row, generator in enumerate(generators):
        if generator is not None:
            uniform_b1[row] = torch.rand(1, generator=generator, dtype=torch.float64)
    # Below the total, whatever rounding does: the first sum above it is then that of a token with a chance.
    at_b1 = torch.minimum(uniform_b1 * total_b1, torch.nextafter(total_b1, torch.zeros_like(total_b1)))
    return torch.searchsorted(cumulative_bv, at_b1, right=True).squeeze(1)
