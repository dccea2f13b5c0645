from __future__ import annotations

from datetime import datetime
from typing import Any

import jinja2
import pytest
from dressage_tito.jinja_env import chat_environment
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

ATTRIBUTES = (
    "role",
    "content",
    "missing",
    "items",
    "get",
    "keys",
    "pop",
    "popitem",
    "update",
    "setdefault",
    "clear",
    "copy",
    "append",
    "strip",
    "split",
    "startswith",
    "format",
    "format_map",
    "upper",
    "join",
    "index",
    "count",
    "__class__",
    "__init__",
    "__getitem__",
    "_private",
    "__globals__",
    "mro",
    "first",
    "last",
    "index0",
    "previtem",
    "nextitem",
    "cycle",
    "changed",
    "x",
)


class _Own(dict[str, object]):
    role = "of the class"


def _lookup(environment: jinja2.Environment, thing: object, name: str) -> str:
    value = environment.getattr(thing, name)
    if isinstance(value, jinja2.Undefined):
        return f"undefined: {value._undefined_message}"
    if callable(value):
        return f"callable {getattr(value, '__name__', '')} {type(value).__name__}"
    return repr(value)


@pytest.mark.parametrize("name", ATTRIBUTES)
@pytest.mark.parametrize(
    "thing",
    [
        {"role": "user", "content": "x", "items": [1], "_private": 1, "__class__": 2},
        "text",
        ["a"],
        ("a",),
        7,
        None,
        Namespace(x="{}".format, first=1, items=2),
        chat_environment(datetime.now).globals["namespace"](x="{}".format, first=1, items=2),
        _Own(role="of the key", content="y"),
        str,
        jinja2.Undefined(name="nothing"),
    ],
    ids=lambda thing: type(thing).__name__,
)
def test_a_lookup_gives_what_the_sandbox_of_jinja2_gives(thing: Any, name: str) -> None:
    ours, theirs = chat_environment(datetime.now), ImmutableSandboxedEnvironment()
    try:
        wanted = _lookup(theirs, thing, name)
    except jinja2.UndefinedError as error:
        with pytest.raises(type(error)):
            ours.getattr(thing, name)
        return
    assert _lookup(ours, thing, name) == wanted


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_a_loop_shows_what_it_shows_in_the_sandbox_of_jinja2(name: str) -> None:
    source = (
        "{% for item in [1, 2, 3] %}{{ loop." + name + " is callable or loop." + name + " }} {% endfor %}"
    )
    texts = []
    for environment in (chat_environment(datetime.now), ImmutableSandboxedEnvironment()):
        try:
            texts.append(environment.from_string(source).render())
        except jinja2.TemplateError as error:
            texts.append(type(error).__name__)
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    "source",
    [
        "{{ '{0.__class__}'.format(1) }}",
        "{% set ns = namespace(f='{0.__class__}'.format) %}{{ ns.f(1) }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({}) }}",
        "{{ messages[0].__class__.mro() }}",
        "{{ ''.__class__.__bases__ }}",
        "{{ namespace.__init__.__globals__ }}",
        "{% for m in messages %}{{ loop.__class__.mro() }}{% endfor %}",
        "{{ dict.update(messages[0], {'role': 'class'}) }}{{ messages[0].role }}",
        "{{ dict.__class__ }}",
        "{{ namespace(__class__=1) }}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}class",
        "{% set ns = namespace({'_x': 1}) %}class",
    ],
)
def test_a_template_can_reach_nothing_outside_of_its_sandbox(source: str) -> None:
    template = chat_environment(datetime.now).from_string(source)
    try:
        text = template.render(messages=[{"role": "user"}])
    except jinja2.TemplateError:
        return
    assert "class" not in text


def test_dicts_and_namespaces_are_made_as_in_jinja2() -> None:
    source = (
        "{% set ns = namespace(a=1, self=2) %}{% set ns.b = dict(c=3) %}{{ ns.a }}{{ ns.self }}{{ ns.b.c }}"
        "{{ dict([('k', 4)], l=5) | tojson }}{{ dict.fromkeys('ab', 6) | tojson }}{{ ns.missing is defined }}"
    )
    wanted = '123{"k": 4, "l": 5}{"a": 6, "b": 6}False'
    assert chat_environment(datetime.now).from_string(source).render() == wanted
    assert ImmutableSandboxedEnvironment().from_string(source).render() == wanted
