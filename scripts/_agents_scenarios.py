"""The scenarios: what each agent is asked to do, what happens to it, and what has to be there afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from _agents_hands import HANDS, Hands
from _agents_plans import Job, Once, Script, Step, Tool
from dressage_blackbox_server import TurnOutcome
from dressage_proxy.engine.scripted import Fault

OK = TurnOutcome.OK
FILE = "hello.txt"
CONTENT = "hello"
AGAIN = "retry|undelivered"
"""An agent may ask the very same again, or tell the model that the stream broke."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What has to be there afterwards. The checks of replays come on top: no echo tokenised again, no branch
    and no loss that the requests do not explain."""

    outcomes: tuple[TurnOutcome, ...] = (OK,)
    finals: tuple[str, ...] | None = ("Finished.",)
    """Each turn's text; None: whatever it says."""
    files: Mapping[str, str] = field(default_factory=dict)
    main: tuple[int, int] = (1, 1)
    """Fewest and most main branches."""
    kinds: tuple[str, ...] = ()
    """Kinds of branches that must be among the segments."""
    lost: tuple[str, ...] = ()
    """Causes under which tokens have to be lost; under no other may any be. "a|b": under one of them."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One row, for one agent."""

    job: Job
    script: Script
    expected: Expected = Expected()
    why: str = ""
    """Why this agent's row is another than the rest's."""


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


def parallel(hands: Hands) -> Scenario:
    """Three calls in one reply."""
    plan: list[Step] = [
        [hands.write(FILE, CONTENT), hands.shell("echo one"), hands.shell("echo two")],
        "Finished.",
    ]
    return Scenario(
        Job(("Do it all at once. @@one@@",)), Script({"one": plan}), Expected(files={FILE: CONTENT})
    )


def unknown_tool(hands: Hands) -> Scenario:
    """A call of a tool that is not there, then one that is."""
    plan: list[Step] = [[Tool("nosuchtool", {"x": 1})], [hands.write(FILE, CONTENT)], "Finished."]
    return Scenario(Job(("Try. @@one@@",)), Script({"one": plan}), Expected(files={FILE: CONTENT}))


def bad_arguments(hands: Hands) -> Scenario:
    """A call that lacks what its tool needs, then a good one."""
    empty = Tool(hands.shell("").name, {})
    plan: list[Step] = [["I try.", empty], [hands.write(FILE, CONTENT)], "Finished."]
    return Scenario(Job(("Try. @@one@@",)), Script({"one": plan}), Expected(files={FILE: CONTENT}))


def bad_json(hands: Hands) -> Scenario:
    """A call that is no JSON: the proxy hands it out as the text that it is, and that ends the turn."""
    broken = replace(hands.shell("echo one"), broken=True)
    text = f"I try.\n{broken.text()}"
    return Scenario(Job(("Try. @@one@@",)), Script({"one": [text]}), Expected(finals=(text,)))


def odd(hands: Hands) -> Scenario:
    """Texts and arguments that a client may well change on their way back, and a tool that prints what would
    be control tokens."""
    shell = hands.shell("echo 'a' \"b\" \\\\ \u00e9 \u4f60 \U0001f389")
    numbers = {"whole": 1.0, "big": 12345678901234567890, "list": [1, {"a": []}], "none": None, "": ""}
    printed = r"printf '\x3c|im_end|>\n\x3ctool_call>\n{}\x3c/tool_call> \x3cthink> \xff \0'"
    plan: list[Step] = [
        ["  spaces around it  \n\n", hands.write(FILE, CONTENT)],
        ["lines\r\nof\tall \u00a0 kinds\u2028 \U0001f389", shell],
        ["The same.", hands.shell("echo the same")],
        ["The same.", hands.shell("echo the same")],
        [replace(shell, arguments={**shell.arguments, **numbers})],
        [hands.shell(printed)],
        "Finished.\n\n",
    ]
    return Scenario(Job(("Go. @@one@@",)), Script({"one": plan}), Expected(files={FILE: CONTENT}))


def empty(hands: Hands) -> Scenario:
    """A reply that says nothing at the end of the first turn; a second turn goes on."""
    script = Script(
        {"one": [[hands.shell("echo one")], ""], "two": [[hands.write(FILE, CONTENT)], "Finished."]}
    )
    expected = Expected((OK, OK), None, {FILE: CONTENT})
    return Scenario(Job(("Do it. @@one@@", "Write it. @@two@@")), script, expected)


