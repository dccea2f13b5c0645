"""What a row showed against what has to be there, and the table of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from _agents_scenarios import Expected, Scenario
from dressage_proxy.replay.check import Finding, check

if TYPE_CHECKING:
    from _agents_rig import Done

_HEAD = (
    *("agent", "scenario", "ends", "calls", "main", "segments", "re-tokenised"),
    *("sampled", "trained", "lost", "seconds", ""),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One agent and scenario."""

    agent: str
    scenario: str
    seconds: float
    ends: tuple[str, ...] = ()
    """Of each turn its exit code, or how it ended without one."""
    finding: Finding | None = None
    why: str = ""
    problems: tuple[str, ...] = ()


def judge(agent: str, name: str, done: Done, wanted: Scenario, seconds: float) -> Row:
    """Judge one row."""
    finding, expected = check(done.replayed), wanted.expected
    problems = [*_program(done, expected), *_session(finding, done, expected), *finding.problems]
    ends = tuple(str(t.outcome if t.exit_code is None else t.exit_code) for t in done.turns)
    return Row(agent, name, seconds, ends, finding, wanted.why, tuple(problems))


def _program(done: Done, expected: Expected) -> list[str]:
    problems = []
    outcomes = tuple(turn.outcome for turn in done.turns)
    if outcomes != expected.outcomes:
        told = [f"{turn.outcome} {turn.stderr.strip()[-300:]}" for turn in done.turns]
        problems.append(f"the turns ended as {told}, not as {[str(one) for one in expected.outcomes]}")
    finals = tuple(turn.output.strip() for turn in done.turns)
    if expected.finals is not None and finals != expected.finals:
        problems.append(f"the final texts are {finals}, not {expected.finals}")
    for name, text in expected.files.items():
        if done.files.get(name) != text:
            problems.append(f"{name} holds {done.files.get(name)!r}, not {text!r}")
    return problems


def _session(finding: Finding, done: Done, expected: Expected) -> list[str]:
    problems = []
    low, high = expected.main
    if not low <= finding.main <= high:
        problems.append(f"{finding.main} main branches, not {low} to {high}")
    kinds = {str(segment.kind) for segment in done.replayed.trajectory.segments}
    problems += [f"no branch is of kind {kind}" for kind in expected.kinds if kind not in kinds]
    lost = {cause for cause, tokens in finding.lost.items() if tokens}
    if len(lost) != len(expected.lost) or not all(lost & set(cause.split("|")) for cause in expected.lost):
        problems.append(f"tokens are lost as {sorted(lost)}, not as {sorted(expected.lost)}")
    return problems


def table(rows: Sequence[Row]) -> str:
    """One line a row, its branches and problems below it."""
    lines = [_HEAD, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_HEAD))]
    text = []
    for place, line in enumerate(lines):
        text.append("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
        if place:
            text += _below(rows[place - 1])
    return "\n".join(text)


def _below(row: Row) -> list[str]:
    branches = row.finding.branches if row.finding is not None else ()
    told = [f"    branches: {', '.join(branches)}"] if branches else []
    told += [f"    {row.agent}: {row.why}"] if row.why else []
    return told + [f"    PROBLEM: {problem}" for problem in row.problems]


def _cells(row: Row) -> tuple[str, ...]:
    found, end = row.finding, "PROBLEM" if row.problems else "ok"
    seconds = f"{row.seconds:.0f}"
    if found is None:
        return (row.agent, row.scenario, "-", *["-"] * 7, seconds, end)
    lost = ", ".join(f"{cause} {tokens}" for cause, tokens in sorted(found.lost.items()) if tokens)
    counts = (found.requests, found.main, found.segments, found.retokenised, found.sampled, found.trained)
    return (row.agent, row.scenario, ",".join(row.ends), *map(str, counts), lost or "-", seconds, end)
