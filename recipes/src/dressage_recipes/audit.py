"""``dressage audit``: promises P1 to P5 proven on every session of a stored run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dressage_segments import (
    AuditReport,
    Finding,
    LossCause,
    Promise,
    SegmentsError,
    Trajectory,
    audit,
    turn_from_record,
)
from dressage_store import FilesStore, State, StoreError

from dressage_recipes.errors import NotARunError

STORE_FOLDER = "store"
SUMMARY_FILE = "summary.json"
_SHARDS_FILE = "shards"
"""In the folder of a proxy's stores: how many there are."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """One finding, and the session it is about ("" for the run as a whole)."""

    session_id: str
    promise: str
    message: str


@dataclass(frozen=True, slots=True)
class RunAudit:
    """What the audit of a whole run found. Counts are tokens, except ``sessions`` and ``unfinished``."""

    sessions: int
    unfinished: int
    """Sessions that were never finalised: their tokens were not offered for training."""
    unfinished_tokens: int
    """Sampled in those; counted nowhere else."""
    sampled_tokens: int
    trained_tokens: int
    proven_tokens: int
    lost_tokens: Mapping[str, int]
    doubts: tuple[Doubt, ...]

    @property
    def ok(self) -> bool:
        """Whether every trained token is proven and every other sampled one is counted under a cause."""
        return not self.doubts and self.sessions > 0 and self.proven_tokens == self.trained_tokens

    @property
    def fraction_trainable(self) -> float:
        """Trained tokens over sampled ones; 0 where none was sampled."""
        return self.trained_tokens / self.sampled_tokens if self.sampled_tokens else 0.0

    @property
    def fraction_proven(self) -> float:
        """Proven tokens over trained ones; 0 where none was trained."""
        return self.proven_tokens / self.trained_tokens if self.trained_tokens else 0.0

    def to_json(self) -> dict[str, object]:
        """What ``--json`` prints."""
        by_promise = Counter(doubt.promise for doubt in self.doubts)
        return {
            "ok": self.ok,
            "sessions": self.sessions,
            "unfinished": self.unfinished,
            "unfinished_tokens": self.unfinished_tokens,
            "sampled_tokens": self.sampled_tokens,
            "trained_tokens": self.trained_tokens,
            "proven_tokens": self.proven_tokens,
            "fraction_trainable": self.fraction_trainable,
            "fraction_proven": self.fraction_proven,
            "lost_tokens": dict(self.lost_tokens),
            "promises": {promise.value: by_promise[promise.value] == 0 for promise in Promise},
            "findings": [
                {"session_id": d.session_id, "promise": d.promise, "message": d.message} for d in self.doubts
            ],
        }


def audit_run(folder: Path) -> RunAudit:
    """Audit every session of the run in ``folder``: its ``store`` folder, or a store itself, that of a proxy
    with shards too. Changes nothing.

    What a session cannot prove is a doubt in the result. Raises NotARunError where there is no store to read.
    """
    summary = folder / SUMMARY_FILE
    results = []
    seen: dict[str, str] = {}
    for root in stores_of(folder):
        try:
            store = FilesStore(root, read_only=True)
        except StoreError as error:
            raise NotARunError(f"{folder} holds no store that can be read: {error}") from error
        with store:
            results.append(_audit_store(store, over=summary.exists(), seen=seen))
    result = _sum(results)
    if not result.sessions:
        result = replace(result, doubts=(Doubt("", Promise.P2, "the store holds no session"),))
    return replace(result, doubts=(*result.doubts, *_against(summary, result)))


def stores_of(folder: Path) -> tuple[Path, ...]:
    """Where a run keeps its sessions: one store, or one for each shard of its proxy. Raises NotARunError when
    the folder cannot be a run's, or a shard's store is missing."""
    root = store_of(folder)
    try:
        shards = int((root / _SHARDS_FILE).read_text(encoding="ascii"))
    except FileNotFoundError:
        return (root,)
    except (OSError, ValueError) as error:
        raise NotARunError(
            f"{root / _SHARDS_FILE}: {error}", fix="give the whole folder of the store"
        ) from error
    return tuple(root / f"shard-{shard}" for shard in range(shards))


def store_of(folder: Path) -> Path:
    """Where a run keeps its store. Raises NotARunError when the folder cannot be a run's."""
    if not folder.exists():
        raise NotARunError(f"{folder}: no such folder", fix="give the folder that `dressage demo` named")
    if not folder.is_dir():
        raise NotARunError(f"{folder}: not a folder", fix="give the run's folder, not a file in it")
    inside = folder / STORE_FOLDER
    return inside if inside.is_dir() else folder


