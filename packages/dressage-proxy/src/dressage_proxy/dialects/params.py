"""Checks of request parameters that the dialects share."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from dressage_proxy.errors import RequestError
from dressage_proxy.surrogates import whole_text

SAMPLING = ("temperature", "top_p", "top_k", "min_p", "seed", "frequency_penalty", "presence_penalty",
            "repetition_penalty")  # fmt: skip
"""Parameters that every dialect passes on to the engine, whether its own API has them or the engine's."""

_NUMBERS: Mapping[str, tuple[float, float]] = {
    "temperature": (0, 2),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "top_k": (-1, 2**30),
    "seed": (-(2.0**63), 2.0**63),
    "frequency_penalty": (-2, 2),
    "presence_penalty": (-2, 2),
    "repetition_penalty": (0, 2),
}
_WHOLE = ("top_k", "seed")
_NOT_ZERO = ("top_p", "top_k", "repetition_penalty")
"""Engines refuse 0 for these."""
_INT64 = 2**63 - 1
_TEMPLATE_OWN = ("messages", "tools", "documents", "add_generation_prompt")
STREAM_PIECE = 512
"""Characters of one delta."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """What a dialect does with each parameter; one that is in no list is refused by name."""

    read: frozenset[str]
    """Those that the dialect reads and checks itself."""
    accepted: Mapping[str, str]
    """Those that change nothing of what is sampled, each with the reason; recorded with the turn."""
    neutral: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    """Those taken only with a value that asks for nothing; null is always such a value."""

    def check(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Those of ``accepted`` that the body has. Raises RequestError for one that is not supported."""
        taken: dict[str, Any] = {}
        for name, value in body.items():
            if name in self.read or name in SAMPLING or value is None:
                continue
            if name in self.accepted:
                taken[name] = _shallow(name, value)
                continue
            if any(type(value) is type(n) and value == n for n in self.neutral.get(name, ())):
                continue
            with_value = f" with {short(value)}" if name in self.neutral else ""
            raise unsupported(name, f"the parameter {name!r} is not supported{with_value}")
        return taken


def _shallow(name: str, value: object) -> object:
    """A value that can be told back. Raises RequestError."""
    try:
        orjson.dumps(value)
    except TypeError as error:
        raise RequestError(f"{name} is no value that can be kept: {error}", field=name) from error
    return value


def names(text: str) -> frozenset[str]:
    """Names from a text that has spaces between them."""
    return frozenset(text.split())


def unsupported(name: str, message: str, fix: str = "leave it out") -> RequestError:
    """A refusal by name."""
    return RequestError(message, field=name, fix=fix, code="unsupported_parameter")


def short(value: object) -> str:
    """A value as an error shows it: never longer than a line."""
    text = repr(value)
    return text if len(text) <= 80 else text[:79] + "…"


def sampling(body: Mapping[str, Any], max_names: Sequence[str]) -> dict[str, Any]:
    """What the body asks of sampling; ``max_names`` are the dialect's names of the reply's cap."""
    asked: dict[str, Any] = {
        name: _number(name, body[name]) for name in SAMPLING if body.get(name) is not None
    }
    for name in max_names:
        if body.get(name) is not None:
            asked["max_tokens"] = min(_positive(name, body[name]), asked.get("max_tokens", _INT64))
    return asked


def _number(name: str, value: object) -> float | int:
    low, high = _NUMBERS[name]
    whole = name in _WHOLE
    if (
        isinstance(value, bool)
        or not isinstance(value, int if whole else (int, float))
        or not low <= value <= high
        or (value == 0 and name in _NOT_ZERO)
    ):
        kind = "whole number" if whole else "number"
        but = " but not 0" if name in _NOT_ZERO else ""
        raise RequestError(
            f"{name} is {short(value)}", field=name, fix=f"send a {kind} from {low:g} to {high:g}{but}"
        )
    return value


def _positive(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise RequestError(f"{name} is {short(value)}", field=name, fix="send a whole number of at least 1")
    return value


def stop_texts(value: object, name: str) -> list[str]:
    """Stop strings. Raises RequestError."""
    if value is None:
        return []
    texts = [value] if isinstance(value, str) and value else value
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
        raise RequestError(f"{name} is {short(value)}", field=name, fix="send a text or a list of texts")
    return texts


def flag(body: Mapping[str, Any], name: str, where: str = "") -> bool:
    """A boolean parameter, false where it is absent. Raises RequestError."""
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise RequestError(f"{where}{name} is {short(value)}", field=where + name, fix="send true or false")
    return bool(value)


def parallel_calls(body: Mapping[str, Any], *, offered: bool) -> None:
    """Check ``parallel_tool_calls``: false says nothing where no tool is ``offered``. Raises RequestError."""
    name = "parallel_tool_calls"
    if not flag(body, name) and body.get(name) is not None and offered:
        raise unsupported(name, f"{name} false is not supported: a model makes as many calls as it samples")


def shape(value: object, kind: type, name: str, default: Any) -> Any:
    """A parameter of one JSON type (dict or list), ``default`` where it is absent. Raises RequestError."""
    if value is None:
        return default
    if not isinstance(value, kind):
        what = "an object" if kind is dict else "a list" if kind is list else "a text"
        raise RequestError(f"{name} is {short(value)}", field=name, fix=f"send {what}")
    return value


def stream_options(body: Mapping[str, Any]) -> bool:
    """Whether a stream ends with its usage. Raises RequestError for options that are not known."""
    options = shape(body.get("stream_options"), dict, "stream_options", {})
    for name, value in options.items():
        if name not in ("include_usage", "include_obfuscation") and value not in (None, False):
            field_name = f"stream_options.{name}"
            raise unsupported(field_name, f"{field_name} is not supported")
    return flag(options, "include_usage", "stream_options.")


def template_kwargs(value: object) -> Mapping[str, Any]:
    """``chat_template_kwargs``, as SGLang and vLLM take them. Raises RequestError."""
    kwargs: Mapping[str, Any] = shape(value, dict, "chat_template_kwargs", {})
    for name in _TEMPLATE_OWN:
        if name in kwargs:
            field_name = f"chat_template_kwargs.{name}"
            raise RequestError(
                f"{field_name} is set by the proxy itself", field=field_name, fix="leave it out"
            )
    return kwargs


def model_name(body: Mapping[str, Any]) -> str:
    """The model that the agent names, "" where it names none. Raises RequestError."""
    return str(shape(body.get("model"), str, "model", ""))


def is_name(value: object) -> bool:
    """Whether a value can name something."""
    return isinstance(value, str) and bool(value)


def pieces(text: str) -> Iterator[str]:
    """A text in deltas."""
    for start in range(0, len(text), STREAM_PIECE):
        yield text[start : start + STREAM_PIECE]


def dumps(value: object) -> bytes:
    """JSON bytes. Half a surrogate pair, which no client could read, becomes U+FFFD."""
    try:
        return orjson.dumps(value)
    except TypeError:  # surrogates, integers beyond 64 bits, deep nesting
        return whole_text(json.dumps(value, ensure_ascii=False)).encode()
