"""The scenarios: what each agent is asked to do, what happens to it, and what has to be there afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from _agents_plans import Script, Step, Tool
from _agents_rig import WORKDIR, Job
from dressage_blackbox_server import TurnOutcome

OK = TurnOutcome.OK
FAILED = TurnOutcome.AGENT_FAILED
FILE = "hello.txt"
CONTENT = "hello"


@dataclass(frozen=True, slots=True)
class Hands:
    """How an agent's own tools are called."""

    shell: Callable[[str], Tool]
    write: Callable[[str, str], Tool]
    spawn: Callable[[str], Sequence[Step]] | None = None
    """The steps by which it has a sub-agent do a prompt."""


HANDS: Mapping[str, Hands] = {
    "claude_code": Hands(
        lambda line: Tool("Bash", {"command": line, "description": "run"}),
        lambda name, text: Tool("Write", {"file_path": f"{WORKDIR}/{name}", "content": text}),
        lambda prompt: [
            [Tool("Agent", {"description": "part", "prompt": prompt, "subagent_type": "general-purpose"})]
        ],
    ),
    "codex": Hands(
        lambda line: Tool("exec_command", {"cmd": line}),
        lambda name, text: Tool("exec_command", {"cmd": f"printf %s '{text}' > {name}"}),
        lambda prompt: [[Tool("multi_agent_v1__spawn_agent", {"message": prompt})]],
    ),
    "opencode": Hands(
        lambda line: Tool("bash", {"command": line, "description": "run"}),
        lambda name, text: Tool("write", {"filePath": f"{WORKDIR}/{name}", "content": text}),
        lambda prompt: [
            [Tool("task", {"description": "part", "prompt": prompt, "subagent_type": "general"})]
        ],
    ),
    "openclaw": Hands(
        lambda line: Tool("exec", {"command": line}),
        lambda name, text: Tool("write", {"path": f"{WORKDIR}/{name}", "content": text}),
    ),
}


@dataclass(frozen=True, slots=True)
class Expected:
    """What has to be there afterwards. The checks of replays come on top: no echo tokenised again, no branch
    and no loss that the requests do not explain."""

    outcomes: tuple[TurnOutcome, ...] = (OK,)
    finals: tuple[str, ...] = ("Finished.",)
    files: Mapping[str, str] = field(default_factory=dict)
    main: tuple[int, int] = (1, 1)
    """Fewest and most main branches."""
    kinds: tuple[str, ...] = ()
    """Kinds of branches that must be among the segments."""
    lost: tuple[str, ...] = ()
    """Causes under which tokens have to be lost; under no other may any be."""
    helpers: bool = False


@dataclass(frozen=True, slots=True)
class Scenario:
    """One row, for one agent."""

    job: Job
    script: Script
    expected: Expected = Expected()


def plain(hands: Hands) -> Scenario:
    """A question and its answer."""
    return Scenario(Job(("Say hello. @@one@@",)), Script({"one": ["Finished."]}))


def tool(hands: Hands) -> Scenario:
    """A call that writes a file, then an answer."""
    plan: list[Step] = [["I write it.", hands.write(FILE, CONTENT)], "Finished."]
    return Scenario(Job(("Write a file. @@one@@",)), Script({"one": plan}), Expected(files={FILE: CONTENT}))


def resume(hands: Hands) -> Scenario:
    """A second turn that goes on with the conversation of the first."""
    script = Script(
        {
            "one": [[hands.write(FILE, CONTENT)], "Finished one."],
            "two": [[hands.shell(f"cat {FILE}")], "Finished two."],
        }
    )
    expected = Expected((OK, OK), ("Finished one.", "Finished two."), {FILE: CONTENT})
    return Scenario(Job(("Write a file. @@one@@", "Read it. @@two@@")), script, expected)


SCENARIOS: Mapping[str, Callable[[Hands], Scenario | None]] = {
    "plain": plain,
    "tool": tool,
    "resume": resume,
}


def scenario(agent: str, name: str) -> Scenario | None:
    """One row; None where the agent has no such thing."""
    return SCENARIOS[name](HANDS[agent])
