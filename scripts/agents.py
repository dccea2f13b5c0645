"""The real agent programs over a real proxy and the scripted engine. ``make agents`` runs this.

    python scripts/agents.py [AGENT …] [--scenario NAME …] [--jobs N] [--verbose]

Programs are installed from npm at the versions that their adapters name, into .cache/agents, and run in
sandboxes. A row fails where the program does not end as it should, or where the session that the proxy
recorded is not what the requests explain. Exit code 1 if a row fails, 2 where nothing could be run.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from _agents_hands import HANDS
from _agents_install import Installed, InstallError, install
from _agents_judge import Row, judge, table
from _agents_plans import policy
from _agents_rig import Done, Rig, rig
from _agents_scenarios import SCENARIOS, scenario
from dressage_blackbox_server import AgentAdapter, BlackboxError, known_agents
from dressage_proxy.errors import ProxyError
from dressage_sandbox import BubblewrapProvider
from dressage_sandbox.errors import SandboxError


async def run_row(
    rig: Rig, adapter: AgentAdapter, installed: Installed, name: str, *, verbose: bool
) -> Row | None:
    """One agent and scenario; None where the agent has no such thing."""
    wanted = scenario(adapter.name, name)
    if wanted is None:
        return None
    started = time.monotonic()
    try:
        done = await rig.run(
            adapter, installed, f"{adapter.name}-{name}", wanted.job, policy(rig.codec, wanted.script)
        )
    except (BlackboxError, ProxyError, SandboxError, TimeoutError) as error:
        problem = f"{type(error).__name__}: {error}"
        return Row(adapter.name, name, time.monotonic() - started, problems=(problem,))
    row = judge(adapter.name, name, done, wanted, time.monotonic() - started)
    if verbose:
        _tell(done, wanted.script.asked)
    return row


def _tell(done: Done, steps: Sequence[str]) -> None:
    print(f"--- steps: {' '.join(steps)}")
    for one in done.asked:
        flags = f"{' cut' if one.cut else ''}{' left' if one.left else ''}"
        said = one.reply[-300:].decode(errors="replace") if one.status >= 400 else ""
        print(f"--- {one.row.method} {one.row.path} {one.status}{flags} {said}")
    for turn in done.replayed.tree.turns:
        size = f"{len(turn.delta_ids)}+{len(turn.output_ids)}"
        flags = f"{turn.extra.get('flags', '')}"
        print(f"--- turn {turn.index} on {turn.parent} {turn.kind} {turn.cut_reason or '-'} {size} {flags}")
    for record in done.turns:
        print(f"--- {record.turn_id} {record.outcome} {record.exit_code} {record.detail}")
        print(f"{record.stdout[-3000:]}\n{record.stderr[-3000:]}")


async def run(agents: Sequence[str], names: Sequence[str], *, jobs: int, verbose: bool) -> list[Row]:
    """Every row; so many agents at once, the slowest first. Raises InstallError, and SandboxError where no
    sandbox can be made."""
    await BubblewrapProvider(reaper=False).probe()
    adapters = [known_agents()[agent] for agent in agents]
    programs = [install(adapter) for adapter in adapters]
    slots, rows = asyncio.Semaphore(jobs), [list[Row]() for _ in adapters]

    async def rows_of(number: int) -> None:
        async with slots, rig() as shared:
            for name in names:
                row = await run_row(shared, adapters[number], programs[number], name, verbose=verbose)
                if row is not None:
                    rows[number].append(row)
                    end = "PROBLEM" if row.problems else "ok"
                    print(f"agents: {row.agent} {name}: {end}, {row.seconds:.0f} s", flush=True)

    async with asyncio.TaskGroup() as group:
        for number in reversed(range(len(adapters))):
            group.create_task(rows_of(number))
    return [row for found in rows for row in found]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="agents.py", description=__doc__.partition("\n")[0])
    parser.add_argument("agents", nargs="*", metavar="AGENT", help=f"of {', '.join(HANDS)}; all by default")
    parser.add_argument(
        "--scenario", action="append", choices=list(SCENARIOS), help="this one alone; repeatable"
    )
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="agents at once")
    parser.add_argument("--verbose", action="store_true", help="what was asked and printed, too")
    options = parser.parse_args(arguments)
    if unknown := [agent for agent in options.agents if agent not in HANDS]:
        parser.error(f"unknown agent {unknown[0]!r}: choose from {', '.join(HANDS)}")
    if options.jobs < 1:
        parser.error(f"--jobs is {options.jobs}: give 1 or more")
    agents, names = options.agents or list(HANDS), options.scenario or list(SCENARIOS)
    started = time.monotonic()
    try:
        rows = asyncio.run(run(agents, names, jobs=options.jobs, verbose=options.verbose))
    except (InstallError, SandboxError) as error:
        print(f"agents: {error}", file=sys.stderr)
        return 2
    bad = sum(bool(row.problems) for row in rows)
    print(table(rows))
    print(f"{len(rows)} rows in {time.monotonic() - started:.0f} s, {bad} with problems")
    return 1 if bad or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
