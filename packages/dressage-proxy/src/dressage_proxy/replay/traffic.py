"""Recorded traffic: rows of requests, by run, with what each request was answered.

A folder holds ``*.jsonl`` or ``*.jsonl.gz``; a row is one request: ``agent``, ``run``, ``method``, ``path``,
``query``, ``headers``, ``body`` and ``answer`` (what the recording server did; one that begins with ``!`` is
a fault). Replies are not recorded: they are what later requests of the run send back.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import dropwhile, takewhile
from pathlib import Path
from typing import Any

from dressage_proxy.dialects.base import Dialect, ModelRequest
from dressage_proxy.dialects.chat import CHAT
from dressage_proxy.dialects.memo import Memo
from dressage_proxy.dialects.messages import MESSAGES
from dressage_proxy.dialects.responses import RESPONSES
from dressage_proxy.errors import ProxyError, RequestError
from dressage_proxy.volatile import pin_volatile

DIALECTS: Mapping[str, Dialect] = {
    "/v1/chat/completions": CHAT,
    "/v1/responses": RESPONSES,
    "/v1/messages": MESSAGES,
}


class TrafficError(ProxyError):
    """Traffic that cannot be read; the message names the file and the line."""


@dataclass(frozen=True, slots=True)
class Row:
    """One recorded request; header names are lower case."""

    agent: str
    run: str
    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: Mapping[str, Any]
    answer: str

    @property
    def dialect(self) -> Dialect | None:
        """What reads it; None for anything but a model call."""
        return DIALECTS.get(self.path) if self.method == "POST" else None


@dataclass(slots=True)
class Call:
    """A model call of a run: as the proxy's dialect reads it, and what it was answered."""

    row: Row
    request: ModelRequest | None
    """None where the dialect refuses it."""
    refusal: str = ""
    echo: Mapping[str, Any] | None = None
    """The answer as a later request sends it back, in the chat shape."""
    echo_handle: str = ""
    echo_name: str = ""


@dataclass(slots=True)
class Run:
    """What one session of an agent asked, resumed runs included."""

    agent: str
    name: str
    rows: list[Row] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)


def read_traffic(folder: Path) -> list[Row]:
    """Every row of a folder, files by name. Raises TrafficError."""
    files = sorted([*folder.glob("*.jsonl"), *folder.glob("*.jsonl.gz")])
    if not files:
        raise TrafficError(f"{folder} holds no *.jsonl or *.jsonl.gz")
    return [row for file in files for row in _rows(file)]


def _rows(file: Path) -> Iterator[Row]:
    data = file.read_bytes()
    try:
        text = (gzip.decompress(data) if file.suffix == ".gz" else data).decode("utf-8")
    except (ValueError, OSError, EOFError) as error:
        raise TrafficError(f"{file.name} does not read: {error}") from error
    for number, line in enumerate(text.split("\n"), 1):
        if not line:
            continue
        try:
            yield row_from_json(json.loads(line), file.name)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise TrafficError(f"{file.name}:{number}: no row of traffic: {error!r}") from error


def row_from_json(value: Mapping[str, Any], where: str) -> Row:
    """A row from its JSON object; ``where`` names the agent where it does not. What a base URL had before
    ``/v1/`` is left out."""
    path = str(value["path"])
    return Row(
        agent=str(value.get("agent") or where.split(".")[0]),
        run=str(value["run"]),
        method=str(value.get("method") or "POST").upper(),
        path=path[max(path.find("/v1/"), 0) :].rstrip("/") or "/",
        query=str(value.get("query") or ""),
        headers={str(name).lower(): str(text) for name, text in (value.get("headers") or {}).items()},
        body=value.get("body") or {},
        answer=str(value.get("answer") or ""),
    )


def runs_from_rows(rows: Iterable[Row]) -> list[Run]:
    """Rows by session: a run that sends back what an earlier one was answered resumes it."""
    runs: dict[tuple[str, str], Run] = {}
    owners: dict[str, Run] = {}
    for row in rows:
        call = _call(row) if row.dialect else None
        names = [] if call is None or call.request is None else _names(call.request)
        run = runs.get((row.agent, row.run))
        if run is None:
            run = next((owners[name] for name in names if name in owners), None)
            run = run or Run(row.agent, row.run)
            runs[row.agent, row.run] = run
        for name in names:
            owners.setdefault(name, run)
        run.rows.append(row)
        if call is not None:
            run.calls.append(call)
    found = list({id(run): run for run in runs.values()}.values())
    for run in found:
        _assign(run.calls)
    return found


