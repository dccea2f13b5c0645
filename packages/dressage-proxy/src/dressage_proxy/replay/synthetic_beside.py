"""Conversations of agents that keep copies and helpers of their own beside the main branch."""

from __future__ import annotations

import copy

from dressage_proxy.replay.agents import Agent, Answer, ChatAgent, Made

_WRITE = Answer("I will write it. ", (Made("shell", {"command": "echo é > a.txt"}, ""),))
_DONE = Answer("All is done.")
_OPENING = "You are a terminal assistant. " + "You finish what you are asked for. " * 8
_INTERACTION = "x-interaction-type"


def copilot(run: str) -> ChatAgent:
    """An agent that says in a header what a call is for, and rebuilds its system prompt."""
    agent = ChatAgent("copilot", run, _OPENING + "There are no notes.", path="/v1/chat/completions")
    agent.headers = {"x-initiator": "user", _INTERACTION: "conversation-user"}
    agent.say("<current_datetime>10:01</current_datetime>\n\nWrite a file.")
    return agent


def qwen(run: str) -> ChatAgent:
    """An agent that says in the messages alone what a call is for."""
    agent = ChatAgent("qwen", run, "You are a coding agent.", path="/v1/chat/completions")
    agent.say("Write a file.")
    return agent


def copilot_delegates(agent: ChatAgent) -> None:
    """Two sub-agents, one of them with the main agent's tools, then its own compaction."""
    agent.turn(_WRITE)
    for system, tools in (("You search.", ("shell",)), (_OPENING + "You are asked for a part.", agent.tools)):
        other = agent.again(system=system, tools=tools, headers={_INTERACTION: "conversation-subagent"})
        other.say("Search it.")
        other.turn(_WRITE)
        other.ask()
    agent.headers = {"x-initiator": "agent"}
    agent.turn(_DONE)
    agent.say("Now shorten what was said.")
    agent.headers = {_INTERACTION: "conversation-compaction"}
    agent.ask()
    agent.rows[-1].body["tool_choice"] = "none"  # type: ignore[index]
    agent.headers, agent.items = {_INTERACTION: "conversation-user"}, []
    agent.system = _OPENING + "There is one note."
    agent.say("What was said before was shortened.")
    agent.say("Go on.")
    agent.turn(_WRITE)
    agent.ask()


def qwen_forks(agent: ChatAgent) -> None:
    """A copy with the whole history, then one that takes notes of it under a prompt of its own."""
    agent.turn(_WRITE)
    fork = agent.again(tools=agent.tools[:1])
    fork.items = copy.deepcopy(agent.items)
    fork.say("<fork-rules>\nSTOP. READ THIS.\n\nYou are a forked worker. You are NOT the main agent.")
    fork.say("Begin.")
    fork.turn(_WRITE)
    fork.ask()
    agent.turn(_DONE)
    notes = agent.again(system="You are now acting as the notes subagent of an assistant.", tools=("edit",))
    notes.items = copy.deepcopy(agent.items)
    notes.say("Note down what lasts.")
    notes.ask()
    agent.say("More.")
    agent.ask()


def qwen_compacts(agent: Agent) -> None:
    """In the history itself, with its tools, where the first way failed."""
    agent.turn(_WRITE)
    agent.turn(_WRITE)
    kept = copy.deepcopy(agent.items)
    short = agent.again(system="You are the part that summarizes a conversation.", tools=())
    short.items = [*kept, {"role": "user", "content": "First, reason. Then, write the <snapshot>."}]
    short.ask()
    agent.say("You are the part that summarizes a conversation that grows too long. Write it down.")
    agent.ask()
    agent.items = []
    agent.say("It was written. Go on from there.")
    agent.items += [{**kept[-2], "content": "Understood."}, kept[-1]]
    agent.turn(_DONE)
    agent.say("More.")
    agent.ask()
