"""Calls under ids that nobody gave the client are known by what they say, also where the history changed."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest


def system(text: str) -> dict[str, str]:
    return {"role": "system", "content": text}


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


class Renamer:
    """A client that gives every call an id of its own, the same each time."""

    def __init__(self, rig: Any, session: str, shell: Any) -> None:
        self.rig, self.session, self.tools = rig, session, [shell]
        self.history: list[Any] = [system("Be good."), user("go")]

    async def turn(self, *more: Any) -> None:
        """Ask, and note the reply and a result for each of its calls."""
        message = (
            (await self.rig.chat(self.session, *self.history, *more, tools=self.tools)).choices[0].message
        )
        said: dict[str, Any] = {"role": "assistant", "content": message.content or ""}
        results = []
        for made in message.tool_calls or ():
            own = f"toolu_{sum(len(one.get('tool_calls', ())) for one in self.history) + len(results)}"
            function = {"name": made.function.name, "arguments": made.function.arguments}
            said.setdefault("tool_calls", []).append({"id": own, "type": "function", "function": function})
            results.append({"role": "tool", "tool_call_id": own, "content": f"result of {own}"})
        self.history += [said, *(results or [user("on")])]

    def holds_all(self) -> bool:
        """Whether the last prompt has the sampled ids of each turn that it sends back, once."""
        prompt = bytes(np.asarray(self.rig.engine.requests[-1].input_ids, np.int32))
        sampled = [bytes(np.asarray(one.output_ids, np.int32)) for one in self.rig.engine.requests[:-1]]
        return [prompt.count(ids) for ids in sampled] == [1] * len(sampled)


CHANGES = {
    "another system prompt": lambda client: client.history.__setitem__(0, system("Be better.")),
    "another tool": lambda client: client.tools.append(named(client.tools[0], "more")),
    "cleared results": lambda client: [
        message.update(content="[cleared]") for message in client.history if message["role"] == "tool"
    ],
    "a summary before them": lambda client: client.history.insert(1, user("Summary: much was done.")),
}


def named(tool: Any, name: str) -> Any:
    other = copy.deepcopy(tool)
    other["function"]["name"] = name
    return other


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
async def test_c31_calls_under_other_ids_are_their_sampled_ids_though_the_history_changed(
    rig, shell, call, change
):
    rig.script(
        "<think>\nfirst\n</think>\n\nI look." + call(n=1) + call(n=2),
        "<think>\nagain\n</think>\n\nI look." + call(n=1) + call(n=2),
        "<think>\nthird\n</think>\n\n" + call(n=3),
        "done",
    )
    client = Renamer(rig, await rig.open(), shell)
    for _ in range(3):
        await client.turn()
    change(client)
    await client.turn()
    assert client.holds_all()
    trajectory = await rig.end(client.session)
    assert trajectory.trained_tokens == trajectory.sampled_tokens


async def test_c31_a_message_for_one_request_alone_hides_no_turn(rig, shell, call):
    rig.script(*("<think>\nno " + str(n) + "\n</think>\n\n" + call(n=1) for n in range(3)), "done")
    client = Renamer(rig, await rig.open(), shell)
    for number in range(4):
        await client.turn(user(f"this request is number {number}"))
    assert client.holds_all()


async def test_calls_of_an_example_that_were_sampled_later_too_stay_what_they_are(rig, shell, call):
    rig.script("<think>\nhm\n</think>\n\n" + call(n=1), call(n=2), "done")
    client = Renamer(rig, await rig.open(), shell)
    made = {"id": "example", "type": "function", "function": {"name": "shell", "arguments": '{"n": 1}'}}
    client.history[1:] = [
        user("an example"),
        {"role": "assistant", "content": "", "tool_calls": [made]},
        {"role": "tool", "tool_call_id": "example", "content": "shown"},
        user("now you"),
    ]
    for _ in range(3):
        await client.turn()
        rig.proxy.sessions.live(client.session).recents.clear()
    assert client.holds_all(), "the first turn is there once, and not in the example's place too"
    assert len((await rig.end(client.session)).segments) == 1
