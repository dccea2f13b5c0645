"""What agents said and did, for people: the rollouts of each step's first row, in a file of the run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import orjson
from dressage_paddock import ChatMessage, RolloutResult

MOST = 16 * 1024
"""Characters of one message, or of a program's output, that are kept."""


class Transcripts:
    """``transcripts.jsonl``: a line a rollout."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def record(self, step: int, results: Iterable[RolloutResult]) -> None:
        """Append one line each."""
        with self._path.open("ab") as file:
            file.writelines(_line(step, result) for result in results)


def whose(step: int, result: RolloutResult) -> dict[str, object]:
    """What every line about a rollout begins with."""
    return {
        "step": step,
        "instance_id": result.instance_id,
        "rollout_id": result.rollout_id,
        "session_id": result.session_id,
        "failure_class": result.failure_class.value,
    }


def _line(step: int, result: RolloutResult) -> bytes:
    return (
        orjson.dumps(
            {
                **whose(step, result),
                "reward": result.reward,
                "messages": [_message(message) for message in result.transcript],
                "agent_output": plain(result.agent_output),
            }
        )
        + b"\n"
    )


def _message(message: ChatMessage) -> dict[str, object]:
    said: dict[str, object] = {"role": message.role, "content": plain(message.content)}
    if message.reasoning:
        said["reasoning"] = plain(message.reasoning)
    if message.tool_calls:
        said["calls"] = [f"{call.name}({plain(call.arguments)})" for call in message.tool_calls]
    return said


def plain(text: str, most: int = MOST) -> str:
    """Cut, and without lone surrogates, which no JSON in UTF-8 holds."""
    kept = text if len(text) <= most else f"{text[:most]}[cut: {len(text) - most} more characters]"
    return kept.encode("utf-8", "replace").decode("utf-8")
