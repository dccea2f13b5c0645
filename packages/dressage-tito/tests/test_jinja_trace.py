"""What a traced render shows holds for every text that gives the same answers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from dressage_tito.errors import FolderError
from dressage_tito.jinja_env import chat_environment
from dressage_tito.jinja_trace import Rope, Trace, UntraceableError, filled
from dressage_tito.template import ChatTemplate, RenderError
from hypothesis import given, settings
from hypothesis import strategies as st

NOW = datetime(2026, 2, 3, tzinfo=UTC)
FOLLOWED = (
    "{{ c }}",
    "{{ '<' + c + '>' }}",
    "{{ c ~ '!' ~ 1 ~ none }}",
    "{{ c | trim }}",
    "{{ c.strip() }}{{ c.lstrip('\\n') }}{{ c.rstrip('ab') }}",
    "{{ c | string }}",
    "{{ c | default('z', true) }}",
    "{% if c is string %}s{% endif %}{{ c is defined }}{{ c is none }}{{ c is mapping }}{{ c is number }}",
    "{{ c is callable }}",
    "{% if c.startswith('a') and not c.endswith(('b', 'c')) %}x{% endif %}{{ c }}",
    "{% if 'a' in c %}x{% else %}{{ c }}{% endif %}",
    "{{ c == 'a' }}{{ 'b' != c }}{{ c in ['a', 'b'] }}{{ c is eq 'a' }}{{ [c] == ['a'] }}{{ c == 1 }}",
    "{% if c %}{{ c or 'y' }}{% endif %}{{ not c }}{{ (c and 'x') | string }}",
    "{% set ns = namespace(t=c) %}{% set ns.t = ns.t + 'x' %}{{ ns.t }}{% if ns.t == 'ax' %}!{% endif %}",
    "{% macro m(t) %}<{{ t }}>{% endmacro %}{{ m(c) }}{% if m(c) == '<a>' %}y{% endif %}",
    "{% macro m(t) %}{{ t }}{{ caller() }}{% endmacro %}{% call m(c) %}in{% endcall %}",
    "{% set b %}-{{ c }}{% endset %}{{ b }}{{ b.startswith('-a') }}{{ (b + b).endswith('b') }}",
    "{% for m in messages[::-1] %}{{ loop.index }}{{ m.content }}{% if loop.last %}.{% endif %}{% endfor %}",
    "{{ dict(k=c).k }}{{ {'k': c}['k'] }}{{ [c, 'x'] | first }}{{ (c, 'x')[0] }}",
    "{{ [c] | select | list | length }}{{ messages | length }}{{ c == messages[0].content }}",
    "{{ [c, 'b'] | sort | first }}",  # where the two are equal
    "{{ c | attr('strip') is defined }}{{ messages[0] == messages[0] }}",
    "{% generation %}{{ c }}{% endgeneration %}{% if false %}{{ c | length }}{% endif %}",
    "{{ 'random' is filter }}{{ 'sameas' is test }}{{ lipsum is defined and c == 'a' }}",
    "{{ strftime_now('%Y') }}{{ c }}{% if strftime_now('%d') == '03' %}x{% endif %}",
)
"""Bodies of templates (``c`` is a content) that can be followed."""
NOT_FOLLOWED = (
    "{{ c | length }}",
    "{{ c | upper }}{{ c }}",
    "{{ c | replace('a', 'b') }}",
    "{{ c.replace('a', 'b') }}",
    "{{ c | tojson }}",
    "{{ messages | tojson }}",
    "{{ messages }}",
    "{{ c[0] }}",
    "{{ c[:2] }}",
    "{{ c | first }}",
    "{{ c | list | length }}",
    "{% for char in c %}{{ char }}-{% endfor %}",
    "{{ c.split('a') | length }}",
    "{{ c | int }}",
    "{{ c | float }}",
    "{{ c is iterable }}",
    "{{ c is sequence }}",
    "{{ c is lower }}",
    "{{ c is sameas 'a' }}",
    "{{ c is escaped }}{{ c | e }}",
    "{{ c | safe }}",
    "{{ c | wordcount }}",
    "{{ c | random | length }}",
    "{{ {'a': 1}[c] }}",
    "{{ {'a': 1}.get(c) }}",
    "{{ c in {'a': 1} }}",
    "{{ messages[0][c] }}",
    "{{ messages[c] is defined }}",
    "{% set ns = namespace(a=1, b=2) %}{{ ns[c] is defined }}",
    "{{ c in 'abc' }}",
    "{{ 'abc'.startswith(c) }}",
    "{{ '%s' % c }}",
    "{{ '{}'.format(c) }}",
    "{{ '%s' | format(c) }}",
    "{{ [c, 'x'] | join(',') }}",
    "{{ [c, ''] | max }}",
    "{{ [c, c] | unique | list | length }}",
    "{{ c < 'b' }}",
    "{{ c * 2 }}",
    "{{ c % 2 }}",
    "{{ c.nothing is defined }}",
    "{{ c.upper is defined }}",
    "{{ c['upper'] is defined }}",
    "{{ c | attr('upper') is defined }}",
    "{{ c | attr('parts') is defined }}",
    "{{ [c] | selectattr('upper') | list | length }}",
    "{{ messages[0] == messages[1] }}",
    "{{ c.parts is defined }}",
    "{{ c.count('a') }}",
    "{{ c.find('a') }}",
    "{{ {'k': c} }}",
    "{{ c | pprint }}",
    "{{ (c | batch(2)) | list | length }}",
    "{% filter upper %}{{ c }}{% endfilter %}",
    "{{ range(c) | length }}",
    "{{ c() }}",
    "{{ messages[0].content == messages[-1].content }}",
    "{{ raise_exception(c) }}",
    "{{ c + 1 }}",
    "{% autoescape true %}{{ c }}{{ c ~ '<' }}{% endautoescape %}",
    "{{ lipsum(1) | length > 0 }}",
    "{{ c + ('x' | safe) }}",
    "{{ ('<' | e) + c }}",
    "{{ (c + ('x' | safe)) == 'a<x' }}",
)
"""Bodies that look at more of a content than can be asked, or print another text for it."""
TEXTS = ("a", "b", "ab", "a b", " a", "b\n", "", "1", "upper", "ac", "x", "role", "<")
texts = st.sampled_from(TEXTS) | st.text("ab \n<", max_size=6)


def template_of(bodies: Sequence[str]) -> ChatTemplate:
    body = "|".join(f"{{% set c = messages[{number % 2}].content %}}{b}" for number, b in enumerate(bodies))
    return ChatTemplate({"default": body}, {}, lambda: NOW)


def said(contents: Sequence[object]) -> list[dict[str, object]]:
    return [{"role": "user", "content": content} for content in contents]


def traced(template: ChatTemplate, contents: Sequence[str]) -> tuple[Trace, tuple[str | int, ...] | None]:
    trace = Trace(contents)
    return trace, template.traced(trace, said([trace.rope(number) for number in range(len(contents))]), {})


def rendered(template: ChatTemplate, contents: Sequence[str]) -> str | None:
    try:
        return template.render(said(contents), generation=True)
    except RenderError:
        return None


def check(template: ChatTemplate, contents: Sequence[str], others: Sequence[Sequence[str]]) -> bool:
    """Whether it could be followed, and that it is right for the contents and the others then."""
    trace, parts = traced(template, contents)
    if parts is None:
        return False
    times = trace.texts[len(contents) :]
    assert filled(parts, trace.texts) == rendered(template, contents)
    for other in others:
        if all(note.holds([*other, *times]) for note in trace.notes):
            assert filled(parts, [*other, *times]) == rendered(template, other)
    return True


@pytest.mark.parametrize("body", [*FOLLOWED, *NOT_FOLLOWED])
def test_what_was_seen_of_one_text_holds_for_others(body: str) -> None:
    template = template_of([body])
    pairs = list(itertools.product(TEXTS, ("b", "a")))
    followed = [check(template, pair, pairs) for pair in pairs]
    assert any(followed) == (body in FOLLOWED)


ENVIRONMENT = chat_environment(lambda: NOW)
OPERATIONS = (
    *(f"c | {name}" for name in ENVIRONMENT.filters),
    *(f"c is {name}" for name in ENVIRONMENT.tests),
    *(f"c.{name}" for name in dir(str) if not name.startswith("_")),
)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_filter_test_and_method_is_followed_rightly_or_not_at_all(operation: str) -> None:
    pairs = list(itertools.product(TEXTS, ("b",)))
    arguments = ("", "()", "('a')", "('a', 'b')", "(5)", "(c)", "(messages[1].content)")
    for body in (*(operation + each for each in arguments), f"({operation}) is defined"):
        try:
            template = template_of([f"{{% if {body} %}}yes{{% endif %}}{{{{ {body} }}}}"])
        except FolderError:
            continue
        for pair in pairs:
            check(template, pair, pairs)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.sampled_from(FOLLOWED), min_size=1, max_size=4),
    st.tuples(texts, texts),
    st.lists(st.tuples(texts, texts), max_size=12),
)
def test_so_it_does_for_all_that_a_template_may_do_at_once(
    bodies: list[str], contents: tuple[str, str], others: list[tuple[str, str]]
) -> None:
    check(template_of(bodies), contents, others)


def test_a_rope_is_followed_through_most_texts() -> None:
    template = template_of(["{{ c | trim }}{% if c.startswith('a') %}x{% endif %}"])
    trace, parts = traced(template, ("word", ""))
    assert parts == (0,)
    assert [note.holds(("other", "")) for note in trace.notes] == [True, True]
    assert [note.holds((" other", "")) for note in trace.notes] == [False, True]
    assert [note.holds(("another", "")) for note in trace.notes] == [True, False]
    assert traced(template, (" word", ""))[1] is None


def test_known_parts_that_stand_together_are_one() -> None:
    body = "<{{ messages[0].role }}{{ c }}{{ '' }}{{ c }}{{ messages | length }}>{{ '' }}"
    assert traced(template_of([body]), ("x", "y"))[1] == ("<user", 0, 0, "2>")


def test_a_rope_is_no_text() -> None:
    rope = Trace(["a"]).rope(0)
    assert not isinstance(rope, str)
    for use in (
        str,
        repr,
        len,
        list,
        hash,
        int,
        float,
        lambda it: f"{it}",
        lambda it: it[0],
        lambda it: it + 1,
    ):
        with pytest.raises(UntraceableError):
            use(rope)  # type: ignore[operator]
    with pytest.raises(TypeError):
        "".join([rope])  # type: ignore[list-item]
    assert not issubclass(UntraceableError, Exception)
    assert isinstance("a" + rope + "b", Rope)


def test_a_template_that_asks_for_chance_is_not_followed() -> None:
    template = template_of(["{{ ['a', 'b'] | random }}"])
    assert rendered(template, ("x", "y")) in ("a", "b")
    assert traced(template, ("x", "y"))[1] is None
