"""What is declared about an agent program: how it is found, launched, resumed, fed and read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Self

from pydantic import Field, model_validator

from dressage_blackbox_server.model import Frozen, Identifier, TurnOutcome

ARGV_PROMPT_BYTES = 96 * 1024
"""A longer prompt never goes on argv: the kernel refuses one argument of 128 KiB (E2BIG)."""

SPLICE = "{args}"
"""An argv element of exactly this is replaced by the session's ``args``."""

PLACEHOLDERS = frozenset(
    {
        "openai_url",
        "anthropic_url",
        "model",
        "session_uuid",
        "thread_id",
        "prompt",
        "prompt_file",
        "home",
        "workdir",
        "turn_index",
        "context_tokens",
        "output_tokens",
    }
)
"""``{name}`` in argv, env, file paths and file contents. Other braces are left as they are."""

_PLACEHOLDER = re.compile(r"\{([a-z][a-z_]*)\}")


class Dialect(StrEnum):
    """The model API that an agent speaks."""

    OPENAI_CHAT = "openai_chat"
    OPENAI_RESPONSES = "openai_responses"
    ANTHROPIC_MESSAGES = "anthropic_messages"


class OutputKind(StrEnum):
    """What a program prints on standard output."""

    TEXT = "text"
    JSON = "json"
    """One JSON value, over as many lines as it likes."""
    JSON_LINES = "json_lines"


class OutputRule(Frozen):
    """How the answer is read from standard output. Paths are dotted keys into each JSON value.

    The answer is looked for only in values that have each text of ``answer_where`` at its path.
    """

    kind: OutputKind = OutputKind.TEXT
    answer_path: str = ""
    answer_where: Mapping[str, str] = Field(default_factory=dict)
    thread_path: str = ""


class Launch(Frozen):
    """One way to start the program. The prompt is given by whichever field names it."""

    argv: tuple[str, ...]
    stdin: str = ""

    def texts(self) -> Iterator[tuple[str, str]]:
        """Field name and template, of each template in here."""
        for index, text in enumerate(self.argv):
            if text != SPLICE:
                yield f"argv[{index}]", text
        yield "stdin", self.stdin


class FileTemplate(Frozen):
    """A file that is written before the program starts. ``once``: before the first turn only."""

    path: str
    content: str
    once: bool = True


class AgentAdapter(Frozen):
    """An agent program, declared. Raises pydantic's ValidationError where the declaration cannot work.

    ``first`` starts a conversation; ``resume`` goes on with it (default: as ``first``). Where their argv
    holds ``{prompt}``, ``first_large`` and ``resume_large`` are used for prompts above
    :data:`ARGV_PROMPT_BYTES`.
    ``prompt_path`` is where the prompt is written in every turn when something names ``{prompt_file}``.
    ``exit_codes`` says what codes mean; else 0 is ok, 126 and 127 (a shell's "cannot execute" and
    "not found") are a failed launch, and any other is ``default_outcome``.
    """

    name: Identifier
    dialects: tuple[Dialect, ...]
    first: Launch
    resume: Launch | None = None
    first_large: Launch | None = None
    resume_large: Launch | None = None
    env: Mapping[str, str] = Field(default_factory=dict)
    files: tuple[FileTemplate, ...] = ()
    prompt_path: str = "{home}/prompt-{turn_index}.txt"
    exit_codes: Mapping[int, TurnOutcome] = Field(default_factory=dict)
    default_outcome: TurnOutcome = TurnOutcome.AGENT_FAILED
    output: OutputRule = OutputRule()
    version_argv: tuple[str, ...] = ()
    """Prints the version; () where there is no one program to ask."""
    npm: str = ""
    """The npm package that it was declared for, ``name@version``; "" where it comes otherwise."""
    install: str = ""
    """How to install it, for people."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        for field, text in self._texts():
            for name in _PLACEHOLDER.findall(text):
                if name not in PLACEHOLDERS and f"{{{name}}}" != SPLICE:
                    raise ValueError(
                        f"{field} names {{{name}}}, which is not known; known: {sorted(PLACEHOLDERS)}"
                    )
            if field.startswith("env[") and "{prompt}" in text:
                raise ValueError(f"{field} holds {{prompt}}: use {{prompt_file}}")
            if SPLICE in text:
                raise ValueError(f"{field} has {SPLICE} inside a text: it must be a whole argv element")
        for field, launch in self._launches():
            if not launch.argv:
                raise ValueError(f"{field}.argv is empty: give the program to start")
        if not any("{prompt}" in t or "{prompt_file}" in t for f, t in self._texts() if f != "prompt_path"):
            raise ValueError(
                "nothing names {prompt} or {prompt_file}: the program would never get its prompt"
            )
        return self

    def _launches(self) -> Iterator[tuple[str, Launch]]:
        for field in ("first", "resume", "first_large", "resume_large"):
            launch = getattr(self, field)
            if launch is not None:
                yield field, launch

    def _texts(self) -> Iterator[tuple[str, str]]:
        for field, launch in self._launches():
            for inner, text in launch.texts():
                yield f"{field}.{inner}", text
        for name, text in self.env.items():
            yield f"env[{name}]", text
        for index, file in enumerate(self.files):
            yield f"files[{index}].path", file.path
            yield f"files[{index}].content", file.content
        yield "prompt_path", self.prompt_path

    @property
    def wants_prompt_file(self) -> bool:
        """Whether anything names ``{prompt_file}``."""
        return any("{prompt_file}" in text for _, text in self._texts())

    def outcome_of(self, exit_code: int) -> TurnOutcome:
        """What an exit code means."""
        if exit_code in self.exit_codes:
            return self.exit_codes[exit_code]
        if exit_code in (126, 127):
            return TurnOutcome.LAUNCH_FAILED
        return TurnOutcome.OK if exit_code == 0 else self.default_outcome


def fill(template: str, values: Mapping[str, str]) -> str:
    """Put ``values`` in for known placeholders, in one pass: a value's own braces stay as they are."""

    def value(match: re.Match[str]) -> str:
        return values.get(match.group(1), match.group(0))

    return _PLACEHOLDER.sub(value, template)


def fill_argv(argv: tuple[str, ...], values: Mapping[str, str], args: tuple[str, ...]) -> tuple[str, ...]:
    """``fill`` for an argv, with ``{args}`` spliced in."""
    filled: list[str] = []
    for text in argv:
        if text == SPLICE:
            filled.extend(args)
        else:
            filled.append(fill(text, values))
    return tuple(filled)
