"""Which rule of choosing engines wins where: eight simulated engines, and the rules that serve.

Effective tokens a second are sampled tokens over the time until the last session ended, and over the time
until the last one began; gains over sticky are given for both, in this order.
"""

from __future__ import annotations

import statistics
import time

from dressage_proxy.engine.choose import Choice

from benchmarks._engine_sim import Load, Simulation
from benchmarks._report import report

SEEDS = (1, 2)
_RATES = ("tokens_per_s", "steady_tokens_per_s")
LOADS = (
    Load("agents_heavy_tail", sessions=800, at_once=400),
    Load("agents_long_contexts", sessions=320, at_once=160, turns=(20.0, 0.8),
         result=(1500.0, 1.2)),
    Load("decode_bound", sessions=1600, at_once=800, turns=(2.0, 0.8), output=(600.0, 1.3),
         result=(200.0, 0.5), tool_s=(0.2, 0.5)),
    Load("agents_with_room", sessions=320, at_once=80),
    Load("short_calls", sessions=3000, at_once=480, system_tokens=256, task_tokens=256, turns=(1.0, 0.3),
         output=(300.0, 1.4), result=(200.0, 0.5)),
    Load("even_turns", sessions=480, at_once=240, turns=(10.0, 0.05), output=(150.0, 0.1),
         result=(500.0, 0.1)),
)  # fmt: skip


def measured(load: Load, choice: Choice) -> dict[str, float]:
    """Medians over the seeds."""
    outcomes = [Simulation(load, choice, seed=seed).run() for seed in SEEDS]

    def middle(name: str, digits: int) -> float:
        return float(round(statistics.median(getattr(outcome, name) for outcome in outcomes), digits))

    return {
        "tokens_per_s": middle("tokens_per_s", 1),
        "steady_tokens_per_s": middle("steady_tokens_per_s", 1),
        "cached_share": middle("cached", 3),
        "turn_p50_s": middle("turn_p50_s", 2),
        "turn_p95_s": middle("turn_p95_s", 2),
        "busiest_over_mean": middle("busy_spread", 2),
    }


def main() -> None:
    results: dict[str, object] = {"engines": 8, "seeds": len(SEEDS)}
    for load in LOADS:
        started = time.perf_counter()
        rules = {choice.value: measured(load, choice) for choice in Choice}
        gains = {
            name: [round(rule[key] / rules[Choice.STICKY.value][key] - 1, 3) for key in _RATES]
            for name, rule in rules.items()
        }
        results[load.name] = {"gain_over_sticky": gains, "rules": rules}
        print(f"  {load.name}: {gains} ({time.perf_counter() - started:.1f} s)", flush=True)
    report("engines", results)


if __name__ == "__main__":
    main()
