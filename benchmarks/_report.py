"""The one way a benchmark says what it measured."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import distributions
from pathlib import Path

OUT = Path(__file__).resolve().parent / "out"


def report(name: str, results: Mapping[str, object]) -> Path:
    """Write ``benchmarks/out/NAME.json``: the results, the machine's cores, the date and the versions."""
    versions = {
        dist.metadata["Name"]: dist.version
        for dist in distributions()
        if dist.metadata["Name"].startswith("dressage-")
    }
    document = {
        **results,
        "cores": os.cpu_count(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"python": platform.python_version(), **dict(sorted(versions.items()))},
    }
    OUT.mkdir(exist_ok=True)
    path = OUT / f"{name}.json"
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    print(f"{name}: {path.relative_to(OUT.parent.parent)}")
    for key, value in results.items():
        print(f"  {key}: {value}")
    return path
