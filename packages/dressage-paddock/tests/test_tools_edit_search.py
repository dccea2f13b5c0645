"""The tools edit and search in a real sandbox: exact, bounded, the same each time, and clear in refusal."""

from __future__ import annotations

import json

import pytest
from dressage_paddock import EditTool, ToolBounds, default_tools
from dressage_paddock.toolcalls import call_tool
from dressage_sandbox import SandboxGone, SandboxSpec
from dressage_sandbox.fake import FakeSandbox, completed
from hypothesis import given
from hypothesis import strategies as st

BOUNDS = ToolBounds(timeout_s=10.0, output_bytes=200)


@pytest.fixture
async def box(bubblewrap):
    return await bubblewrap.create(SandboxSpec())


async def do(sandbox, name, bounds=BOUNDS, **arguments):
    return await call_tool(default_tools(), sandbox, name, json.dumps(arguments), bounds)


def fake(**files: bytes) -> FakeSandbox:
    held = {f"/workspace/{name}": data for name, data in files.items()}
    return FakeSandbox(SandboxSpec(), lambda s, i: completed(exit_code=1), "s", held)


async def test_an_edit_keeps_the_mode_of_the_file_and_the_link_that_leads_to_it(box):
    await box.write("bin/tool.sh", b"#!/bin/sh\necho old\n", mode=0o755)
    await box.run("ln -s bin/tool.sh link")
    assert await do(box, "edit", path="link", old="echo old", new="echo é") == (
        "replaced 1 place in link",
        False,
    )
    told = await box.run("./link; readlink link; stat -c %a bin/tool.sh")
    assert told.stdout.decode() == "é\nbin/tool.sh\n755\n"


async def test_a_search_follows_the_link_that_it_is_given_and_no_other(box):
    await box.run("mkdir d; echo needle >d/f; ln -s d folder; ln -s d/f file; ln -s d/f d/again")
    assert await do(box, "search", pattern="needle", path="file") == ("./file:1:needle", False)
    assert await do(box, "search", pattern="needle", path="folder") == ("./folder/f:1:needle", False)
    assert await do(box, "search", pattern="needle") == ("./d/f:1:needle", False)


async def test_a_read_far_beyond_any_file_is_the_models_mistake_and_no_end(box):
    await box.write("a", b"x")
    text, mistake = await do(box, "read", path="a", offset=10**30)
    assert mistake
    assert "offset" in text
    assert await do(box, "read", path="a") == ("x", False)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"old": "none"}, "not in a"),
        ({"old": "x"}, "there 3 times"),
        ({"old": "", "new": "z"}, "empty"),
        ({"old": "x", "new": "x"}, "the same"),
        ({"path": "missing"}, "No such file"),
        ({"path": "."}, "directory"),
        ({"all": "yes"}, "'all' is str: give a boolean"),
    ],
)
async def test_an_edit_that_is_not_exact_is_told_and_changes_nothing(arguments, told):
    sandbox = fake(a=b"x x x")
    text, mistake = await do(sandbox, "edit", **{"path": "a", "old": "x x", "new": "y", **arguments})
    assert mistake
    assert told in text
    assert sandbox.files["/workspace/a"] == b"x x x"


async def test_an_edit_of_every_place_and_of_a_file_that_is_no_text():
    sandbox = fake(a=b"x\xffx")
    text, _ = await do(sandbox, "edit", path="a", old="x", new="yy", all=True)
    assert (text, sandbox.files["/workspace/a"]) == ("replaced 2 places in a", b"yy\xffyy")


async def test_a_file_beyond_the_edits_bound_is_refused_and_not_cut():
    sandbox = fake(a=b"x" * 101)
    arguments = json.dumps({"path": "a", "old": "x", "new": "y", "all": True})
    text, mistake = await call_tool([EditTool(max_bytes=100)], sandbox, "edit", arguments, BOUNDS)
    assert mistake
    assert "longer than 100 bytes" in text
    assert len(sandbox.files["/workspace/a"]) == 101