def _audit_store(store: FilesStore, *, over: bool, seen: dict[str, str]) -> RunAudit:
    """``over``: the run wrote its summary, so that an unfinished session is a doubt, not work in progress.
    ``seen``: whose the engine calls of the run's other sessions are; this store's are added."""
    counts = Counter[str]()
    lost = Counter[str]()
    doubts: list[Doubt] = []
    entries = {entry.session_id: entry.state for entry in store.entries()}
    for session_id in sorted({*entries, *store.sessions()}):
        counts["sessions"] += 1
        state = entries.get(session_id)
        if state is None:
            counts["unfinished"] += 1
            if over:
                doubts.append(Doubt(session_id, Promise.P2, "was never finalised, although the run is over"))
        try:
            if state is None:
                counts["unfinished tokens"] += _sampled(store, session_id)
                continue
            if state is State.DROPPED:
                dropped = _sampled(store, session_id)
                counts["sampled"] += dropped
                lost[LossCause.DELETED] += dropped
                continue
            trajectory = store.inspect(session_id)
            report = audit(store.records(session_id), trajectory)
        except (StoreError, SegmentsError) as error:
            doubts.append(Doubt(session_id, Promise.P3, f"cannot be read: {error}"))
            continue
        doubts += [*_doubts(report), *_twice(trajectory, seen)]
        counts["sampled"] += report.sampled_tokens
        counts["trained"] += report.trained_tokens
        counts["proven"] += report.proven_tokens
        lost.update(report.lost_tokens)
    return RunAudit(
        sessions=counts["sessions"],
        unfinished=counts["unfinished"],
        unfinished_tokens=counts["unfinished tokens"],
        sampled_tokens=counts["sampled"],
        trained_tokens=counts["trained"],
        proven_tokens=counts["proven"],
        lost_tokens={cause: n for cause, n in sorted(lost.items()) if n},
        doubts=tuple(doubts),
    )


def _sum(results: Sequence[RunAudit]) -> RunAudit:
    lost = Counter[str]()
    for result in results:
        lost.update(result.lost_tokens)
    return RunAudit(
        sessions=sum(result.sessions for result in results),
        unfinished=sum(result.unfinished for result in results),
        unfinished_tokens=sum(result.unfinished_tokens for result in results),
        sampled_tokens=sum(result.sampled_tokens for result in results),
        trained_tokens=sum(result.trained_tokens for result in results),
        proven_tokens=sum(result.proven_tokens for result in results),
        lost_tokens=dict(sorted(lost.items())),
        doubts=tuple(doubt for result in results for doubt in result.doubts),
    )


def _against(summary: Path, result: RunAudit) -> Iterator[Doubt]:
    """What a finished run says of itself, where the store says otherwise."""
    if not summary.exists():
        return
    if not summary.is_file():  # to read a FIFO would be to wait
        yield Doubt("", Promise.P2, f"{SUMMARY_FILE} cannot be read: it is no regular file")
        return
    try:
        said = json.loads(summary.read_bytes()).get("trained_tokens", result.trained_tokens)
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        yield Doubt("", Promise.P2, f"{SUMMARY_FILE} cannot be read: {error}")
        return
    if said != result.trained_tokens:
        yield Doubt(
            "",
            Promise.P2,
            f"{SUMMARY_FILE} counts {said} trained tokens, the store's segments {result.trained_tokens}",
        )


def _doubts(report: AuditReport) -> Iterator[Doubt]:
    finding: Finding
    for finding in report.findings:
        where = "" if finding.segment_index is None else f"segment {finding.segment_index} "
        call = f"call {finding.call_id} " if finding.call_id else ""
        yield Doubt(report.session_id, finding.promise, f"{where}{call}{finding.message}")


def _twice(trajectory: Trajectory, seen: dict[str, str]) -> Iterator[Doubt]:
    """P2 over the whole run: no session has an engine call of another (or of itself, in another store)."""
    calls = {call for segment in trajectory.segments for call in segment.calls}
    for call in sorted(calls & seen.keys())[:1]:
        message = f"call {call} is one of session {seen[call]!r} too: its tokens would train twice"
        yield Doubt(trajectory.session_id, Promise.P2, message)
    seen.update(dict.fromkeys(calls, trajectory.session_id))


def _sampled(store: FilesStore, session_id: str) -> int:
    turns = (turn_from_record(record) for record in store.records(session_id) if record.kind == "turn")
    return sum(turn.sampled_tokens for turn in turns)


def describe(result: RunAudit, *, most: int = 10) -> list[str]:
    """The audit as lines for people: the account, the first doubts, the verdict."""
    open_ones = f"  ({result.unfinished} unfinished: {result.unfinished_tokens:,} tokens, none trained)"
    lines = [
        f"sessions        {result.sessions:>9,}{open_ones if result.unfinished else ''}",
        f"sampled tokens  {result.sampled_tokens:>9,}",
        f"trained tokens  {result.trained_tokens:>9,}  {result.fraction_trainable:.1%} of the sampled",
        f"proven tokens   {result.proven_tokens:>9,}  {result.fraction_proven:.1%} of the trained",
    ]
    lines += [f"lost: {cause.replace('_', ' '):20} {n:>6,}" for cause, n in result.lost_tokens.items()]
    lines += [f"DOUBT {d.promise} {d.session_id or 'the run'}: {d.message}" for d in result.doubts[:most]]
    if len(result.doubts) > most:
        lines.append(f"… and {len(result.doubts) - most} more doubts (--json lists them all)")
    lines.append(verdict(result))
    return lines


def verdict(result: RunAudit) -> str:
    """One line."""
    if result.ok:
        return f"audit: holds. P1 to P5 proven for {result.fraction_proven:.0%} of the trained tokens"
    return f"audit: DOES NOT HOLD, {len(result.doubts)} doubts"
