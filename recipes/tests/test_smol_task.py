"""The text form of the problems: every question, the example's independence, and how calls are read."""

from __future__ import annotations

import random

import pytest
from dressage_paddock import ChatMessage
from dressage_paddock.toolprotocol import CallOutcome
from dressage_recipes.local.smol_task import text_messages, text_protocol
from dressage_recipes.local.tasks import NAMES, Variant, make_problem
from hypothesis import given
from hypothesis import strategies as st


@given(st.sampled_from(Variant), st.integers(0, 1 << 30))
def test_the_question_names_the_file_and_never_tells_what_only_the_file_does(
    variant: Variant, seed: int
) -> None:
    problem = make_problem(random.Random(seed), {variant: 1.0})
    asked = text_messages(problem)[-1]
    assert asked.role == "user"
    assert problem.name in asked.content
    if problem.edited:
        assert problem.edited[1] in asked.content
    else:
        assert not any(letter.isdigit() for letter in asked.content)


def test_the_example_is_of_no_file_that_a_problem_has() -> None:
    problem = make_problem(random.Random(0), {Variant.READ: 1.0})
    *example, _asked = text_messages(problem)
    assert not any(name in message.content for name in NAMES for message in example)
    assert (
        text_messages(problem)[:-1] == text_messages(make_problem(random.Random(9), {Variant.EDIT: 1.0}))[:-1]
    )


def test_the_example_follows_the_protocol_that_it_shows() -> None:
    _system, _asked, call, result, answer, _ = text_messages(
        make_problem(random.Random(0), {Variant.READ: 1.0})
    )
    protocol = text_protocol()
    (made,) = protocol.calls(call)
    assert made.arguments == '{"command": "cat river"}'
    assert protocol.results([CallOutcome(made, result.content, mistake=False)]) == [result]
    assert protocol.calls(answer) == ()


@pytest.mark.parametrize(
    "said", ["<call>cat amber", "cat amber", "call>cat amber</call>", "<tool_call>cat amber</tool_call>"]
)
def test_what_only_resembles_a_call_is_an_answer(said: str) -> None:
    assert text_protocol().calls(ChatMessage("assistant", said)) == ()
