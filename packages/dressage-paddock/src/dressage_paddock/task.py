"""What a rollout is asked to do, with what may enter the sandbox typed apart from what never may."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from dressage_sandbox.protocol import SandboxSpec

from dressage_paddock.errors import TaskError
from dressage_paddock.messages import ChatMessage


def check_path(field_name: str, path: str) -> None:
    """Refuse a path that leads out of where it is put. Raises :class:`TaskError`."""
    if not isinstance(path, str) or not path or "\x00" in path or ".." in PurePosixPath(path).parts:
        raise TaskError(f"{field_name} has the path {path!r}: give a path without '..' or NUL")


@dataclass(frozen=True, slots=True)
class PublicMetadata:
    """Metadata that agents, hooks and the sandbox may see (a repository's name, a language)."""

    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunnerOnly:
    """Metadata for whoever runs rollouts (curriculum, weights). Hidden in repr, never in a sandbox."""

    values: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"RunnerOnly(<{len(self.values)} hidden>)"


@dataclass(frozen=True, slots=True)
class GraderOnly:
    """Metadata for the grader (the label, hidden tests). Hidden in repr, never in a sandbox or a prompt."""

    values: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"GraderOnly(<{len(self.values)} hidden>)"


@dataclass(frozen=True, slots=True)
class TaskLimits:
    """Ceilings of one rollout. Seconds, tokens, bytes."""

    max_turns: int = 16
    """Model replies in a whitebox rollout."""
    timeout_s: float = 300.0
    """Wall clock of the agent's part (set-up and grading have their own)."""
    max_tokens: int | None = None
    """Cap of one reply; None leaves it to the gateway."""
    tool_timeout_s: float = 30.0
    tool_output_bytes: int = 16 * 1024
    """Per stream of one tool call."""
    setup_timeout_s: float = 60.0
    grade_timeout_s: float = 60.0
    hook_timeout_s: float = 60.0
    """Of each hook but the grader."""
    artifact_bytes: int = 1 << 20
    """Per artifact; longer ones are cut and named in ``RolloutResult.cut_artifacts``."""
    artifact_total_bytes: int = 16 << 20
    """Of all artifacts together."""
    artifact_files: int = 256
    """Most files that are read back of folders."""

    def __post_init__(self) -> None:
        for name in ("max_turns", "timeout_s", "tool_timeout_s", "tool_output_bytes", "setup_timeout_s",
                     "grade_timeout_s", "hook_timeout_s", "artifact_bytes", "artifact_total_bytes",
                     "artifact_files"):  # fmt: skip
            if not getattr(self, name) > 0:
                raise TaskError(f"limits.{name} is {getattr(self, name)!r}: give a number above 0")
        if self.max_tokens is not None and self.max_tokens <= 0:
            raise TaskError(f"limits.max_tokens is {self.max_tokens}: give a number above 0, or None")

    @property
    def total_s(self) -> float:
        """The longest that a rollout's sandbox can be needed."""
        hooks = 3 * self.hook_timeout_s
        # Set-up time counts twice: reading the artifacts back may take as long as writing the files did.
        return 2 * self.setup_timeout_s + self.timeout_s + self.grade_timeout_s + hooks


@dataclass(frozen=True, slots=True)
class PublicTask:
    """The part of a task that an agent and its sandbox may see. Agents are handed this, never the task."""

    instance_id: str
    messages: tuple[ChatMessage, ...]
    files: Mapping[str, bytes]
    limits: TaskLimits
    workdir: str
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def prompt(self) -> str:
        """The text of the user messages, for programs that take one prompt."""
        return "\n\n".join(m.content for m in self.messages if m.role == "user")

    @property
    def system(self) -> str:
        """The text of the leading system messages."""
        return "\n\n".join(m.content for m in self.messages if m.role == "system")


@dataclass(frozen=True, slots=True)
class Task:
    """One problem. Give ``prompt`` (with an optional ``system``), or whole ``messages``.

    ``files`` (path -> content; relative paths are below the sandbox's workdir) are written before the agent
    starts. ``artifacts`` are paths (of files, or of folders with all that is below) that are read back after
    it ended. ``metadata`` is public; ``runner`` and ``grader`` never enter the sandbox or a prompt. Raises
    :class:`TaskError` where a field cannot be run.
    """

    instance_id: str
    prompt: str = ""
    system: str = ""
    messages: tuple[ChatMessage, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
    artifacts: tuple[str, ...] = ()
    metadata: PublicMetadata = field(default_factory=PublicMetadata)
    runner: RunnerOnly = field(default_factory=RunnerOnly)
    grader: GraderOnly = field(default_factory=GraderOnly)
    limits: TaskLimits = field(default_factory=TaskLimits)
    sandbox: SandboxSpec = field(default_factory=SandboxSpec)

    def __post_init__(self) -> None:
        self._check_types()
        if not self.instance_id:
            raise TaskError("instance_id is empty: give each task a stable name")
        if bool(self.prompt) == bool(self.messages):
            raise TaskError("give either prompt or messages (one of the two, not empty)")
        if self.messages and self.system:
            raise TaskError("system goes with prompt: with messages, put a system message first")
        for path in (*self.files, *self.artifacts):
            check_path("files/artifacts", path)
        for name, kind in (("metadata", PublicMetadata), ("runner", RunnerOnly), ("grader", GraderOnly)):
            if not isinstance(getattr(self, name), kind):
                given = type(getattr(self, name)).__name__
                raise TaskError(f"{name} is {given}: give {kind.__name__}(...), which says who may see it")
        for path, data in self.files.items():
            if not isinstance(data, bytes):
                raise TaskError(f"files[{path!r}] is {type(data).__name__}: give bytes (text.encode())")

    def _check_types(self) -> None:
        """What is of another type would go wrong far from here, or be taken apart letter by letter."""
        for name in ("instance_id", "prompt", "system"):
            if not isinstance(getattr(self, name), str):
                raise TaskError(f"{name} is {type(getattr(self, name)).__name__}: give text")
        kinds: tuple[tuple[str, type], ...] = (("messages", ChatMessage), ("artifacts", str))
        for name, kind in kinds:
            given = getattr(self, name)
            if not isinstance(given, tuple | list) or not all(isinstance(one, kind) for one in given):
                raise TaskError(f"{name}: give a tuple of {kind.__name__}, as (one,)")
        for name, kind in (("limits", TaskLimits), ("sandbox", SandboxSpec), ("files", Mapping)):
            if not isinstance(getattr(self, name), kind):
                raise TaskError(f"{name} is {type(getattr(self, name)).__name__}: give {kind.__name__}")
        for number, message in enumerate(self.messages):
            if not isinstance(message.content, str):
                raise TaskError(f"messages[{number}].content is {type(message.content).__name__}: give text")

    def public(self) -> PublicTask:
        """What the agent may see: messages, files and limits, and nothing of ``runner`` or ``grader``."""
        messages = self.messages
        if not messages:
            system = (ChatMessage("system", self.system),) if self.system else ()
            messages = (*system, ChatMessage("user", self.prompt))
        workdir = self.sandbox.workdir
        files = {str(PurePosixPath(workdir) / p): data for p, data in self.files.items()}
        return PublicTask(self.instance_id, messages, files, self.limits, workdir, dict(self.metadata.values))