@given(st.binary(max_size=60), st.text(min_size=1, max_size=3), st.text(max_size=3))
async def test_an_edit_replaces_exactly_the_one_place_and_no_other_byte(data, old, new):
    sandbox = fake(a=data)
    text, mistake = await do(sandbox, "edit", path="a", old=old, new=new)
    after = sandbox.files["/workspace/a"]
    if mistake:
        assert after == data, text
    else:
        assert data.count(old.encode()) == 1
        assert after == data.replace(old.encode(), new.encode())


async def test_a_search_gives_matches_by_path_and_line_the_same_each_time(box):
    for name, data in {
        "b.txt": b"one\nfound 1\n", "a/z.txt": b"found 2\nfound 3\n", "a b/it's.txt": b"found 4\n",
        ".git/config": b"found never\n", "bin": b"found\0binary\n", "-n": b"found 5\n",
    }.items():  # fmt: skip
        await box.write(name, data)
    expected = [
        "./-n:1:found 5", "./a b/it's.txt:1:found 4", "./a/z.txt:1:found 2", "./a/z.txt:2:found 3",
        "./b.txt:2:found 1",
    ]  # fmt: skip
    for _ in range(2):
        text, mistake = await do(box, "search", pattern="found [0-9]+")
        assert (text.splitlines(), mistake) == (expected, False)
    assert await do(box, "search", pattern="found 1", path="b.txt") == ("./b.txt:2:found 1", False)
    assert await do(box, "search", pattern="one", path="/workspace/b.txt") == (
        "/workspace/b.txt:1:one",
        False,
    )
    assert await do(box, "search", pattern="absent") == ("[no match]", False)
    assert await do(box, "search", pattern="-n", path="-n") == ("[no match]", False)


async def test_a_search_is_bounded_by_line_and_in_all_and_says_so(box):
    await box.write("wide", b"x" * 100_000)
    await box.write("many", b"match\n" * 100_000)
    text, _ = await do(box, "search", pattern="x", path="wide", bounds=ToolBounds(10.0, 16_000))
    assert len(text) == 400
    text, _ = await do(box, "search", pattern="match")
    assert text.endswith("[cut: more matches follow; narrow the pattern or the path]")
    assert len(text) < 300


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"pattern": "("}, "grep: "),
        ({"pattern": "x", "path": "none"}, "no such file or folder"),
        ({"pattern": ""}, "must not be empty"),
        ({"pattern": "x", "path": ""}, "must not be empty"),
        ({"pattern": "a\0b"}, "NUL"),
    ],
)
async def test_a_search_that_cannot_be_done_is_told_to_the_model(box, arguments, told):
    text, mistake = await do(box, "search", **arguments)
    assert mistake, text
    assert told in text


async def test_a_pattern_and_a_path_are_words_and_never_a_shell_line(box):
    await box.write("a", b"$(touch pwned) `touch pwned`; touch pwned\n")
    text, _ = await do(box, "search", pattern=r"\$\(touch pwned\)", path="a")
    assert text.startswith("./a:1:$(touch")
    await do(box, "search", pattern="x'; touch pwned; '", path="$(touch pwned)")
    await do(box, "edit", path="a", old="`touch pwned`", new="$(touch pwned)")
    assert [entry.name for entry in await box.list(".")] == ["a"]


async def test_a_dead_sandbox_is_raised_not_told():
    sandbox = fake(a=b"1")
    await sandbox.terminate()
    for name, arguments in (
        ("edit", {"path": "a", "old": "1", "new": "2"}),
        ("search", {"pattern": "1"}),
    ):
        with pytest.raises(SandboxGone):
            await do(sandbox, name, **arguments)


async def test_an_edit_of_a_file_whose_name_ends_in_a_line_end_changes_that_file(bubblewrap):
    box = await bubblewrap.create(SandboxSpec())
    await box.write("name\n", b"old", mode=0o755)
    await box.write("name", b"old")
    assert "1 place" in await EditTool().call(
        box, {"path": "name\n", "old": "old", "new": "new"}, ToolBounds()
    )
    assert (await box.read("name\n"), await box.read("name")) == (b"new", b"old")
    assert (await box.run("stat -c %a name*")).stdout == b"644\n755\n"
