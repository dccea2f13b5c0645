"""What an agent is asked, and what the scripted model says.

A prompt names a plan, a list of steps, as ``@@name@@``; the model takes the next step of the last
one of the script's that it finds. Who offers no tools, or asks for a summary, gets one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from dressage_proxy.engine.scripted import Fault, Policy
from dressage_proxy.replay.answers import odd_ids
from dressage_tito import ChatCodec

WORKDIR = "/workspace"
"""Where an agent works."""
UNPLANNED = "There is no plan for this."
_NAMED = re.compile(r"@@(\w+)@@")
_SUMMARY = re.compile(r"detailed summary|checkpoint compaction|compaction", re.IGNORECASE)
_REMEMBERED = re.compile(r'"\w*_id":\s*"([^"]+)"')
"""An id in a tool's result: the newest one takes the place of ``@id@`` in a call."""
_ROLE = re.compile(r"<\|im_start\|>(system|user|assistant)\n?")
_RESULT = re.compile(r"<tool_response>.*?</tool_response>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Tool:
    """A call that the model makes. ``broken`` cuts its JSON short."""

    name: str
    arguments: Mapping[str, Any]
    broken: bool = False

    def text(self) -> str:
        """As the toy model's grammar writes it."""
        body = json.dumps({"name": self.name, "arguments": dict(self.arguments)}, ensure_ascii=False)
        return f"<tool_call>\n{body[:-3] if self.broken else body}\n</tool_call>"


Step: TypeAlias = str | Sequence[str | Tool]
"""A reply: text, or texts and calls."""


@dataclass(frozen=True, slots=True)
class Once:
    """A plan of two steps: ``first`` until the conversation has it, then ``last``. For a history of which an
    agent may have kept any number of replies."""

    first: Step
    last: Step


Plan: TypeAlias = Sequence[Step] | Once


@dataclass(frozen=True, slots=True)
class Job:
    """What an agent is to do, and what happens to it meanwhile."""

    prompts: tuple[str, ...]
    limits: Mapping[str, int] = field(default_factory=dict)
    """Of the proxy's session; its context window is what the agent is told, too."""
    faults: tuple[Fault, ...] = ()
    cuts: Mapping[int, int] = field(default_factory=dict)
    """Model call -> the events of its stream that the agent gets."""
    kill_first: bool = False
    """The first turn is cancelled once the engine samples."""


@dataclass(slots=True)
class Script:
    """The plans of one scenario, by name."""

    plans: Mapping[str, Plan]
    summary: str = "What was done so far was done well."
    asked: list[str] = field(default_factory=list)
    """For each reply, the plan and the number of its step."""

    def reply(self, prompt: str) -> str:
        """The reply to a prompt in the toy template's text."""
        parts = _ROLE.split(prompt)[1:]
        turns = [(role, _RESULT.sub("", text)) for role, text in zip(parts[::2], parts[1::2], strict=True)]
        order = list(self.plans)
        named = [
            (order.index(match[1]), index)
            for index, (role, text) in enumerate(turns)
            if role == "user" or self.summary in text  # some keep the summary as the model's own words
            for match in _NAMED.finditer(text)
            if match[1] in self.plans
        ]
        asked = turns[-2][1] if turns[-2][0] == "user" else ""
        new = any(place == len(turns) - 2 for _, place in named)
        if "You can call these tools:" not in parts[1] or (_SUMMARY.search(asked) and not new):
            self.asked.append("summary")
            return _thinking("summing up") + self.summary
        if not named:
            self.asked.append("unplanned")
            return UNPLANNED
        newest, place = max(named)
        name = order[newest]
        later = [text for role, text in turns[place + 1 : -1] if role == "assistant"]
        step, said = _next(self.plans[name], later)
        self.asked.append(f"{name}.{step}")
        said_now = _written(said)
        ids = [match for result in _RESULT.findall(prompt) for match in _REMEMBERED.findall(result)]
        return _thinking(f"step {step} of {name}") + said_now.replace("@id@", ids[-1] if ids else "")


def _next(plan: Plan, later: Sequence[str]) -> tuple[int, Step]:
    """The step that comes after these replies, and its number."""
    if isinstance(plan, Once):
        done = any(_written(plan.first) in text for text in later)
        return int(done), plan.last if done else plan.first
    return len(later), plan[min(len(later), len(plan) - 1)]


def _thinking(text: str) -> str:
    return f"<think>\n{text}\n</think>\n\n"


def _written(step: Step) -> str:
    parts = [step] if isinstance(step, str) else step
    return "\n".join(part if isinstance(part, str) else part.text() for part in parts)


def policy(codec: ChatCodec, script: Script) -> Policy:
    """What the engine samples: the script's reply, in ids that the tokenizer would not choose."""

    def sample(input_ids: list[int], sampling_params: Mapping[str, Any], number: int) -> list[int]:
        ids = odd_ids(codec, script.reply(codec.decode(input_ids)))
        return [*ids, *list(sampling_params.get("stop_token_ids") or ())[:1]]

    return sample
