from __future__ import annotations

import pytest
from dressage_sandbox import Sandbox, SandboxGone, SandboxProvider, SandboxSpec
from dressage_sandbox.fake import FakeProvider, FakeSandbox, Invocation, completed
from dressage_sandbox.protocol import RunResult


async def test_results_are_given_out_in_order_and_calls_remembered() -> None:
    provider = FakeProvider([completed("one"), completed(exit_code=3, stderr="bad")])
    box = await provider.create(SandboxSpec(relay="127.0.0.1:1"))
    assert (await box.run("first", env={"A": "1"})).stdout == b"one"
    assert (await box.run(["second"], stdin=b"x")).exit_code == 3
    assert [call.command for call in box.calls] == ["first", ["second"]]
    assert box.calls[0].env == {"A": "1"}
    assert box.relay_url == "http://127.0.0.1:8800"
    with pytest.raises(AssertionError, match="third"):
        await box.run("third")


async def test_a_script_sees_and_changes_files() -> None:
    async def script(sandbox: FakeSandbox, call: Invocation) -> RunResult:
        sandbox.files["/workspace/out"] = sandbox.files["/workspace/in"].upper()
        return completed()

    provider = FakeProvider(script, files={"/workspace/in": b"abc"})
    box = await provider.create(SandboxSpec())
    await box.run("go")
    assert await box.read("out") == b"ABC"


async def test_create_can_fail_first_and_live_sandboxes_are_counted() -> None:
    provider = FakeProvider(errors=[SandboxGone("transient")])
    with pytest.raises(SandboxGone):
        await provider.create(SandboxSpec())
    box = await provider.create(SandboxSpec())
    assert provider.live == [box]
    await provider.close()
    assert provider.live == []
    assert provider.created == [box]


async def test_the_fake_satisfies_the_protocols() -> None:
    provider = FakeProvider()
    assert isinstance(provider, SandboxProvider)
    assert isinstance(await provider.create(SandboxSpec()), Sandbox)
