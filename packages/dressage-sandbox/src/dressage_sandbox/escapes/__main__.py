"""``python -m dressage_sandbox.escapes``: a row an attempt; exit code 1 if one succeeds."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from ..errors import ProviderUnavailable
from . import ATTEMPTS, Attempt, Row, try_one

_UNAVAILABLE = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 all refused, 1 one succeeded, 2 no sandbox can be made here."""
    kinds = sorted({attempt.kind for attempt in ATTEMPTS})
    parser = argparse.ArgumentParser(prog="python -m dressage_sandbox.escapes", description=__doc__)
    parser.add_argument("--only", choices=kinds, help="attempts of one kind")
    parser.add_argument("--quick", action="store_true", help="leave out those that measure a neighbour")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    chosen = [a for a in ATTEMPTS if options.only in (None, a.kind) and not (options.quick and a.slow)]
    try:
        rows = asyncio.run(_all(chosen, as_json=options.json))
    except ProviderUnavailable as error:
        print(f"no attempt could be made: {error}", file=sys.stderr)
        return _UNAVAILABLE
    escaped = sum(not row.refused for row in rows)
    if options.json:
        print(json.dumps([asdict(row) for row in rows]))
    else:
        print(f"{len(rows)} attempts, {escaped} succeeded")
    return 1 if escaped else 0


async def _all(attempts: Sequence[Attempt], *, as_json: bool) -> list[Row]:
    rows = []
    for attempt in attempts:
        row = await try_one(attempt)
        rows.append(row)
        if not as_json:
            state = "refused" if row.refused else "ESCAPED"
            print(f"{state}  {row.kind:9}  {row.name:66} {row.detail}".rstrip(), flush=True)
    return rows


if __name__ == "__main__":
    sys.exit(main())
