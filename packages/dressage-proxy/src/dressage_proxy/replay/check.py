"""What a replay showed, against what the recorded requests alone say: branches, echoes and losses.

A request continues an earlier one if the earlier one's messages, and its answer, are its first messages,
under the same tools. Then it has to hang on that turn; where none is continued, a branch may start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from dressage_segments import ROOT, BranchKind, Turn
from numpy.typing import NDArray

from dressage_proxy.replay.drive import Replayed, Step
from dressage_proxy.replay.traffic import echo_names, fingerprint
from dressage_proxy.volatile import pin_volatile

_SLACK = 4
"""Ids at the end of a cut turn that may be white space, which the client's copy does not have."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One run's line of the table."""

    agent: str
    run: str
    requests: int
    main: int
    segments: int
    retokenised: int
    sampled: int
    trained: int
    lost: Mapping[str, int]
    branches: tuple[str, ...]
    """Why each branch started, first ones left out."""
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Asked:
    """A replayed request as the recording has it."""

    step: Step
    turn: Turn | None
    prints: tuple[str, ...]
    names: tuple[str, ...]
    """Of each message that is an answer, what tells it from others; "" for other messages."""
    tools: str


def check(replayed: Replayed) -> Finding:
    """Judge one run."""
    asked = _asked(replayed)
    problems = list(replayed.errors)
    branches: list[str] = []
    for number, request in enumerate(asked):
        if request.step.call.request is None:
            problems.append(f"refused: {request.step.call.refusal}")
        elif request.turn is not None:
            _judge_branch(request, asked[:number], branches, problems)
    retokenised = sum(_lost_ids(request, asked[:number]) for number, request in enumerate(asked))
    if retokenised:
        problems.append(f"{retokenised} echoes are not their sampled ids")
    problems += _judge_losses(replayed, asked)
    trajectory = replayed.trajectory
    return Finding(
        agent=replayed.run.agent,
        run=replayed.run.name,
        requests=len(replayed.run.rows),
        main=sum(segment.kind is BranchKind.MAIN for segment in trajectory.segments),
        segments=len(trajectory.segments),
        retokenised=retokenised,
        sampled=trajectory.sampled_tokens,
        trained=trajectory.trained_tokens,
        lost=trajectory.lost_tokens,
        branches=tuple(branches),
        problems=tuple(problems),
    )


def _asked(replayed: Replayed) -> list[_Asked]:
    turns = {call.call_id: turn for turn in replayed.tree.turns for call in turn.calls}
    pinned: dict[str, str] = {}
    result = []
    for step in replayed.steps:
        request = step.call.request
        raw = [] if request is None else pin_volatile(pinned, request.raw)
        names = [] if request is None else echo_names(raw, request.handles)
        tools = "" if request is None else repr((request.tools, request.template_kwargs, request.thread))
        prints = tuple(fingerprint(message) for message in raw)
        result.append(_Asked(step, turns.get(step.rid), prints, tuple(names), tools))
    return result


def _continued(request: _Asked, earlier: list[_Asked]) -> list[_Asked]:
    """The requests that this one goes on from, the nearest alone."""
    found: list[_Asked] = []
    for other in earlier:
        count = len(other.prints)
        if (
            other.turn is not None
            and not other.step.left
            and other.step.kept is None
            and count < len(request.prints)
            and other.tools == request.tools
            and request.prints[:count] == other.prints
            and request.names[count] == other.step.call.echo_name != ""
        ):
            found = [one for one in found if len(one.prints) == count]
            if not found or len(found[0].prints) <= count:
                found.append(other)
    return found


def _judge_branch(request: _Asked, earlier: list[_Asked], branches: list[str], problems: list[str]) -> None:
    turn = request.turn
    assert turn is not None
    continued = _continued(request, earlier)
    parents = {one.turn.index for one in continued if one.turn is not None}
    if parents and turn.parent not in parents:
        problems.append(
            f"unexplained branch: turn {turn.index} ({turn.kind}, {turn.cut_reason or 'no reason'}) "
            f"continues turn {max(parents)}, but hangs on {turn.parent}"
        )
    elif not parents and turn.parent == ROOT and turn.index:
        branches.append(f"{turn.kind}: {turn.cut_reason or _why(request, earlier)}")
    elif turn.cut_reason != "" and turn.parent != ROOT:
        branches.append(f"{turn.kind}: {turn.cut_reason}")


def _why(request: _Asked, earlier: list[_Asked]) -> str:
    if any(one.prints == request.prints and one.tools == request.tools for one in earlier):
        return "asked again"
    return "new_context"


def _lost_ids(request: _Asked, earlier: list[_Asked]) -> int:
    """How many answers of this run the prompt holds in other ids than the sampled ones."""
    prompt = request.step.prompt
    if prompt is None:
        return 0
    lost = 0
    for name in request.names:
        source = next((one.step for one in earlier if name and one.step.call.echo_name == name), None)
        if source is None or source.sampled is None:
            continue
        sampled = source.sampled
        if source.kept is not None:
            sampled = sampled[: max(1, source.kept - _SLACK)]
        lost += not _contains(prompt, sampled)
    return lost


def _contains(ids: NDArray[np.int32], part: NDArray[np.int32]) -> bool:
    data, wanted = ids.tobytes(), part.tobytes()
    at = data.find(wanted)
    while at >= 0 and at % ids.itemsize:
        at = data.find(wanted, at + 1)
    return at >= 0


def _judge_losses(replayed: Replayed, asked: list[_Asked]) -> list[str]:
    trajectory, problems = replayed.trajectory, []
    engine = sum(len(one.step.sampled) for one in asked if one.step.sampled is not None)
    if engine != trajectory.sampled_tokens:
        problems.append(f"the engine sampled {engine} tokens, {trajectory.sampled_tokens} are recorded")
    if trajectory.trained_tokens + sum(trajectory.lost_tokens.values()) != trajectory.sampled_tokens:
        problems.append("tokens are neither trained nor lost")
    problems += [f"audit: {finding.promise} {finding.message}" for finding in replayed.report.findings]
    explained: dict[str, Any] = {
        "undelivered": any(one.step.left or one.step.kept is not None for one in asked),
        "retry": len({(one.prints, one.tools) for one in asked}) < len(asked),
        "helper_call": any(turn.kind is BranchKind.HELPER for turn in replayed.tree.turns),
    }
    problems += [
        f"unexplained loss: {tokens} tokens as {cause}"
        for cause, tokens in trajectory.lost_tokens.items()
        if tokens and not explained.get(cause)
    ]
    return problems
