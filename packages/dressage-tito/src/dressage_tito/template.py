"""Chat templates, rendered as Hugging Face tokenizers render them, without transformers.

The environment's rules (sandbox, trim_blocks, lstrip_blocks, loop controls, ``tojson`` without ASCII escapes,
``raise_exception``, ``strftime_now``, the ``generation`` tag) are those that the Hugging Face documentation of
chat templates gives to template authors.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

Json = Mapping[str, Any]
Clock = Callable[[], datetime]

RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
"""Names that a template gets from the codec and that ``template_kwargs`` may not set."""

_FAILURES = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)


class RenderError(Exception):
    """The template refused the conversation or failed on it (internal: becomes a Refusal)."""


class GenerationTag(Extension):
    """``{% generation %}…{% endgeneration %}``: marks of training templates; the body is printed as it is."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

    def parse(self, parser: Parser) -> nodes.Node:
        """Print the body in a scope of its own."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _environment(clock: Clock) -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationTag]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda pattern: clock().strftime(pattern)
    return environment


class ChatTemplate:
    """A folder's templates, compiled. Raises ``jinja2.TemplateSyntaxError`` where one does not compile."""

    def __init__(self, sources: Mapping[str, str], special: Mapping[str, Any], clock: Clock) -> None:
        environment = _environment(clock)
        self.sources = dict(sources)
        self._special = dict(special)
        self._templates = {name: environment.from_string(source) for name, source in sources.items()}

    def source(self, *, with_tools: bool) -> str:
        """The text of the template that a conversation with (or without) tools is rendered by."""
        return self.sources[self._name(with_tools)]

    def _name(self, with_tools: bool) -> str:
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
        except _FAILURES as error:
            raise RenderError(f"{type(error).__name__}: {error}") from error
