"""What it means that an engine does not do what it is asked: for the agent, or for who runs the engines."""

from __future__ import annotations

import re

import orjson

from dressage_proxy.errors import (
    EngineOverflowError,
    EngineRefusalError,
    PassingEngineError,
    RequestError,
    StrangeEngineError,
)

_PASSING = frozenset({408, 425, 429})
"""Beside everything from 500 on."""
_ASKED_WRONG = frozenset({400, 413})
"""The request itself is at fault; whatever else is refused was not the agent's to say."""
_ABORTED = 499
_ABORT = re.compile(r"(?i)\babort")
_OVERFLOW = re.compile(r"(?i)context (?:length|window|size|is)|allowed (?:input )?length|cache can hold")
_WINDOW = re.compile(
    r"(?i)(?:context (?:length|window|size|is)|allowed (?:input )?length)\D{0,20}?([0-9]{1,9})"
)
_TOTAL = re.compile(r"(?i)total of ([0-9]{1,9})")
_OURS = re.compile(r"(?i)vocab|\bserver\b|\blaunch|(?<!\S)`?--[a-z]")
"""Of a 400 that tells how an engine was started: no agent can change that."""
_ADDRESS = re.compile(
    r"""(?ix) \b[a-z][a-z0-9+.-]*://[^\s'"]+               # a URL
    | (?<![\w.]) (?:[0-9]{1,3}\.){3}[0-9]{1,3} (?::[0-9]+)? (?![\w.]*[\w])
    | \[[0-9a-f:.]*:[0-9a-f:.]*\] (?::[0-9]+)?             # IPv6 in brackets
    | \b[a-z][\w.-]* :[0-9]{4,5}\b                         # a host with its port
    """
)
_TOLD = 300
_DETAIL = 500


def words(body: bytes) -> str:
    """What an error's body says: SGLang's ``error.message`` and FastAPI's ``detail`` without their JSON."""
    try:
        told = orjson.loads(body)
    except orjson.JSONDecodeError:
        told = body.decode("utf-8", "replace")
    for name in ("error", "message", "detail", "msg"):
        if isinstance(told, list) and told:
            told = told[0]
        if isinstance(told, dict) and name in told:
            told = told[name]
    text = told if isinstance(told, str) else body.decode("utf-8", "replace")
    return " ".join(text.split())


def aborted(status: int, text: str) -> bool:
    """Whether an error is how the engine tells that a call was aborted before it had sampled anything."""
    return status == _ABORTED or (status == 400 and _ABORT.search(text) is not None)


def refusal(
    status: int, text: str, *, prompt_tokens: int, max_tokens: int, delay_s: float | None = None
) -> RequestError:
    """The error of a call of so many tokens, and at most so many to sample, that ended with an error status
    and these words."""
    detail = f"status {status}: {text[:_DETAIL]}"
    if status >= 500 or status in _PASSING:
        told = f"the engine answers with status {status}"
        return PassingEngineError(told, detail=text[:_DETAIL], delay_s=delay_s)
    if status not in _ASKED_WRONG:
        return StrangeEngineError("the engine cannot be used: see the proxy's log", detail=detail)
    if _OVERFLOW.search(text):
        return _overflow(text, detail, prompt_tokens, max_tokens)
    if _OURS.search(text):
        return StrangeEngineError("the engine cannot do this: see the proxy's log", detail=detail)
    told = _ADDRESS.sub("[address]", text[:_TOLD]) or "it does not say why"
    error = EngineRefusalError(f"the engine refuses the request: {told}", status=status)
    error.detail = detail
    return error


def _overflow(text: str, detail: str, prompt_tokens: int, max_tokens: int) -> EngineOverflowError:
    window, total = _number(_WINDOW, text), _number(_TOTAL, text) or prompt_tokens + max_tokens
    if window is None:
        error = EngineOverflowError(
            f"This model's maximum context length is exceeded: your messages resulted in {prompt_tokens} "
            "tokens. Please reduce the length of the messages. Your input exceeds the context window of this "
            "model.",
            field="messages",
        )
    elif prompt_tokens >= window:
        error = EngineOverflowError.of(prompt_tokens, window)
    else:
        error = EngineOverflowError.of(total, window)
        error.excess = max(1, total - window)
    error.detail = detail
    return error


def _number(pattern: re.Pattern[str], text: str) -> int | None:
    found = pattern.search(text)
    return int(found.group(1)) if found else None
