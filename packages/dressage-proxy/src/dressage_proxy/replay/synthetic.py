"""Conversations of our own in the shapes of the agents' traffic: for each API two turns and a resumed run,
sub-agents, compaction, faults, cut streams, bad calls, and what is an agent's own habit."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any, TypeVar

from dressage_proxy.replay.agents import Agent, Answer, ChatAgent, Made, MessagesAgent, ResponsesAgent
from dressage_proxy.replay.synthetic_beside import (
    copilot,
    copilot_delegates,
    qwen,
    qwen_compacts,
    qwen_forks,
)
from dressage_proxy.replay.traffic import Row

WRITE = Answer("I will write it. ", (Made("shell", {"command": "echo é 😀 > a.txt"}, ""),))
LOOK = Answer(
    "",
    (Made("shell", {"command": "cat a.txt"}, "é"), Made("shell", {"command": "wc a.txt"}, "1", failed=True)),
)
DONE = Answer("All is <done> & said.")
A = TypeVar("A", bound=Agent)


def synthetic_rows() -> list[Row]:
    """All of them, one after the other."""
    rows: list[Row] = []
    for make in (_claude, _codex, _opencode):
        for scene in (_two_runs, _faults, _bad_calls, _subagent, _forks):
            agent = make(scene.__name__.strip("_"))
            scene(agent)
            rows += agent.rows
    scenes: tuple[tuple[Callable[[str], Any], Callable[[Any], None]], ...] = (
        (_claude, _claude_compacts),
        (_claude, _claude_is_cut),
        (_claude, _claude_suggests),
        (_codex, _codex_compacts),
        (_codex, _codex_is_cut),
        (_codex, _codex_patches),
        (_opencode, _opencode_compacts),
        (_opencode, _opencode_titles),
        (_codex, _goes_on),
        (_opencode, _goes_on),
        (_codex, _keeps_a_row),
        (_opencode, _keeps_a_row),
        (_openclaw, _openclaw_adds_what_goes),
        (_openclaw_denied, _two_runs),
        (copilot, copilot_delegates),
        (qwen, qwen_forks),
        (qwen, qwen_compacts),
    )
    for make_one, play in scenes:
        agent = make_one(play.__name__.strip("_"))
        play(agent)
        rows += agent.rows
    return rows


def _claude(run: str) -> MessagesAgent:
    agent = MessagesAgent("claude", run, "You are a coding agent.", path="/v1/messages")
    agent.say("<reminder>\nbe good\n</reminder>\nWrite a file.")
    agent.note("# Environment\nPlatform: linux\n\nToday's date is 2026-11-29.")
    return agent


def _codex(run: str) -> ResponsesAgent:
    agent = ResponsesAgent("codex", run, "You are a coding agent.", path="/v1/responses")
    agent.headers = {"thread-id": run}
    agent.say("<environment_context>\n  <cwd>/w</cwd>\n</environment_context>")
    agent.say("Write a file.")
    return agent


def _opencode(run: str) -> ChatAgent:
    agent = ChatAgent("opencode", run, "You are a coding agent.", path="/v1/chat/completions")
    agent.headers = {"x-session-id": run}
    agent.say("Write a file.")
    return agent


def _openclaw(run: str) -> ChatAgent:
    agent = ChatAgent("openclaw", run, "You are an assistant.", path="/v1/chat/completions")
    agent.say("[10:01] Write a file.")
    return agent


def _openclaw_denied(run: str) -> ChatAgent:
    return _openclaw(run + "_denied")


def _two_runs(agent: Agent) -> None:
    for answer in (WRITE, LOOK, DONE):
        agent.turn(answer)
    agent.run += "2"
    agent.say("Now append a line.")
    for answer in (WRITE, DONE):
        agent.turn(answer)
    agent.say("Thanks.")
    agent.ask()


def _faults(agent: Agent) -> None:
    agent.turn(WRITE)
    for label in ("!429", "!500", "!drop"):
        agent.ask(label)
    agent.turn(LOOK)
    agent.ask("!drop")
    agent.ask()


def _bad_calls(agent: Agent) -> None:
    agent.turn(Answer("An unknown tool. ", (Made("no_such_tool", {"x": 1}, "no such tool", failed=True),)))
    renamed = {"tool": "shell", "error": "the arguments were no JSON"}
    agent.turn(Answer("A broken call. ", (Made("invalid", renamed, "no JSON", failed=True),)))
    agent.turn(Answer("Odd arguments. ", (Made("shell", {"wrong": 5, "text": "  a  \\n é"}, "<b>&amp;"),)))
    agent.turn(Answer("  odd\n\n<tool> text </tool>\n  ", (Made("shell", {"command": "'a'  \""}),), ""))
    agent.ask()


def _subagent(agent: Agent) -> None:
    marks = {
        "claude": {"x-claude-code-agent-id": "a1"},
        "codex": {"x-openai-subagent": "spawn", "x-codex-parent-thread-id": "t0", "thread-id": "t1"},
        "opencode": {"x-parent-session-id": "s0", "x-session-id": "s1"},
    }[agent.agent]
    agent.turn(Answer("Delegating. ", (Made("shell", {"prompt": "search"}, "it is there"),)))
    twins = []
    for number in (1, 2):
        headers = {name: f"{value}{number}" for name, value in marks.items()}
        twins.append(agent.again(headers=headers, system="You search files.", tools=("shell",)))
        twins[-1].say("search")
    for answer in (WRITE, DONE):
        for twin in twins:
            twin.turn(answer)
    agent.turn(WRITE)
    agent.ask()


def _forks(agent: Agent) -> None:
    agent.turn(WRITE)
    kept = copy.deepcopy(agent.items)
    agent.turn(LOOK)
    agent.ask()
    agent.items = kept
    agent.say("No, look elsewhere.")
    agent.turn(LOOK)
    agent.ask()


def _goes_on(agent: Agent) -> None:
    """Turns in a row: nobody says anything, and the agent asks for the next."""
    for answer in (Answer("I will look. "), Answer("Then I will write it. "), WRITE, LOOK, DONE):
        agent.turn(answer)
    agent.turn(DONE)
    agent.say("And then?")
    agent.ask()


def _keeps_a_row(agent: Agent) -> None:
    """A history that was shortened to its last turns, which nobody spoke between."""
    agent.turn(WRITE)
    kept = len(agent.items)
    for answer in (Answer("It is there. "), DONE):
        agent.turn(answer)
    agent.items = agent.items[kept:]
    first, agent.items = agent.items, []
    agent.say("So far: a file was written.")
    agent.items += first
    agent.turn(Answer("And so on."))
    agent.ask()


def _claude_compacts(agent: MessagesAgent) -> None:
    agent.turn(WRITE)
    agent.turn(LOOK)
    kept = copy.deepcopy(agent.items)
    agent.say("CRITICAL: Respond with TEXT ONLY. Summarise the conversation.")
    agent.ask()
    tail = kept[-2:]
    agent.items = []
    agent.say("So far: a file was written.")
    agent.note("Today's date is 2026-11-29.")
    agent.items += tail
    agent.turn(WRITE)
    agent.ask()


def _claude_is_cut(agent: MessagesAgent) -> None:
    agent.turn(Answer("I will write the file. "), "!cutn12")
    agent.say("<reminder>\nYour response above was cut off.\n</reminder>")
    agent.turn(LOOK)
    agent.ask()


def _claude_suggests(agent: MessagesAgent) -> None:
    agent.turn(DONE)
    kept = copy.deepcopy(agent.items)
    agent.say("[SUGGESTION MODE: what would the user say next?]")
    agent.ask()
    agent.items = kept
    agent.say("Go on.")
    agent.turn(WRITE)
    agent.ask()


def _codex_compacts(agent: ResponsesAgent) -> None:
    agent.turn(WRITE)
    agent.turn(LOOK)
    first = agent.items[:2]
    tools, agent.tools = agent.tools, ()
    agent.say("You are performing a CONTEXT CHECKPOINT COMPACTION. Write a summary.")
    agent.ask()
    agent.tools, agent.items = tools, first
    agent.say("Another agent's summary: a file was written.")
    agent.turn(WRITE)
    agent.ask()


def _codex_is_cut(agent: ResponsesAgent) -> None:
    agent.turn(WRITE, "!cutn22")
    agent.turn(LOOK)
    agent.ask("!cut2")
    agent.items.append({"type": "reasoning", "summary": [], "encrypted_content": "sealedAlone"})
    agent.turn(DONE)
    agent.say("And then?")
    agent.ask()


def _codex_patches(agent: ResponsesAgent) -> None:
    patch = '*** Begin Patch\n*** Add File: a\n+"é" \\ <b>\n*** End Patch\n'
    agent.turn(Answer("", (Made("apply_patch", {"input": patch}, "Done!", freeform=True),)))
    agent.turn(Answer("Spawning.", (Made("spawn", {"message": "search"}, "t1", namespace="agents"),)))
    agent.ask()


def _opencode_compacts(agent: ChatAgent) -> None:
    agent.turn(WRITE)
    agent.turn(LOOK)
    flat = agent.again(system="Anchor the summary.", tools=())
    flat.say("Shorten this.\n\n<conversation>\n" + json.dumps(agent.items) + "\n</conversation>")
    flat.ask()
    agent.items = []
    agent.say("What did we do so far?")
    agent.take(Answer("A file was written.", (), ""))
    agent.say("Go on.")
    agent.turn(WRITE)
    agent.ask()


def _opencode_titles(agent: ChatAgent) -> None:
    title = agent.again(system="You are a title generator. You output a title.", tools=())
    title.say("Generate a title for this conversation:\n")
    title.ask()
    for answer in (WRITE, DONE):
        agent.turn(answer)
    agent.say("More.")
    agent.ask()


def _openclaw_adds_what_goes(agent: ChatAgent) -> None:
    for answer in (WRITE, LOOK, DONE):
        agent.say("<<<BEGIN_INTERNAL_CONTEXT>>> runtime <<<END>>>")
        agent.ask()
        agent.items.pop()
        agent.take(answer)
    agent.say("[10:02] And now?")
    agent.ask()
