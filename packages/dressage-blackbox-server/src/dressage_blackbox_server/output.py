"""Keeping what a program prints within bounds, and reading the agent's answer out of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from dressage_blackbox_server.adapter import OutputKind, OutputRule


class BoundedOutput:
    """Head and tail of a stream, ``limit`` bytes in all, with a mark that says what was left out."""

    def __init__(self, limit: int) -> None:
        self._head_limit = limit // 2
        self._tail_limit = limit - limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._total = 0

    def add(self, chunk: bytes) -> None:
        """Take the next bytes of the stream."""
        self._total += len(chunk)
        room = self._head_limit - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[room:]
        if len(self._tail) > self._tail_limit:
            del self._tail[: len(self._tail) - self._tail_limit]

    def value(self) -> bytes:
        """What was kept; the same stream gives the same bytes however it was cut into chunks."""
        left_out = self._total - len(self._head) - len(self._tail)
        mark = b"\n[%d bytes left out]\n" % left_out if left_out else b""
        return bytes(self._head) + mark + bytes(self._tail)


def read_answer(rule: OutputRule, stdout: str) -> str:
    """The agent's answer. Text output is the answer itself; of JSON, the last value found at the rule's path.
    "" where there is none."""
    if rule.kind is OutputKind.TEXT:
        return stdout
    found = ""
    for value in _values(rule, stdout):
        if all(_at(value, path) == text for path, text in rule.answer_where.items()):
            text = _at(value, rule.answer_path)
            found = text if isinstance(text, str) else found
    return found


def read_thread_id(rule: OutputRule, stdout: str) -> str:
    """The agent's own conversation id: the first value at the rule's path, or ""."""
    if not rule.thread_path:
        return ""
    found = (_at(value, rule.thread_path) for value in _values(rule, stdout))
    return next((text for text in found if isinstance(text, str)), "")


def _values(rule: OutputRule, stdout: str) -> Iterator[Any]:
    # JSON may hold other line ends (U+2028, U+0085) as they are.
    for text in [stdout] if rule.kind is OutputKind.JSON else stdout.split("\n"):
        try:
            yield json.loads(text)
        except (ValueError, RecursionError):
            continue  # agents mix other lines in


def _at(value: Any, path: str) -> Any:
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value
