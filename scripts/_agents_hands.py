"""The agents: how the model calls each one's own tools, and where each one differs from the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from _agents_plans import WORKDIR, Step, Tool
from dressage_blackbox_server import TurnOutcome

FAILED = TurnOutcome.AGENT_FAILED


@dataclass(frozen=True, slots=True)
class Difference:
    """What one scenario gives with one agent, other than with the rest, and why. ``expected`` holds fields of
    :class:`Expected`."""

    why: str
    expected: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Hands:
    """An agent. ``told`` and ``begun`` are numbers of events of a reply's stream: after ``told`` the text is
    whole and no call has begun; after ``begun``, where that is another event, the reply has begun."""

    shell: Callable[[str], Tool]
    write: Callable[[str, str], Tool]
    told: int
    begun: int | None = None
    spawn: Callable[[str], Sequence[Step]] | None = None
    """The steps by which it has a sub-agent do a prompt."""
    window: int = 130_000
    """A context window that five long outputs fill: of the toy tokenizer's tokens."""
    differs: Mapping[str, Difference] = field(default_factory=dict)
    """By scenario."""


_PARTLY = Difference(
    "it keeps the text that it has, loses the call, and goes on",
    {"lost": ("undelivered",)},
)
_FRAGMENT = Difference("it takes what there is of a reply for its answer", {"finals": None, "files": {}})
_WHOLE = Difference("it has the whole call, and makes it", {"lost": ()})

HANDS: Mapping[str, Hands] = {
    "claude_code": Hands(
        lambda line: Tool("Bash", {"command": line, "description": "run"}),
        lambda name, text: Tool("Write", {"file_path": f"{WORKDIR}/{name}", "content": text}),
        begun=7,
        told=8,
        spawn=lambda prompt: [
            [Tool("Agent", {"description": "part", "prompt": prompt, "subagent_type": "general-purpose"})]
        ],
        differs={
            "empty": Difference(
                "it asks for something visible, then puts words of its own in the reply's place",
                {"main": (3, 3)},
            ),
            "cut-told": _PARTLY,
            "cut-late": _WHOLE,
        },
    ),
    "codex": Hands(
        lambda line: Tool("exec_command", {"cmd": line}),
        lambda name, text: Tool("exec_command", {"cmd": f"printf %s '{text}' > {name}"}),
        begun=11,
        told=14,
        spawn=lambda prompt: [
            [Tool("multi_agent_v1__spawn_agent", {"message": prompt})],
            [Tool("multi_agent_v1__wait_agent", {"targets": ["@id@"], "timeout_ms": 60_000})],
        ],
        differs={
            "cut-told": _PARTLY,
            "cut-late": _WHOLE,
            "length": Difference(
                "it takes response.incomplete for a failure, and ends with 1",
                {"outcomes": (FAILED,), "finals": None, "files": {}},
            ),
        },
    ),
    "opencode": Hands(
        lambda line: Tool("bash", {"command": line, "description": "run"}),
        lambda name, text: Tool("write", {"filePath": f"{WORKDIR}/{name}", "content": text}),
        told=3,
        begun=2,
        spawn=lambda prompt: [
            [Tool("task", {"description": "part", "prompt": prompt, "subagent_type": "general"})]
        ],
        differs={
            "compaction": Difference(
                "it ends with 1 once the model was asked for too much, though it goes on after that",
                {"outcomes": (FAILED,)},
            ),
            "length": _FRAGMENT,
        },
    ),
    "openclaw": Hands(
        lambda line: Tool("exec", {"command": line}),
        lambda name, text: Tool("write", {"path": f"{WORKDIR}/{name}", "content": text}),
        told=3,
        differs={
            "empty": Difference(
                "it asks again without tools, and puts that answer in the reply's place", {"main": (3, 3)}
            ),
            "bad-json": Difference("it shows no markup of calls", {"finals": ("I try.",)}),
            "length": _FRAGMENT,
        },
    ),
}
