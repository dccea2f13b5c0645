"""Run every benchmark, or those named: ``python -m benchmarks [NAME …]``. Each has a ``main()``."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path


def names() -> list[str]:
    """The benchmarks: the modules of this folder that are not private."""
    return sorted(path.stem for path in Path(__file__).parent.glob("*.py") if not path.stem.startswith("_"))


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names())}; all by default")
    chosen = parser.parse_args().names or names()
    unknown = [name for name in chosen if name not in names()]
    if unknown:
        parser.error(f"no benchmark is named {', '.join(unknown)}; choose from {', '.join(names())}")
    for name in chosen:
        importlib.import_module(f"benchmarks.{name}").main()
    return 0


if __name__ == "__main__":
    sys.exit(main())
