"""The table of model families: each one's checks on its tokenizer and template. ``make families`` runs this.

    python scripts/families.py [NAME …] [--conversations N] [--seed N] [--jobs N] [--write]

A row is *certified* where every check passed and every refusal is explained (``families.toml``), *refused*
where the codec refuses what a check needs, with an explained reason, and *FAILED* otherwise. Exit code 1 on a
FAILED row. ``--conversations 10000`` is the nightly setting. ``--write`` writes docs/tito-families.md and the
certificates that ship with the package (real tokenizers alone).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent))

from fetch_test_models import FetchError, fetch
from model_sources import MODELS, TEMPLATE_SOURCES, VOCABULARIES, Model
from workspace import ROOT, SetupError

if TYPE_CHECKING:
    from dressage_tito.profile import Profile

DOCUMENT = ROOT / "docs" / "tito-families.md"
KNOWN_GOOD = ROOT / "packages" / "dressage-tito" / "src" / "dressage_tito" / "known_good.json"


_TOOLS_REFUSED = (
    "`start` with tools is refused where the model would not see them, or where its calls could not be",
    "read. Give the folder a template that writes tools; or describe them in a message, as the model's card",
    "says, and declare that in a profile (`deepseek_v3_1-tools` above is certified so):",
    "",
    "```toml",
    'tool_grammar = "deepseek_v3_1"  # how the model writes its calls',
    "tools_described = true  # a message describes the tools; the template does not print them",
    "```",
)


@dataclass(frozen=True, slots=True)
class Row:
    """One model's result. ``unexplained`` are refusals and differences that families.toml says nothing of."""

    name: str
    status: str
    grammar: str
    passed: dict[str, int]
    refused: tuple[str, ...]
    declared: tuple[str, ...]
    unexplained: tuple[str, ...]
    failures: tuple[str, ...]
    explains: dict[str, str]
    no_tools: str
    certificate: dict[str, object]
    seconds: float


def certify_row(name: str, folder: Path, conversations: int, seed: int) -> Row:
    """Certify one model's folder."""
    from dressage_tito import ChatCodec, ProfileError
    from dressage_tito.certify import certify_codec
    from dressage_tito.checks import CHECKS, DIFFERENCES
    from dressage_tito.families import family_of

    model = MODELS[name]
    started = time.perf_counter()
    try:
        now = datetime.now()  # some templates print the time
        codec = ChatCodec.from_folder(
            folder, template_kwargs=model.kwargs, profile=model.profile or None, clock=lambda: now
        )
    except ProfileError as error:
        return Row(name, "FAILED", "", {}, (), (), (), (str(error),), {}, "", {}, 0.0)
    report = certify_codec(codec, name, conversations=conversations, seed=seed)
    sources = [file.read_text(encoding="utf-8") for file in sorted(folder.rglob("*.jinja"))]
    family = family_of(codec.template_hash, sources)
    explains = dict(family.explains or {}) if family else {}
    refused = sorted({reason for reasons in report.refused.values() for reason in reasons})
    declared = sorted(report.declared)
    open_ones = [r for r in refused if r not in explains]
    open_ones += [d for d in declared if d not in explains and d not in DIFFERENCES]
    silent = [check for check in CHECKS if not report.passed.get(check)]
    status = "certified" if report.certified else "refused: " + ", ".join(silent)
    if report.failures or open_ones or len(silent) == len(CHECKS):
        status = "FAILED"
    failures = tuple(f"{f.check}: {f.detail} {json.dumps(f.messages)}" for f in report.failures)
    certificate = {
        "name": name,
        "tokenizer_hash": report.tokenizer_hash,
        "template_hash": report.template_hash,
        "profile_hash": report.profile_hash,
        "conversations": conversations,
        "passed": report.passed,
    }
    seconds = time.perf_counter() - started
    used = {reason: explains[reason] for reason in (*refused, *declared) if reason in explains}
    return Row(name, status, codec.profile.tool_grammar, report.passed, tuple(refused), tuple(declared),
               tuple(open_ones), failures, used, _no_tools(codec.profile), certificate, seconds)  # fmt: skip


def _no_tools(profile: Profile) -> str:
    return "" if profile.supports_tools else profile.tools_note


def table(rows: Sequence[Row]) -> list[list[str]]:
    """Header and cells: family, model, tokenizer, tools, a count for each check, status, refusals."""
    from dressage_tito.checks import CHECKS

    cells = [["family", "model", "tokenizer", "tools", *CHECKS, "status", "refuses"]]
    for row in rows:
        model = MODELS[row.name]
        real = "real" if VOCABULARIES[model.vocabulary].real else "stand-in"
        counts = [str(row.passed.get(check, 0)) for check in CHECKS]
        refuses = ", ".join(row.refused) or "-"
        cells.append([model.family, row.name, real, row.grammar, *counts, row.status, refuses])
    return cells


