"""Tool hooks: told of each call and result once, in order; a required one holds the reply back."""

import asyncio
import sys
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from types import SimpleNamespace

import pytest
from dressage_proxy import ConfigError, Proxy
from dressage_proxy.hooks import GROUP, Hooks, load_hooks


@dataclass
class Recorder:
    name: str = "recorder"
    order: int = 0
    required: bool = False
    failures: int = 0
    seen: list = field(default_factory=list)
    log: list = field(default_factory=list)

    async def before(self, event):
        await self.note("before", event)

    async def after(self, event):
        await self.note("after", event)

    async def note(self, phase, event):
        self.log.append((self.name, phase))
        if self.failures:
            self.failures -= 1
            raise RuntimeError("not now")
        self.seen.append((phase, event.name, event.arguments, event.result))


def with_hooks(monkeypatch, *hooks):
    build = Proxy.build.__func__
    monkeypatch.setattr(Proxy, "build", classmethod(lambda cls, *args: build(cls, *args, hooks)))


async def conversation(rig, session, shell, call):
    rig.script(call(command="ls"), "done")
    first = await rig.chat(session, "list", tools=[shell])
    message = first.choices[0].message.model_dump(exclude_none=True)
    answer = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "a.txt"}
    await rig.chat(session, "list", message, answer, tools=[shell])


async def test_a_hook_sees_the_call_before_the_agent_and_the_result_before_the_model(
    make_rig, monkeypatch, shell, call
):
    hook = Recorder()
    with_hooks(monkeypatch, hook)
    rig = await make_rig()
    session = await rig.open(labels={"task": "t"})
    await conversation(rig, session, shell, call)
    (before, name, arguments, nothing), after = hook.seen
    assert (before, name, nothing) == ("before", "shell", None)
    assert "ls" in str(arguments)
    assert after == ("after", "shell", arguments, "a.txt")


async def test_hooks_are_told_in_their_order(make_rig, monkeypatch, shell, call):
    log = []
    with_hooks(
        monkeypatch,
        *(Recorder(name=name, order=order, log=log) for name, order in [("b", 1), ("c", 2), ("a", 1)]),
    )
    rig = await make_rig()
    await conversation(rig, await rig.open(), shell, call)
    assert log == [(name, phase) for phase in ("before", "after") for name in "abc"]


async def test_a_failing_hook_that_is_not_required_holds_nothing_up(make_rig, monkeypatch, shell, call):
    hook = Recorder(failures=1)
    with_hooks(monkeypatch, hook)
    rig = await make_rig()
    session = await rig.open()
    await conversation(rig, session, shell, call)
    assert [phase for phase, *_ in hook.seen] == ["after"]
    assert (await rig.end(session)).lost_tokens == {}


async def test_a_failing_required_hook_holds_the_reply_back_and_the_retry_is_told_again(
    make_rig, monkeypatch, shell, call
):
    hook = Recorder(required=True, failures=1)
    with_hooks(monkeypatch, hook)
    rig = await make_rig()
    session = await rig.open()
    rig.script(call(command="ls"))
    body = {"messages": [{"role": "user", "content": "list"}], "tools": [shell]}
    refused = await rig.post(session, body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "hook_failed")
    assert refused.headers["retry-after"] == "1"
    assert (await rig.post(session, body)).status_code == 200
    assert len(hook.seen) == 1
    trajectory = await rig.end(session)
    assert set(trajectory.lost_tokens) == {"undelivered"}
    assert trajectory.trained_tokens == trajectory.sampled_tokens / 2


async def test_a_result_that_comes_again_is_told_once(make_rig, monkeypatch, shell, call):
    hook = Recorder(required=True)
    with_hooks(monkeypatch, hook)
    rig = await make_rig()
    session = await rig.open()
    rig.script(call(command="ls"), "done")
    first = await rig.chat(session, "list", tools=[shell])
    message = first.choices[0].message.model_dump(exclude_none=True)
    answer = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "a.txt"}
    for _ in range(3):
        await rig.chat(session, "list", message, answer, tools=[shell])
    assert [phase for phase, *_ in hook.seen] == ["before", "after"]


async def test_a_hook_that_never_ends_is_a_failed_one():
    class Stuck(Recorder):
        async def note(self, phase, event):
            await asyncio.Event().wait()

    from dressage_proxy.errors import HookError
    from dressage_proxy.hooks import HookMemory
    from dressage_segments import SessionInfo

    hooks = Hooks([Stuck(required=True)], timeout_s=0.05)
    with pytest.raises(HookError, match="recorder failed after call c1"):
        await hooks.after(SessionInfo("s"), {}, HookMemory(), [{"role": "tool", "tool_call_id": "c1"}])


def offer(monkeypatch, value):
    points = [EntryPoint("audit", value, GROUP)]
    monkeypatch.setattr("dressage_proxy.hooks.entry_points", lambda group: points if group == GROUP else [])


def test_an_installed_hook_is_loaded_by_its_name(monkeypatch):
    offer(monkeypatch, "a_package_with_hooks:Recorder")
    monkeypatch.setitem(sys.modules, "a_package_with_hooks", SimpleNamespace(Recorder=Recorder))
    (hook,) = load_hooks(["audit"])
    assert isinstance(hook, Recorder)


def test_an_unknown_hook_or_one_that_is_none_is_refused_by_name(monkeypatch):
    offer(monkeypatch, "builtins:dict")
    with pytest.raises(ConfigError, match="--tool-hook other: no package offers it"):
        load_hooks(["other"])
    with pytest.raises(ConfigError, match="is no ToolHook"):
        load_hooks(["audit"])


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("no_such_module:Hook", "no_such_module:Hook: ModuleNotFoundError"),
        ("builtins:no_such_name", "AttributeError"),
        ("builtins:open", "TypeError"),
    ],
)
def test_a_hook_that_does_not_load_or_fails_is_told_by_its_name(monkeypatch, value, said):
    offer(monkeypatch, value)
    with pytest.raises(ConfigError, match=f"--tool-hook audit: .*{said}"):
        load_hooks(["audit"])


def test_one_name_twice_is_refused():
    with pytest.raises(ConfigError, match="recorder is there twice"):
        Hooks([Recorder(), Recorder()])