def _call(row: Row) -> Call:
    assert row.dialect is not None
    try:
        return Call(row, row.dialect.parse(row.body, row.headers, Memo()))
    except RequestError as error:
        return Call(row, None, error.message)


def echo_names(raw: Sequence[Mapping[str, Any]], handles: Mapping[int, str]) -> list[str]:
    """For each message what tells one answer from another in a run, "" where it is none: its call ids, else
    its handle, else its text and how often the request had that before."""
    names, texts = [], Counter[str]()
    for index, message in enumerate(raw):
        calls = message.get("tool_calls") or []
        if message.get("role") != "assistant":
            names.append("")
        elif calls:
            names.append("call:" + str(calls[0]["id"]))
        elif handles.get(index):
            names.append("handle:" + handles[index])
        else:
            text = str(message.get("content"))
            names.append(f"text:{texts[text]}:{text}")
            texts[text] += 1
    return names


def _names(request: ModelRequest) -> list[str]:
    """The names, unique beyond one run, of the answers that a request sends back."""
    names = echo_names(request.raw, request.handles)
    return [name for name in names if name and not name.startswith("text:")]


def fingerprint(message: Mapping[str, Any]) -> str:
    """A message as text, equal for what is the same to a model."""
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    content = content or ""
    calls = [
        [call["id"], call["function"]["name"], _arguments(call["function"]["arguments"])]
        for call in message.get("tool_calls") or []
    ]
    own = message.get("role") == "assistant"
    parts = [message.get("role"), content.strip() if own else content, calls, message.get("tool_call_id")]
    return json.dumps(parts, sort_keys=True)


def _arguments(text: object) -> object:
    try:
        return json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return text


def _assign(calls: Sequence[Call]) -> None:
    """Give each call its answer: a new assistant message answers the open call that it continues best."""
    seen: set[str] = set()
    open_calls: list[tuple[Call, list[str]]] = []
    pinned: dict[str, str] = {}
    for call in calls:
        if call.request is None:
            continue
        prints = [fingerprint(message) for message in pin_volatile(pinned, call.request.raw)]
        names = echo_names(call.request.raw, call.request.handles)
        for index, name in enumerate(names):
            if name and name not in seen:
                seen.add(name)
                message, handle = call.request.raw[index], call.request.handles.get(index, "")
                _answered(open_calls, call, prints[:index], message, handle, name)
        open_calls.append((call, prints))


def _answered(
    open_calls: list[tuple[Call, list[str]]],
    later: Call,
    before: list[str],
    message: Mapping[str, Any],
    handle: str,
    name: str,
) -> None:
    best, best_score = None, (0.0, 0)
    for position, (call, prints) in enumerate(open_calls):
        assert call.request is not None
        assert later.request is not None
        if call.request.thread != later.request.thread or refused_by_server(call.row.answer):
            continue
        if message.get("tool_calls") and not call.request.tools:
            continue
        exact = prints == before
        score = _likeness(prints, before)
        if best is None or score > best_score or (exact and score == best_score):
            best, best_score = position, score
    if best is not None:
        call, _ = open_calls.pop(best)
        call.echo, call.echo_handle, call.echo_name = message, handle, name


def _likeness(prints: list[str], before: list[str]) -> tuple[float, int]:
    """How much of a request comes back before an answer: from its beginning on, then from its end on."""
    said, said_later = _unled(prints), _unled(before)
    bonus = 0.5 if prints == before else 0.25 if said == said_later else 0.0
    return _shared(said, said_later) + bonus, _shared(said[::-1], said_later[::-1])


def _shared(one: list[str], two: list[str]) -> int:
    """How many messages two lists begin with alike."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, two, strict=False)))


def _unled(prints: list[str]) -> list[str]:
    """Messages after the system prompt: an answer may come back under another one."""
    return list(dropwhile(lambda text: text.startswith('["system"'), prints))


def refused_by_server(answer: str) -> bool:
    """Whether the recording server gave no answer at all."""
    return answer.startswith(("!4", "!5", "!drop", "!sse"))
