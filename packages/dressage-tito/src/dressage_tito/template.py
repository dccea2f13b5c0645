"""Chat templates, rendered as Hugging Face tokenizers render them, without transformers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from dressage_tito.errors import FolderError

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
        self._templates: dict[str, jinja2.Template] = {}
        for name, source in sources.items():
            try:
                self._templates[name] = environment.from_string(source)
            except jinja2.TemplateSyntaxError as error:
                raise FolderError(
                    where,
                    f"the chat template {name!r} does not compile (line {error.lineno}: {error.message})",
                    "Mend it in chat_template.jinja or in tokenizer_config.json (chat_template).",
                ) from error

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
    ) -> str:
        """The prompt text. Raises RenderError with the template's own words where it refuses or fails."""
        template = self._templates[self._name(bool(tools))]
        context = {**self._special, **(kwargs or {})}
        try:
            return template.render(
                **context,
                messages=list(messages),
                tools=list(tools) if tools else None,
                documents=None,
                add_generation_prompt=generation,
            )
        except self._failures as error:
            raise RenderError(f"{type(error).__name__}: {error}") from error


def checked_kwargs(kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
    """The caller's template arguments. Raises ValueError where one is the codec's to give."""
    taken = RESERVED & set(kwargs or ())
    if taken:
        raise ValueError(
            f"template_kwargs may not set {sorted(taken)}: the codec gives these to the template"
        )
    return dict(kwargs or {})