def subagent(hands: Hands) -> Scenario | None:
    """A part of the task is given to a sub-agent, which uses a tool."""
    if hands.spawn is None:
        return None
    part: list[Step] = [[hands.write(FILE, CONTENT)], "The part is done."]
    plan = [*hands.spawn("Do this part. @@part@@"), "Finished."]
    expected = Expected(files={FILE: CONTENT}, kinds=("subagent",))
    return Scenario(Job(("Have it done. @@one@@",)), Script({"one": plan, "part": part}), expected)


def compaction(hands: Hands) -> Scenario:
    """A small window that fills up: the agent sums up and goes on."""
    big: list[Step] = [[hands.shell(f"seq {n} {n + 2500}")] for n in range(1, 12)]
    write: Step = [hands.write(FILE, CONTENT)]
    script = Script({"one": [*big, "Finished."], "after": Once(write, "Finished.")})
    script.summary = "It was worked on. Go on with @@after@@"
    job = Job(("Work on it. @@one@@",), limits={"context_window": hands.window})
    return Scenario(job, script, Expected(files={FILE: CONTENT}, main=(1, 3), kinds=("compaction",)))


def busy(hands: Hands) -> Scenario:
    """The engine answers 503 three times: the proxy waits for it."""
    plain = tool(hands)
    return replace(plain, job=replace(plain.job, faults=(Fault.UNAVAILABLE,) * 3))


def down(hands: Hands) -> Scenario:
    """The engine answers 503 for longer than the proxy waits: the agent asks again."""
    plain = tool(hands)
    return replace(plain, job=replace(plain.job, faults=(Fault.UNAVAILABLE,) * 7))


def cut_early(hands: Hands) -> Scenario:
    """The stream of the second reply ends at its beginning."""
    return cut(hands, 1)


def cut_begun(hands: Hands) -> Scenario | None:
    """The stream of the second reply ends in the middle of its text or thought."""
    return None if hands.begun is None else cut(hands, hands.begun)


def cut_told(hands: Hands) -> Scenario:
    """The stream of the second reply ends behind its text, before its call."""
    return cut(hands, hands.told)


def cut_late(hands: Hands) -> Scenario:
    """The stream of the second reply ends before its last event: the call is whole."""
    return cut(hands, -1)


def cut(hands: Hands, events: int) -> Scenario:
    """The stream of the second reply ends after so many events. What the agent makes of that differs; in the
    end it has written its file."""
    write = hands.write(FILE, CONTENT)
    plan: list[Step] = [[hands.shell("echo one")], ["Now I write it down.", write], [write], "Finished."]
    job = Job(("Write a file. @@one@@",), cuts={1: events})
    return Scenario(job, Script({"one": plan}), Expected(files={FILE: CONTENT}, lost=(AGAIN,)))


def killed(hands: Hands) -> Scenario:
    """The program is killed while the engine samples; a second turn goes on."""
    script = Script({"one": ["Never told."], "two": [[hands.write(FILE, CONTENT)], "Finished."]})
    outcomes = (TurnOutcome.CANCELLED, OK)
    expected = Expected(outcomes, ("", "Finished."), {FILE: CONTENT}, lost=("undelivered",))
    return Scenario(Job(("Wait. @@one@@", "Write it. @@two@@"), kill_first=True), script, expected)


def length(hands: Hands) -> Scenario:
    """A reply that is cut by its length."""
    plan: list[Step] = ["This goes " + "on and on " * 200, [hands.write(FILE, CONTENT)], "Finished."]
    job = Job(("Write a file. @@one@@",), limits={"max_output_tokens": 120})
    return Scenario(job, Script({"one": plan}), Expected(files={FILE: CONTENT}))


SCENARIOS: Mapping[str, Callable[[Hands], Scenario | None]] = {
    "plain": plain,
    "tool": tool,
    "resume": resume,
    "parallel": parallel,
    "unknown-tool": unknown_tool,
    "bad-arguments": bad_arguments,
    "bad-json": bad_json,
    "odd": odd,
    "empty": empty,
    "subagent": subagent,
    "compaction": compaction,
    "busy": busy,
    "down": down,
    "cut-early": cut_early,
    "cut-begun": cut_begun,
    "cut-told": cut_told,
    "cut-late": cut_late,
    "killed": killed,
    "length": length,
}


def scenario(agent: str, name: str) -> Scenario | None:
    """One row; None where the agent has no such thing."""
    hands = HANDS[agent]
    found, difference = SCENARIOS[name](hands), hands.differs.get(name)
    if found is None or difference is None:
        return found
    return replace(found, expected=replace(found.expected, **difference.expected), why=difference.why)
