"""A render that shows what a chat template does with texts that it does not know.

In place of a text the template is given a Rope: it can be printed and joined, and it answers a few questions
(does it begin with this? is it empty?) as a real text would; the answers are noted. Nothing else can be done
with it, and nothing else of a text reaches the template, since a Rope is no string. So for all texts that
give the same answers the template goes the same way, and prints the same with them in place.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame

from dressage_tito.jinja_env import FAILURES, ChatEnvironment, chat_environment

Part = str | int
"""Of a rope: a known text, or the number of one that is not known."""
Question = Callable[[str], object]


class UntraceableError(BaseException):
    """A template did what cannot be followed. No Exception: templates' filters and tests swallow those."""


@dataclass(frozen=True, slots=True)
class Note:
    """A question about a text, and its answer."""

    parts: tuple[Part, ...]
    question: Question
    answer: object

    def holds(self, texts: Sequence[str]) -> bool:
        """Whether other texts give the same answer."""
        return self.question(filled(self.parts, texts)) == self.answer


class Trace:
    """Texts that are not shown to the template, and what it asked about them. The time is one of them."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = list(texts)
        """The given ones, then those that the template made of the time."""
        self.notes: list[Note] = []

    def unknown(self, text: str) -> Rope:
        """One more text."""
        self.texts.append(text)
        return self.rope(len(self.texts) - 1)

    def rope(self, number: int) -> Rope:
        """A text as the template sees it."""
        return Rope(self, (number,))

    def asked(self, parts: tuple[Part, ...], question: Question) -> Any:
        """The answer for the real texts."""
        answer = question(filled(parts, self.texts))
        self.notes.append(Note(parts, question, answer))
        return answer


def filled(parts: Iterable[Part], texts: Sequence[str]) -> str:
    """A rope's text."""
    return "".join([part if isinstance(part, str) else texts[part] for part in parts])


@jinja2.pass_context  # so that jinja2 does not try it on constants when it compiles
def _untraceable(*_: object, **__: object) -> NoReturn:
    raise UntraceableError


class Rope:
    """Parts of a text, some of which are not known."""

    __slots__ = ("_trace", "parts")
    ASKABLE = frozenset({"startswith", "endswith", "strip", "lstrip", "rstrip"})

    def __init__(self, trace: Trace, parts: tuple[Part, ...]) -> None:
        self._trace = trace
        self.parts = parts

    def __getattr__(self, name: str) -> NoReturn:
        raise UntraceableError

    def _asked(self, question: Question) -> Any:
        return self._trace.asked(self.parts, question)

    def startswith(self, *args: Any) -> bool:
        """As of a text."""
        return bool(self._asked(lambda text: text.startswith(*args)))

    def endswith(self, *args: Any) -> bool:
        """As of a text."""
        return bool(self._asked(lambda text: text.endswith(*args)))

    def strip(self, chars: str | None = None) -> Rope:
        """As of a text that it leaves as it is."""
        return self._unchanged(lambda text: text.strip(chars) == text)

    def lstrip(self, chars: str | None = None) -> Rope:
        """As of a text that it leaves as it is."""
        return self._unchanged(lambda text: text.lstrip(chars) == text)

    def rstrip(self, chars: str | None = None) -> Rope:
        """As of a text that it leaves as it is."""
        return self._unchanged(lambda text: text.rstrip(chars) == text)

    def _unchanged(self, question: Question) -> Rope:
        if not self._asked(question):
            raise UntraceableError
        return self

    def __contains__(self, item: Any) -> bool:
        return bool(self._asked(lambda text: item in text))

    def __bool__(self) -> bool:
        return bool(self._asked(bool))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Rope):
            return bool(self._asked(lambda text: operator.eq(text, other)))
        if self.parts != other.parts:
            raise UntraceableError
        return True

    def __add__(self, other: Any) -> Rope:
        return self._joined((self, other))

    def __radd__(self, other: Any) -> Rope:
        return self._joined((other, self))

    def _joined(self, pieces: Sequence[Any]) -> Rope:
        if not all(type(piece) is str or isinstance(piece, Rope) for piece in pieces):
            raise UntraceableError  # another kind of text (jinja2's Markup) is joined by rules of its own
        joined = concat(pieces)
        assert isinstance(joined, Rope)
        return joined

    __hash__ = __str__ = __repr__ = __format__ = __len__ = __iter__ = __getitem__ = _untraceable
    __int__ = __float__ = __index__ = __lt__ = __le__ = __gt__ = __ge__ = _untraceable
    __mul__ = __rmul__ = __mod__ = __rmod__ = _untraceable


