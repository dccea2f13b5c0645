"""Chat templates, rendered as Hugging Face tokenizers render them, without transformers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from dressage_tito.errors import FolderError

if TYPE_CHECKING:
    from dressage_tito.jinja_trace import Part, Trace, TracedTemplate

Json = Mapping[str, Any]
Clock = Callable[[], datetime]

RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
"""Names that a template gets from the codec and that ``template_kwargs`` may not set."""


class RenderError(Exception):
    """The template refused the conversation or failed on it (internal: becomes a Refusal)."""


class ChatTemplate:
    """A folder's templates, compiled. Raises FolderError, which names ``where``, if one does not compile."""

    def __init__(
        self, sources: Mapping[str, str], special: Mapping[str, Any], clock: Clock, where: str = ""
    ) -> None:
        import jinja2  # not at import of the package: see jinja_env

        from dressage_tito.jinja_env import FAILURES, chat_environment

        environment = chat_environment(clock)
        self.sources = dict(sources)
        self._failures = FAILURES
        self._special = dict(special)
        self._clock = clock
        self._templates: dict[str, jinja2.Template] = {}
        self._traced: dict[str, TracedTemplate] = {}
        for name, source in sources.items():
            try:
                self._templates[name] = environment.from_string(source)
            except jinja2.TemplateSyntaxError as error:
                raise _uncompiled(where, name, f"line {error.lineno}: {error.message}") from error
            except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError) as error:
                # jinja2 makes Python of it, which has limits of its own: of nesting, and of numbers' digits.
                raise _uncompiled(where, name, f"{type(error).__name__}: {error}") from error

    def _name(self, with_tools: bool) -> str:
        """The choice among named templates: ``tool_use`` where there are tools, else ``default``."""
        if with_tools and "tool_use" in self._templates:
            return "tool_use"
        return "default" if "default" in self._templates else next(iter(self._templates))

    def render(
        self,
        messages: Sequence[Json],
        tools: Sequence[Json] | None = None,
        *,
        generation: bool,
        kwargs: Json | None = None,
        clock: Clock | None = None,
    ) -> str:
        """The prompt text. Raises RenderError with the template's own words where it refuses or fails.

        Renders that are to be compared share a ``clock`` that stands still.
        """
        template = self._templates[self._name(bool(tools))]
        context = self._context(messages, tools, generation, kwargs)
        if clock is not None:
            context = {"strftime_now": lambda pattern: clock().strftime(pattern), **context}
        try:
            return template.render(context)
        except self._failures as error:
            raise RenderError(f"{type(error).__name__}: {error}") from error

    def stopped_clock(self) -> Clock:
        """The time when it is first asked for, from then on."""
        return functools.cache(self._clock)

    def traced(self, trace: Trace, messages: Sequence[Json], kwargs: Json) -> tuple[Part, ...] | None:
        """What ``render`` prints for messages (no tools, with the generation prompt) in which ropes of the
        trace stand for texts. None where that cannot be followed."""
        from dressage_tito.jinja_trace import TracedTemplate

        name = self._name(False)
        if name not in self._traced:
            self._traced[name] = TracedTemplate(self.sources[name])
        context = self._context(messages, None, True, kwargs)
        return self._traced[name].parts(context, trace, self._clock)

    def _context(
        self, messages: Sequence[Json], tools: Sequence[Json] | None, generation: bool, kwargs: Json | None
    ) -> dict[str, Any]:
        return {
            **self._special,
            **(kwargs or {}),
            "messages": list(messages),
            "tools": list(tools) if tools else None,
            "documents": None,
            "add_generation_prompt": generation,
        }


def _uncompiled(where: str, name: str, why: str) -> FolderError:
    return FolderError(
        where,
        f"the chat template {name!r} does not compile ({why})",
        "Mend it in chat_template.jinja or in tokenizer_config.json (chat_template).",
    )


def checked_kwargs(kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
    """The caller's template arguments. Raises ValueError where one is the codec's to give."""
    taken = RESERVED & set(kwargs or ())
    if taken:
        raise ValueError(
            f"template_kwargs may not set {sorted(taken)}: the codec gives these to the template"
        )
    return dict(kwargs or {})
