"""The jinja environment that chat templates are written for.

Its rules (sandbox, trim_blocks, lstrip_blocks, loop controls, ``tojson`` without ASCII escapes,
``raise_exception``, ``strftime_now``, the ``generation`` tag) are those that the Hugging Face documentation
gives to template authors. A module of its own, since jinja2 is loaded only when a template is.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

FAILURES = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)
"""What a template may raise while it renders: its own refusal, or its stumbling over a message."""


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


def chat_environment(clock: Callable[[], datetime]) -> jinja2.Environment:
    """An environment whose ``strftime_now`` asks ``clock``."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationTag]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda pattern: clock().strftime(pattern)
    return environment
