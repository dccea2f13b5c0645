"""The problems as a model without a tool grammar gets them: one example of a call, then the question.

SmolLM2-135M-Instruct seldom calls the shell from this prompt before any training: the first rewards in a
run's steps.jsonl say how seldom.
"""

from __future__ import annotations

from dressage_paddock import ChatMessage, TextCallProtocol

from dressage_recipes.local.tasks import Problem, Variant

_SYSTEM = "You are an agent. You use the shell with <call>COMMAND</call> and answer with what it prints."
_QUESTIONS = {
    Variant.READ: "What is in the file {name}?",
    Variant.FOLLOW: "What is in the file {name}?",
    Variant.COUNT: "How many lines are in the file {name}?",
    Variant.EDIT: "Put {content} into the file {name}.",
}
_EXAMPLE = (
    ChatMessage("system", _SYSTEM),
    ChatMessage("user", "What is in the file river?"),
    ChatMessage("assistant", "<call>cat river</call>"),
    ChatMessage("user", "58"),
    ChatMessage("assistant", "58"),
)
"""Pretrained weights that never saw a call need to see one: without it there is no reward to learn from.
The file is none of ``tasks.NAMES``."""


def text_protocol() -> TextCallProtocol:
    """``<call>COMMAND</call>`` runs in the shell; what it prints comes back as a user message."""
    return TextCallProtocol(r"<call>(.*?)</call>", tool="shell", argument="command", result="{output}")


def text_messages(problem: Problem) -> list[ChatMessage]:
    """What a rollout starts with; the model's own chat template frames it."""
    content = problem.edited[1] if problem.edited else ""
    asked = _QUESTIONS[problem.variant].format(name=problem.name, content=content)
    return [*_EXAMPLE, ChatMessage("user", asked)]