def print_table(rows: Sequence[Row]) -> None:
    """The table, and below it each explanation and each failure."""
    cells = table(rows)
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    for line in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    for row in rows:
        for reason, sentence in row.explains.items():
            print(f"{row.name}: {reason}: {sentence}")
    for row in rows:
        if row.no_tools:
            print(f"{row.name}: tools are refused: {row.no_tools}")
    for row in rows:
        for failure in row.failures:
            print(f"FAILED {row.name}: {failure}")
        for reason in row.unexplained:
            print(f"FAILED {row.name}: {reason} is not explained in families.toml")


def document(rows: Sequence[Row], conversations: int) -> str:
    """docs/tito-families.md."""
    lines = [
        "# Model families that dressage-tito was certified on",
        "",
        f"Written by `python scripts/families.py --write --conversations {conversations}`; `make families`",
        "runs it with fewer. A number is how many made-up conversations passed that check (those that spell",
        "control tokens are left out of `start`, `extend` and `policy`). *stand-in*: no package registry",
        "carries the family's tokenizer, so that its template was certified over a small BPE with the",
        "family's control tokens; the tokenizer was not seen.",
        "",
    ]
    cells = table(rows)
    lines += ["| " + " | ".join(cells[0]) + " |", "|" + "---|" * len(cells[0])]
    lines += ["| " + " | ".join(line) + " |" for line in cells[1:]]
    lines += ["", "## Refusals, explained", ""]
    seen: set[tuple[str, str]] = set()
    for row in rows:
        for reason, sentence in row.explains.items():
            key = (MODELS[row.name].family, f"`{reason}`: {sentence}")
            if key not in seen:
                seen.add(key)
                lines.append(f"- {key[0]}: {key[1]}.")
    lines += ["", "## Where tools are refused", "", *_TOOLS_REFUSED, ""]
    seen = set()
    for row in rows:
        key = (MODELS[row.name].family, row.no_tools)
        if row.no_tools and key not in seen:
            seen.add(key)
            lines.append(f"- {key[0]}: {key[1]}.")
    lines += ["", *_sources()]
    return "\n".join(lines) + "\n"


def _sources() -> list[str]:
    lines = ["## Sources and licences", "", "Fetched by the tests, never part of this repository.", ""]
    lines += ["| model | tokenizer | licence | template | licence |", "|---|---|---|---|---|"]
    for model in MODELS.values():
        vocabulary = VOCABULARIES[model.vocabulary]
        note = f" ({vocabulary.note})" if vocabulary.note else ""
        where, _, name = model.template.partition(":")
        source, licence = TEMPLATE_SOURCES[where]
        named = f"{source} `{name}`" if name else source
        tokenizer = f"{vocabulary.source}{note}"
        lines.append(f"| {model.name} | {tokenizer} | {vocabulary.licence} | {named} | {licence} |")
    return lines


def _real(model: Model) -> bool:
    return VOCABULARIES[model.vocabulary].real


def write(rows: Sequence[Row], conversations: int) -> None:
    """Write the document and the certificates of real tokenizers."""
    DOCUMENT.write_text(document(rows, conversations), encoding="utf-8")
    certified = [row.certificate for row in rows if row.status == "certified" and _real(MODELS[row.name])]
    KNOWN_GOOD.write_text(json.dumps({"certified": certified}, indent=1) + "\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="all by default")
    parser.add_argument("--conversations", type=int, default=24, metavar="N")
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N")
    parser.add_argument("--write", action="store_true", help="write the document and the certificates")
    arguments = parser.parse_args()
    names = arguments.names or list(MODELS)
    unknown = [name for name in names if name not in MODELS]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; choose from {', '.join(MODELS)}")
    try:
        folders = fetch(names)
    except (FetchError, SetupError, OSError) as error:
        print(f"families: {error}", file=sys.stderr)
        return 1
    count = len(names)
    with ProcessPoolExecutor(max_workers=max(1, arguments.jobs)) as pool:
        rows = list(pool.map(certify_row, names, folders,
                             [arguments.conversations] * count, [arguments.seed] * count))  # fmt: skip
    print_table(rows)
    if arguments.write:
        write(rows, arguments.conversations)
    bad = [row.name for row in rows if row.status == "FAILED"]
    real = sum(_real(MODELS[row.name]) for row in rows)
    print(f"{count} models, {real} on real tokenizers: {count - len(bad)} certified or refused as explained"
          + (f", FAILED: {', '.join(bad)}" if bad else ""))  # fmt: skip
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
