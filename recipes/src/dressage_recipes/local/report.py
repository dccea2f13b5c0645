"""What a person sees of a run: a progress display while it runs, a picture and the closing lines after it."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from rich import progress as bars
from rich.console import Console
from rich.text import Text

from dressage_recipes.audit import RunAudit, verdict
from dressage_recipes.events import Activity, Event, Note, Phase, Progress, StepDone

LEVELS = "▁▂▃▄▅▆▇█"
MOVING_MEAN = 5
PICTURE = "reward.png"


class _Count(bars.ProgressColumn):
    """``12/40`` where the total is known, nothing where it is not."""

    def render(self, task: bars.Task) -> Text:
        return Text("" if task.total is None else f"{task.completed:.0f}/{task.total:.0f}")


class Reporter:
    """Draws events: bars on a terminal, one plain line a fact elsewhere. Use as a context manager, call it.

    It only listens: nothing that the loop does depends on it.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._live = self._console.is_terminal
        self._bar = bars.Progress(
            bars.SpinnerColumn(),
            bars.TextColumn("{task.description}"),
            bars.BarColumn(bar_width=24),
            _Count(),
            bars.TextColumn("{task.fields[detail]}", markup=False),
            bars.TimeElapsedColumn(),
            console=self._console,
            disable=not self._live,
        )
        self._task: bars.TaskID | None = None
        self._rewards: list[float] = []
        self._standing = ""

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def __call__(self, event: Event) -> None:
        """Show one event."""
        if isinstance(event, Phase):
            self._begin(event)
        elif isinstance(event, Progress):
            self._update(event.detail, completed=event.done)
        elif isinstance(event, Activity):
            self._update(f"{self._standing}{event.text}")
        elif isinstance(event, StepDone):
            self._step(event)
        else:
            self._line(event)

    def close(self, lines: Sequence[str]) -> None:
        """End the display and leave these lines as the last ones."""
        self._bar.stop()
        for line in lines:
            self._line(Note(line))

    def _begin(self, phase: Phase) -> None:
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._standing = ""
        self._task = self._bar.add_task(phase.name, total=phase.total or None, detail="")
        if not self._live:
            self._console.print(phase.name, soft_wrap=True)

    def _update(self, detail: str, completed: float | None = None) -> None:
        if self._task is not None:
            self._bar.update(self._task, detail=detail, completed=completed)

    def _step(self, event: StepDone) -> None:
        self._rewards.append(event.reward)
        curve = sparkline(self._rewards, width=16)
        said = f"{curve} reward {event.reward:.2f}, {event.tokens_per_s:,.0f} tokens/s"
        self._standing = f"{said}, "
        self._update(said, completed=event.step)
        if not self._live:
            self._console.print(step_line(event), soft_wrap=True)

    def _line(self, note: Note) -> None:
        self._console.print(note.text, soft_wrap=True, markup=False)


def step_line(event: StepDone) -> str:
    """A step in one line, for logs."""
    return (
        f"step {event.step:3}/{event.steps}  reward {event.reward:.3f}  {event.tokens_per_s:6,.0f} tokens/s  "
        f"{event.trained_tokens:6,} of {event.sampled_tokens:6,} tokens trained  {event.seconds:5.1f} s"
    )


def sparkline(values: Sequence[float], *, width: int = 60) -> str:
    """The curve in one line of text; longer curves are averaged. 0 is the lowest block and 1 the highest, or,
    where a reward lies outside, the least and the most."""
    if not values:
        return ""
    least, most = bounds(values)
    cells = min(width, len(values))
    means = []
    for cell in range(cells):
        part = values[cell * len(values) // cells : (cell + 1) * len(values) // cells]
        means.append(sum(part) / len(part))
    return "".join(
        LEVELS[min(len(LEVELS) - 1, int((mean - least) / (most - least) * len(LEVELS)))] for mean in means
    )


def bounds(values: Sequence[float]) -> tuple[float, float]:
    """What a curve of these values is drawn between: 0 and 1, and wider where one lies outside."""
    return min((0.0, *values)), max((1.0, *values))


def moving_mean(values: Sequence[float], window: int = MOVING_MEAN) -> list[float]:
    """At each step the mean of the last ``window`` values up to it."""
    means = []
    for end in range(1, len(values) + 1):
        part = values[max(0, end - window) : end]
        means.append(sum(part) / len(part))
    return means


def draw_rewards(
    rewards: Sequence[float], path: Path, *, title: str, cold_start: float | None = None
) -> Path:
    """A PNG of the reward per step and its moving mean; ``cold_start``: the reward before the first step."""
    # Where no font cache can be kept it says so at length, and draws all the same.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    steps = range(1, len(rewards) + 1)
    axes.plot(steps, rewards, "o-", color="#9db4c8", markersize=3, linewidth=1, label="mean reward of a step")
    axes.plot(steps, moving_mean(rewards), color="#1f4e79", linewidth=2, label=f"mean of {MOVING_MEAN} steps")
    if cold_start is not None:
        axes.axhline(cold_start, color="#b5651d", linestyle="--", linewidth=1, label="after the cold start")
    least, most = bounds(rewards)
    room = 0.03 * (most - least)
    axes.set(xlabel="step", ylabel="reward", ylim=(least - room, most + room), title=title)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=120)
    return path


def closing_lines(
    folder: Path,
    rewards: Sequence[float],
    summary: Mapping[str, object],
    audited: RunAudit | None,
    *,
    program: str = "dressage",
) -> list[str]:
    """The last lines of a run: what came of it, where it lies, how to look at it.

    ``program`` is how this command can be called from here.
    """
    lines = []
    if rewards:
        lines.append(f"reward   {sparkline(rewards)}  step 1 to {len(rewards)}")
    if isinstance(first := summary.get("reward_first"), float) and isinstance(
        last := summary.get("reward_last"), float
    ):
        most = min(MOVING_MEAN, len(rewards))
        lines.append(f"         {first:.2f} over the first {most} steps, {last:.2f} over the last {most}")
    setup, seconds = summary.get("setup_seconds"), summary.get("seconds")
    if isinstance(seconds, int | float):
        before = f"set-up {setup:.0f} s, " if isinstance(setup, int | float) else ""
        lines.append(f"time     {before}run {seconds:.0f} s")
    if audited is not None:
        lines.append(verdict(audited))
    lines.append(f"run      {folder}")
    if (folder / PICTURE).exists():
        lines.append(f"curve    {folder / PICTURE}  (xdg-open {shlex.quote(str(folder / PICTURE))})")
    lines.append(f"check    {program} audit {shlex.quote(str(folder))}")
    return lines
