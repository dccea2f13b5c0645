"""The table of a replay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dressage_proxy.replay.check import Finding

_HEAD = ("agent", "run", "requests", "main", "segments", "re-tokenised", "sampled", "trained", "lost", "")


def table(findings: Sequence[Finding]) -> str:
    """One row a run, its branches and problems below it, and the sums."""
    rows = [_HEAD, *(_row(finding) for finding in findings), _sums(findings)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    lines = []
    for place, row in enumerate(rows):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        lines.append("  ".join(cells).rstrip())
        if 0 < place <= len(findings):
            finding = findings[place - 1]
            if finding.branches:
                lines.append(f"    branches: {_counted(finding.branches)}")
            lines += [f"    PROBLEM: {problem}" for problem in finding.problems]
    return "\n".join(lines)


def _row(finding: Finding) -> tuple[str, ...]:
    return (
        finding.agent,
        finding.run,
        str(finding.requests),
        str(finding.main),
        str(finding.segments),
        str(finding.retokenised),
        str(finding.sampled),
        str(finding.trained),
        ", ".join(f"{cause} {tokens}" for cause, tokens in sorted(finding.lost.items())) or "-",
        "PROBLEM" if finding.problems else "ok",
    )


def _sums(findings: Sequence[Finding]) -> tuple[str, ...]:
    lost: Counter[str] = Counter()
    for finding in findings:
        lost.update(finding.lost)
    bad = sum(bool(finding.problems) for finding in findings)
    return (
        "all",
        f"{len(findings)} runs",
        str(sum(finding.requests for finding in findings)),
        str(sum(finding.main for finding in findings)),
        str(sum(finding.segments for finding in findings)),
        str(sum(finding.retokenised for finding in findings)),
        str(sum(finding.sampled for finding in findings)),
        str(sum(finding.trained for finding in findings)),
        ", ".join(f"{cause} {tokens}" for cause, tokens in sorted(lost.items())) or "-",
        f"{bad} PROBLEM" if bad else "ok",
    )


def _counted(branches: Sequence[str]) -> str:
    return ", ".join(f"{why} ({count}x)" if count > 1 else why for why, count in Counter(branches).items())
