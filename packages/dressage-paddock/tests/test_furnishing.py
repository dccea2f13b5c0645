"""A grader's fresh sandbox is furnished with what the agent left, whatever it made of what was there."""

from __future__ import annotations

import pytest
from dressage_paddock import FailureClass, GradePlace, Hooks, Task, WhiteboxPaddock
from dressage_paddock.artifacts import Room, collect
from dressage_paddock.fake import ScriptedGateway, call, say
from dressage_sandbox import SandboxSpec
from dressage_sandbox.errors import file_error
from dressage_sandbox.fake import FakeProvider, FakeSandbox, completed


async def graded(provider, command, task, hooks):
    gateway = ScriptedGateway([call("shell", command=command), say("done")])
    async with gateway.client() as http:
        return await WhiteboxPaddock(provider, gateway, http, hooks=hooks).run(task)


async def see(view):
    listed = await view.sandbox.run("find . -type f | sort | xargs head -v -n 1")
    seen.append(listed.stdout.decode())
    return 0.0


seen: list[str] = []


@pytest.mark.parametrize(
    ("files", "command", "left"),
    [
        ({"a.py": b"#\n"}, "rm a.py; mkdir a.py; echo mine >a.py/x", "==> ./a.py/x <==\nmine\n"),
        ({"a.py/x": b"#\n"}, "rm -r a.py; echo mine >a.py", "==> ./a.py <==\nmine\n"),
        ({"a.py": b"#\n", "b": b"b\n"}, "echo mine >a.py", "==> ./a.py <==\nmine\n\n==> ./b <==\nb\n"),
    ],
    ids=["a folder of a file", "a file of a folder", "neither"],
)
@pytest.mark.parametrize("there", ["the task's files", "a snapshot"])
async def test_p8_an_agent_that_turns_a_file_into_a_folder_is_graded_all_the_same(
    bubblewrap, there, files, command, left
):
    hooks = Hooks(grade=see, grade_in=GradePlace.FRESH)
    task = Task("t", prompt="p", files=files, artifacts=("a.py",))
    if there == "a snapshot":
        box = await bubblewrap.create(SandboxSpec())
        for path, data in files.items():
            await box.write(path, data)
        spec = SandboxSpec(snapshot=(await box.snapshot()).id)
        task = Task("t", prompt="p", artifacts=("a.py",), sandbox=spec)
    seen.clear()
    result = await graded(bubblewrap, command, task, hooks)
    assert (result.failure_class, result.reward, seen) == (FailureClass.COMPLETED, 0.0, [left])


class TakesNoArtifact(FakeSandbox):
    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        if path == "/workspace/out" and data == b"left":
            raise file_error(30, path)
        await super().write(path, data, mode=mode)


async def test_p8_an_artifact_that_has_no_place_there_is_named_and_the_rollout_graded(fakes, monkeypatch):
    made = []

    class SecondIsFull(FakeProvider):
        async def create(self, spec):
            box = await super().create(spec)
            made.append(box)
            if len(made) == 2:
                box.__class__ = TakesNoArtifact
            return box

    async def grade(view):
        return float(view.artifacts.cut == ("out",) and not await view.sandbox.list("."))

    parts = fakes(
        [call("write", path="out", content="left"), say("x")],
        provider=SecondIsFull(),
        hooks=Hooks(grade=grade, grade_in=GradePlace.FRESH),
    )
    result = await parts.paddock.run(Task("t", prompt="p", artifacts=("out",)))
    assert (result.failure_class, result.reward) == (FailureClass.COMPLETED, 1.0)
    assert (result.artifacts, result.cut_artifacts) == ({"out": b"left"}, ("out",))


@pytest.mark.parametrize("paths", [("out", "out/b"), ("out/b", "out")])
async def test_of_a_file_that_becomes_a_folder_while_it_is_read_one_is_kept(paths):
    class Changing(FakeSandbox):
        async def read(self, path: str, *, offset: int = 0, max_bytes: int = 1 << 20) -> bytes:
            return path.encode()

    box = Changing(SandboxSpec(), lambda s, i: completed(), "s", {})
    found = await collect(box, paths, Room(100, 1000, 5), "/workspace")
    assert (list(found.files), found.missing) == ([paths[0]], (paths[1],))
