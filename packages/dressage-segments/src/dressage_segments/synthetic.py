"""Sessions made by hand: what tests, contract suites and benchmarks build trees with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dressage_segments.digest import IdsDigest
from dressage_segments.protocols import LogRecord
from dressage_segments.records import mark_to_record, open_to_record, turn_to_record
from dressage_segments.tree import TrajectoryTree
from dressage_segments.turn import ROOT, EngineCall, SessionInfo, Turn
from dressage_segments.vocabulary import BranchKind, Mark, Origin

Ids = Sequence[int] | NDArray[np.int32]


class SyntheticSession:
    """Builds a session turn by turn with true digests, and keeps the log that a recorder would write."""

    def __init__(self, info: SessionInfo | str = "s") -> None:
        given = info if isinstance(info, SessionInfo) else SessionInfo(info, f"i-{info}", f"g-{info}", info)
        self.tree = TrajectoryTree(given)
        self.log: list[LogRecord] = [open_to_record(given)]

    def turn(
        self,
        delta: Ids,
        output: Ids,
        *,
        parent: int = ROOT,
        keys: Sequence[str] = (),
        reply: str | None = None,
        kind: BranchKind = BranchKind.MAIN,
        logprobs: Sequence[float] | NDArray[np.float32] | None = None,
        versions: Sequence[int] | NDArray[np.int32] | None = None,
        cuts: Sequence[int] = (),
        untrainable: Mapping[int, str] | None = None,
        dropped: int = 0,
        tools_hash: str = "tools",
        cut_reason: str = "",
        finish_reason: str = "stop",
        sampling: Mapping[str, Any] | None = None,
        experts: NDArray[np.uint8] | None = None,
        experts_start: int = 0,
    ) -> int:
        """Commit a turn and return its index.

        ``cuts`` are offsets in ``output`` at which a further engine call continued it; ``untrainable`` maps a
        call's position in the turn to a cause; the last call sampled ``dropped`` more ids past a stop string.
        """
        index = len(self.tree)
        delta_ids = np.asarray(delta, np.int32)
        output_ids = np.asarray(output, np.int32)
        origin = Origin.PROMPT if parent == ROOT else Origin.ENVIRONMENT
        turn = Turn(
            session_id=self.tree.info.session_id,
            index=index,
            parent=parent,
            kind=kind,
            cut_reason=cut_reason,
            delta_ids=delta_ids,
            delta_origin=np.full(len(delta_ids), origin, np.uint8),
            output_ids=output_ids,
            logprobs=_or_filled(logprobs, len(output_ids), -0.5, np.dtype(np.float32)),
            versions=_or_filled(versions, len(output_ids), 1, np.dtype(np.int32)),
            calls=tuple(
                self._calls(parent, delta_ids, output_ids, cuts, untrainable or {}, dropped, finish_reason)
            ),
            finish_reason=finish_reason,
            tools_hash=tools_hash,
            input_keys=tuple(keys),
            reply_key=f"reply-{index}" if reply is None else reply,
            sampling={"temperature": 1.0} if sampling is None else sampling,
            experts=experts,
            experts_start=experts_start,
        )
        self.tree.add(turn)
        self.log.append(turn_to_record(turn))
        return index

    def mark(self, index: int, mark: Mark) -> None:
        """Mark a turn, in the tree and in the log."""
        self.tree.mark(index, mark)
        self.log.append(mark_to_record(index, mark))

    def _calls(
        self,
        parent: int,
        delta: NDArray[np.int32],
        output: NDArray[np.int32],
        cuts: Sequence[int],
        untrainable: Mapping[int, str],
        dropped: int,
        finish_reason: str,
    ) -> Iterator[EngineCall]:
        digest = IdsDigest() if parent == ROOT else self.tree.digest(parent)
        digest.update(delta)
        bounds = [0, *cuts, len(output)]
        for number, (begin, end) in enumerate(pairwise(bounds)):
            last = number == len(bounds) - 2
            yield EngineCall(
                call_id=f"{self.tree.info.session_id}-{len(self.tree):06d}-{number:02d}",
                prompt_tokens=digest.tokens,
                prompt_digest=digest.hexdigest(),
                output_tokens=end - begin,
                finish_reason=finish_reason if last else "abort",
                engine="synthetic",
                untrainable=untrainable.get(number, ""),
                dropped_tokens=dropped if last else 0,
            )
            digest.update(output[begin:end])


def random_session(rng: np.random.Generator, turns: int, name: str = "s") -> SyntheticSession:
    """A session of every shape that agents make: branches, retries, helpers, resumed and damaged calls."""
    session = SyntheticSession(name)
    for _ in range(turns):
        _random_turn(session, rng)
        if rng.random() < 0.3:
            session.mark(int(rng.integers(len(session.tree))), Mark(rng.choice(list(Mark))))
    return session


def _random_turn(session: SyntheticSession, rng: np.random.Generator) -> None:
    count = len(session.tree)
    size = int(rng.integers(0, 7))
    logprobs = -rng.random(size).astype(np.float32)
    if size and rng.random() < 0.15:
        logprobs[rng.integers(size)] = rng.choice(np.array([np.nan, np.inf, 0.5], np.float32))
    common: dict[str, Any] = {
        "output": rng.integers(0, 50, size),
        "logprobs": logprobs,
        "versions": rng.integers(1, 4, size),
        "cuts": sorted(rng.integers(0, size + 1, int(rng.integers(0, 3))).tolist()),
        "untrainable": {0: "missing_logprobs"} if rng.random() < 0.1 else {},
        "kind": rng.choice(list(BranchKind), p=[0.7, 0.1, 0.1, 0.1]),
        "finish_reason": str(rng.choice(["stop", "length"])),
        "sampling": {"temperature": float(rng.choice([1.0, 0.2], p=[0.9, 0.1]))},
    }
    common["kind"] = BranchKind(common["kind"])
    if count and rng.random() < 0.3:
        twin = session.tree.turn(int(rng.integers(count)))
        session.turn(
            twin.delta_ids, parent=twin.parent, keys=twin.input_keys, tools_hash=twin.tools_hash, **common
        )
        return
    parent = ROOT if not count or rng.random() < 0.15 else int(rng.integers(max(0, count - 3), count))
    tools = str(rng.choice(["tools", "other"])) if parent == ROOT else session.tree.turn(parent).tools_hash
    delta = rng.integers(0, 50, int(rng.integers(1, 6))).tolist()
    session.turn(delta, parent=parent, keys=[f"message-{count}"], tools_hash=tools, **common)


def _or_filled(values: Any, count: int, default: float, dtype: np.dtype[Any]) -> NDArray[Any]:
    return np.full(count, default, dtype) if values is None else np.asarray(values, dtype)
