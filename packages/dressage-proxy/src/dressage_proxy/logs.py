"""Logs of the proxy's process: text or JSON lines, with whatever must not be in a log taken out."""

from __future__ import annotations

import json
import logging
import math
import re
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import TextIO

REDACTED = "[redacted]"
_HELD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
_BEARER = re.compile(r"(?i)\b(bearer|x-api-key['\"]?\s*[:=]|api[_-]?key['\"]?\s*[:=])(\s*['\"]?)[^\s'\",}]+")
_BASIC = re.compile(r"(?i)\b(authorization['\"]?\s*[:=,]\s*b?['\"]?basic\s+)[^\s'\",}]+")
_PROVIDER_KEY = re.compile(r"\bsk-[A-Za-z0-9_-]{8,}")
_IN_URL = re.compile(r"://[^/\s@'\"]+@")
"""A user name and password before a host."""
_SESSION = re.compile(r"(?<![0-9a-f])([0-9a-f]{8})[0-9a-f]{24}(?![0-9a-f])")
"""A session id opens the data plane to whoever has it: its start is enough to find it by."""


class Redactor:
    """Takes the given secrets, keys of any provider and all but the start of session ids out of a text."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets = sorted((secret for secret in secrets if len(secret) >= 8), key=len, reverse=True)

    def __call__(self, text: str) -> str:
        """The text without them."""
        for secret in self._secrets:
            text = text.replace(secret, REDACTED)
        text = _BEARER.sub(rf"\1\2{REDACTED}", text)
        text = _BASIC.sub(rf"\1{REDACTED}", text)
        text = _PROVIDER_KEY.sub(REDACTED, text)
        text = _IN_URL.sub(f"://{REDACTED}@", text)
        return _SESSION.sub(r"\1…", text)

    def value(self, value: object) -> object:
        """Any value as one of JSON without them: text by text, since JSON writes a secret in another way."""
        match value:
            case None | bool() | int():
                return value
            case float():
                return value if math.isfinite(value) else str(value)
            case Mapping():
                return {self(str(name)): self.value(inner) for name, inner in value.items()}
            case list() | tuple():
                return [self.value(inner) for inner in value]
            case _:
                return self(str(value))


class TextFormatter(logging.Formatter):
    """One line for people."""

    def __init__(self, redact: Redactor, shard: int | None = None) -> None:
        place = "" if shard is None else f" shard-{shard}"
        super().__init__(f"%(asctime)s %(levelname)s %(name)s{place} %(message)s")
        self._redact = redact

    def format(self, record: logging.LogRecord) -> str:
        """The record with its traceback, redacted."""
        return self._redact(super().format(record))


class JsonFormatter(logging.Formatter):
    """One JSON object a record: time (RFC 3339), level, logger, message, the shard where there are several,
    what ``extra`` gave, exception."""

    def __init__(self, redact: Redactor, shard: int | None = None) -> None:
        super().__init__()
        self._redact = redact
        self._place = {} if shard is None else {"shard": shard}

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line, redacted."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **self._place,
        }
        line |= {name: value for name, value in record.__dict__.items() if name not in _HELD}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(self._redact.value(line), ensure_ascii=False, allow_nan=False)


def configure_logs(
    level: str,
    *,
    as_json: bool = False,
    secrets: Iterable[str] = (),
    stream: TextIO | None = None,
    shard: int | None = None,
) -> logging.Handler:
    """Log to stderr (or ``stream``) from now on, warnings of libraries too; the handler that was put in place
    of all others."""
    handler = logging.StreamHandler(stream or sys.stderr)
    redact = Redactor(secrets)
    handler.setFormatter(JsonFormatter(redact, shard) if as_json else TextFormatter(redact, shard))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.captureWarnings(True)
    return handler
