"""Trying a rollout again after an infrastructure failure, each time with a fresh sandbox and session."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dressage_paddock.errors import TaskError
from dressage_paddock.failure import FailureClass
from dressage_paddock.hooks import Grader, Hooks
from dressage_paddock.paddock import Paddock
from dressage_paddock.result import RolloutResult
from dressage_paddock.task import Task


async def run_with_retries(
    paddock: Paddock,
    task: Task,
    grade: Grader | None = None,
    *,
    attempts: int = 3,
    backoff_s: float = 0.2,
    group_id: str | None = None,
    rollout_id: str | None = None,
    sampling: Mapping[str, Any] | None = None,
    labels: Mapping[str, str] | None = None,
    hooks: Hooks | None = None,
) -> RolloutResult:
    """Run ``task``, again after a retryable infrastructure failure, ``attempts`` times at most.

    Only infrastructure is tried again: a failure of the policy is data. The attempts that failed are in
    ``result.earlier``; the second attempt's rollout id ends in ``.2``, and so on.
    """
    if attempts < 1:
        raise TaskError(f"attempts is {attempts}: give 1 or more")
    name = rollout_id or uuid.uuid4().hex
    earlier: list[RolloutResult] = []
    while True:
        number = len(earlier) + 1
        result = await paddock.run(
            task,
            grade,
            group_id=group_id,
            rollout_id=name if number == 1 else f"{name}.{number}",
            sampling=sampling,
            labels=labels,
            hooks=hooks,
        )
        failed = result.failure_class is FailureClass.INFRASTRUCTURE
        if not failed or not result.ending.retryable or number == attempts:
            return replace(result, earlier=tuple(earlier))
        earlier.append(result)
        paddock.report("retry", task, result.rollout_id, code=result.ending.code, attempt=number)
        await asyncio.sleep(backoff_s * 2.0 ** (number - 1))
