"""The jinja environment that chat templates are written for.

Its rules (sandbox, trim_blocks, lstrip_blocks, loop controls, ``tojson`` without ASCII escapes,
``raise_exception``, ``strftime_now``, the ``generation`` tag) are those that the Hugging Face documentation
gives to template authors. A module of its own, since jinja2 is loaded only when a template is.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

FAILURES = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    MemoryError,
)
"""What a template may raise while it renders: its own refusal, or its stumbling over a message."""


class _Namespace(Namespace):
    """jinja2's, which takes no name that begins with an underscore: those are the interpreter's own."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, given = args[0], dict(*args[1:], **kwargs)
        for name in given:
            _refuse_private(name)
        Namespace.__init__(self, given)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        Namespace.__setitem__(self, name, value)


def _refuse_private(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(
            f"a chat template may not keep {name!r} in a namespace: it begins with an underscore"
        )


class _MakeDict:
    """``dict`` in a template: makes dicts, and is not the type, whose methods would change any dict."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        """As ``dict.fromkeys``."""
        return dict.fromkeys(*args)


_OF_DICT = frozenset(dir(dict))
_OF_STR = frozenset(name for name in dir(str) if not name.startswith("_")) - {"format", "format_map"}


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox with a short way to what chat templates look up all the time.

    Keys of messages, methods of texts, ``loop`` and ``namespace``: jinja2's own way gives the same and first
    asks of each what kind of thing it might be, which is most of a render's time.
    """

    def getattr(self, obj: Any, attribute: str) -> Any:
        """See jinja2."""
        kind = type(obj)
        if kind is dict:
            if attribute not in _OF_DICT:
                try:
                    return obj[attribute]
                except KeyError:
                    return self.undefined(obj=obj, name=attribute)
        elif kind is str:
            if attribute in _OF_STR:
                return getattr(obj, attribute)
        elif (kind is LoopContext or kind is _Namespace) and not attribute.startswith("_"):
            value = getattr(obj, attribute, _MISSING)
            if value is not _MISSING:
                return self.wrap_str_format(value) or value
        return super().getattr(obj, attribute)


_MISSING = object()


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


def chat_environment(
    clock: Callable[[], datetime], kind: type[ChatEnvironment] = ChatEnvironment
) -> jinja2.Environment:
    """An environment whose ``strftime_now`` asks ``clock``."""
    environment = kind(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationTag])
    environment.filters["tojson"] = _tojson
    environment.globals["dict"] = _MakeDict()
    environment.globals["namespace"] = _Namespace
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda pattern: clock().strftime(pattern)
    return environment