def concat(pieces: Iterable[Any]) -> str | Rope:
    """What a template printed, in one: a text, or a rope in which no two known parts stand together."""
    parts: list[Part] = []
    trace = None
    for piece in pieces:
        if isinstance(piece, Rope):
            trace = piece._trace
        for part in piece.parts if isinstance(piece, Rope) else (piece,):
            if isinstance(part, str) and parts and isinstance(parts[-1], str):
                parts[-1] += part
            elif part != "":
                parts.append(part)
    return "".join(map(str, parts)) if trace is None else Rope(trace, tuple(parts))


class _Generator(CodeGenerator):
    """Prints ropes as they are, where jinja2 makes a text of everything."""

    def _output_child_pre(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        if frame.eval_ctx.volatile or frame.eval_ctx.autoescape:
            super()._output_child_pre(node, frame, finalize)
        else:
            self.write("environment.printed(")

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802 (jinja2's name)
        """``~``: see jinja2."""
        if frame.eval_ctx.volatile or frame.eval_ctx.autoescape:
            super().visit_Concat(node, frame)
            return
        self.write("environment.concat((")
        for part in node.nodes:
            self.write("environment.printed(")
            self.visit(part, frame)
            self.write("), ")
        self.write("))")


class _Environment(ChatEnvironment):
    code_generator_class = _Generator
    concat = staticmethod(concat)  # type: ignore[assignment]

    @staticmethod
    def printed(value: object) -> str | Rope:
        return value if isinstance(value, Rope) else str(value)

    def getattr(self, obj: Any, attribute: str) -> Any:
        if isinstance(obj, Rope) and attribute not in Rope.ASKABLE:
            raise UntraceableError
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(argument, Rope) or isinstance(obj, Rope):
            raise UntraceableError
        return super().getitem(obj, argument)


def _tracing_environment() -> jinja2.Environment:
    """That of chat templates, where what gives another result each time and what looks at a text's kind is
    there, but not followed."""
    environment = chat_environment(_untraceable, _Environment)
    trim, string = environment.filters["trim"], environment.filters["string"]
    environment.filters["trim"] = lambda value, chars=None: (
        value.strip(chars) if isinstance(value, Rope) else trim(value, chars)
    )
    environment.filters["string"] = lambda value: value if isinstance(value, Rope) else string(value)
    environment.tests["string"] = lambda value: isinstance(value, str | Rope)
    for known, names in (
        (environment.filters, ("random",)),
        (environment.tests, ("sameas",)),
        (environment.globals, ("lipsum",)),
    ):
        for name in names:
            known[name] = _untraceable
    return environment


class TracedTemplate:
    """A template's source, compiled to be traced."""

    def __init__(self, source: str) -> None:
        try:
            self._template: jinja2.Template | None = _tracing_environment().from_string(source)
        except jinja2.TemplateError:
            self._template = None

    def parts(
        self, context: Mapping[str, Any], trace: Trace, clock: Callable[[], datetime]
    ) -> tuple[Part, ...] | None:
        """What the template prints, ropes apart; None where it did what cannot be followed."""
        if self._template is None:
            return None

        def strftime_now(pattern: str) -> Rope:
            return trace.unknown(clock().strftime(pattern))

        try:
            printed: Any = self._template.render({"strftime_now": strftime_now, **context})
        except (UntraceableError, *FAILURES):
            return None
        return printed.parts if isinstance(printed, Rope) else (printed,)
