"""Tasks of one's own: what the documentation shows runs, and what is wrong is named before anything runs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from dressage_blackbox_server import CODEX
from dressage_paddock import BlackboxConfig, GraderOnly, Task, TaskLimits, TextCallProtocol
from dressage_paddock.fake import ScriptedGateway, say
from dressage_recipes import TaskFamily, UsageError
from dressage_recipes.cli import main
from dressage_recipes.local.config import LocalConfig, TaskSet, load_config
from dressage_recipes.local.dataset import load_family, load_own_tasks
from dressage_recipes.local.policy import make_tiny
from dressage_recipes.local.work import open_source
from dressage_sandbox.fake import FakeProvider

GUIDE = Path(__file__).parents[2] / "docs" / "own-tasks.md"
FAMILY = """
from dressage_paddock import Task, TaskLimits
from dressage_recipes import TaskFamily

def task(row):
    return Task(row["id"], prompt=row["asked"], limits=TaskLimits(max_turns=row.get("turns", 16)))

async def grade(view):
    return 1.0

family = TaskFamily(task, grade)
"""
ROW = '{"id": "a", "asked": "q"}\n'


def make_task(row):
    return Task(row["id"], prompt="p")


async def grade(view):
    return 1.0


def config(**tasks: object) -> LocalConfig:
    raw = {"model": {"path": "x"}, "tasks": tasks, "rollouts": {"prompts": 2, "group": 2}}
    return LocalConfig.model_validate(raw)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(FAMILY)
    (tmp_path / "rows.jsonl").write_text(ROW)
    return tmp_path


def own(folder: Path) -> TaskSet:
    return TaskSet(family=str(folder / "mine.py"), dataset=str(folder / "rows.jsonl"))


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ("", "rows.jsonl: holds no row"),
        ("\n \r\n", "rows.jsonl: holds no row"),
        (ROW + "\n" + ROW, "rows.jsonl:3: instance_id 'a' is that of line 1 too"),
        (ROW + "{x}", "rows.jsonl:2: is not JSON"),
        ("[1]", "rows.jsonl:1: is a JSON list"),
        ('{"id": "a"}', "rows.jsonl:1: TaskFamily.task raised KeyError: 'asked'"),
        ('{"id": 1, "asked": "q"}', "rows.jsonl:1: .*instance_id is int"),
        ('{"id": "a", "asked": 1}', "rows.jsonl:1: .*prompt is int"),
        ('{"id": "a", "asked": ""}', "rows.jsonl:1: .*give either prompt or messages"),
        (
            '{"id": "a", "asked": "q", "turns": 9}',
            "limits.max_turns is 9, and tasks.max_turns of",
        ),
    ],
)
def test_what_is_wrong_in_a_dataset_is_named_by_its_line(folder: Path, rows: str, told: str) -> None:
    (folder / "rows.jsonl").write_text(rows)
    with pytest.raises(UsageError, match=told) as refused:
        load_own_tasks(own(folder))
    assert refused.value.fix


def test_a_dataset_may_have_a_byte_order_mark_blank_lines_and_any_line_separator_in_its_text(
    folder: Path,
) -> None:
    text = "\ufeff" + ROW + "\r\n" + '{"id": "b", "asked": "x\u2028y\\nz"}'
    (folder / "rows.jsonl").write_text(text, encoding="utf-8")
    tasks = load_own_tasks(own(folder)).tasks
    assert [task.prompt for task in tasks] == ["q", "x\u2028y\nz"]
    assert {task.limits.max_turns for task in tasks} == {4}


def test_a_familys_change_of_folder_is_its_own(folder: Path) -> None:
    (folder / "mine.py").write_text("import os\nos.chdir('/')" + FAMILY)
    here = Path.cwd()
    load_own_tasks(own(folder))
    assert Path.cwd() == here


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x = = 1", r"SyntaxError"),
        ("\nimport not_there", r"ModuleNotFoundError: No module named 'not_there' \(line 2\)"),
        ("import sys\nsys.exit(3)", r"SystemExit: 3 \(line 2\)"),
        ("", "family is missing"),
        ("family = 3", "family is int"),
        (
            "from dressage_recipes import TaskFamily\nfamily = TaskFamily(print)",
            "TaskFamily.grade is missing",
        ),
    ],
)
def test_what_is_wrong_in_a_familys_file_is_named(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "bad.py").write_text(text)
    with pytest.raises(UsageError, match=told):
        load_family(str(tmp_path / "bad.py"))


def test_a_family_is_found_by_file_and_name_by_module_and_with_what_lies_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "beside_it.py").write_text(FAMILY)
    (tmp_path / "ours.py").write_text("from beside_it import family as other")
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    assert isinstance(load_family(f"{tmp_path / 'ours.py'}:other"), TaskFamily)
    assert isinstance(load_family("beside_it:family"), TaskFamily)
    with pytest.raises(UsageError, match="no_such_module"):
        load_family("no_such_module:family")
    with pytest.raises(UsageError, match="no such file"):
        load_family(str(tmp_path / "gone.py"))


async def async_task(row):
    return make_task(row)


def plain_grade(view):
    return 1.0


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"task": 3, "grade": grade}, "TaskFamily.task is int"),
        ({"task": async_task, "grade": grade}, "TaskFamily.task is async"),
        ({"task": make_task}, "TaskFamily.grade is missing"),
        ({"task": make_task, "grade": plain_grade}, "TaskFamily.grade is not async"),
        ({"task": make_task, "grade": grade, "tools": [1]}, "TaskFamily.tools is list"),
        ({"task": make_task, "grade": grade, "tools": (1,)}, "TaskFamily.tools: the tool 1: name is missing"),
        (
            {
                "task": make_task,
                "grade": grade,
                "program": BlackboxConfig(args=("a",)),
                "protocol": TextCallProtocol(),
            },
            "TaskFamily.protocol is for the loop",
        ),
        (
            {"task": make_task, "grade": grade, "adapter": CODEX},
            "TaskFamily.adapter 'codex' is for a program",
        ),
        ({"task": make_task, "grade": grade, "adapter": "codex"}, "TaskFamily.adapter is str"),
        ({"task": make_task, "grade": grade, "program": BlackboxConfig()}, "TaskFamily.program: config.args"),
    ],
)
def test_a_part_that_cannot_be_what_it_stands_for_is_named(fields: dict[str, object], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        TaskFamily(**fields)  # type: ignore[arg-type]


async def test_a_known_agent_is_driven_as_its_adapter_says(folder: Path) -> None:
    imports = "from dressage_blackbox_server import CODEX\nfrom dressage_paddock import BlackboxConfig\n"
    fields = 'adapter=CODEX, program=BlackboxConfig(args=("--more",), context_tokens=4321)'
    text = FAMILY.replace("TaskFamily(task, grade)", f"TaskFamily(task, grade, {fields})")
    (folder / "mine.py").write_text(imports + text)
    source = open_source(config(**own(folder).model_dump(exclude={"weights"})))
    (work,) = source.draw(1, 1)
    provider, gateway = FakeProvider(), ScriptedGateway([say("x")])
    async with gateway.client() as http:
        await source.paddock(provider, gateway, http).run(work.task, grade)
    (box,) = provider.created
    assert box.calls[0].command[:3] == ("codex", "exec", "--json")
    assert "--more" in box.calls[0].command
    assert b"model_context_window = 4321" in b"".join(box.files.values())


@pytest.mark.parametrize(
    ("tasks", "told"),
    [
        ({"family": "a.py"}, "family and dataset go together"),
        ({"dataset": "a"}, "family and dataset go together"),
        ({}, "either weights .* or a family"),
        ({"family": "a.py", "dataset": "a", "weights": {"read": 1}}, "either weights .* or a family"),
        ({"weights": {"read": 0}}, "weights are all 0"),
        ({"weights": {"read": -1}}, "greater than or equal to 0"),
        ({"weights": {"read": float("nan")}}, "finite"),
        ({"weights": {"read": 1}, "timeout_s": float("inf")}, "finite"),
    ],
)
def test_what_tasks_cannot_say_is_refused(tasks: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        config(**tasks)


def test_the_tiny_model_is_refused_for_tasks_that_it_never_saw() -> None:
    with pytest.raises(ValueError, match=r"needs model\.path"):
        LocalConfig.model_validate({"tasks": {"family": "a.py", "dataset": "b"}})


def test_text_calls_without_the_tool_that_they_go_to_are_refused(folder: Path) -> None:
    (folder / "mine.py").write_text(FAMILY.replace("grade)", "grade, tools=())"))
    tasks = own(folder).model_dump() | {"protocol": "text"}
    with pytest.raises(UsageError, match=r"calls go to the tool 'shell'.*TaskFamily\.protocol"):
        open_source(config(**tasks))


def test_each_row_comes_once_an_epoch_in_an_order_that_the_seed_decides(folder: Path) -> None:
    rows = [json.dumps({"id": f"row-{n}", "asked": "q"}) for n in range(5)]
    (folder / "rows.jsonl").write_text("\n".join(rows))

    def drawn(seed: int, **changes: object) -> list[str]:
        tasks = own(folder).model_dump() | changes
        source = open_source(config(**tasks).model_copy(update={"seed": seed}))
        return [work.task.instance_id for step in range(5) for work in source.draw(step, 3)]

    first = drawn(1)
    for epoch in range(3):
        assert sorted(first[5 * epoch : 5 * epoch + 5]) == [f"row-{n}" for n in range(5)]
    assert first == drawn(1) != drawn(2)
    assert drawn(1, shuffle=False) == [f"row-{n}" for n in range(5)] * 3


def test_paths_of_a_recipe_are_beside_it_or_under_home(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/her")
    recipe = folder / "recipe.toml"
    recipe.write_text(
        'out = "~/runs"\n[model]\npath = "~/model"\n[tasks]\nfamily = "mine.py:other"\n'
        'dataset = "rows.jsonl"\n'
    )
    read = load_config(recipe)
    assert (str(read.out), read.model.path) == ("/home/her/runs", "/home/her/model")
    assert read.tasks.family == f"{folder / 'mine.py'}:other"
    assert read.tasks.dataset == str(folder / "rows.jsonl")
    recipe.write_text('[model]\npath = "x"\n[tasks]\nfamily = "pkg.mod"\ndataset = "/rows"\n')
    assert load_config(recipe).tasks.family == "pkg.mod"


def test_limits_that_only_a_family_knows_stay_its_own(folder: Path) -> None:
    text = FAMILY.replace('max_turns=row.get("turns", 16)', "tool_timeout_s=3.0")
    (folder / "mine.py").write_text(text)
    (task,) = load_own_tasks(own(folder)).tasks
    assert task.limits == TaskLimits(max_turns=4, max_tokens=48, timeout_s=60.0, tool_timeout_s=3.0)
    assert task.grader == GraderOnly()


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.S)


def written(folder: Path) -> Path:
    """The guide's files as it says, with a tiny model and few steps in place of its own; gives the recipe."""
    for text in (*blocks("python"), *blocks("toml")):
        (folder / text.split("\n", 1)[0].removeprefix("# ")).write_text(text, encoding="utf-8")
    (folder / "sums.jsonl").write_text(blocks("json")[0], encoding="utf-8")
    tiny = load_config("demo").model_dump()
    tiny["model"] |= {"hidden": 32, "feed_forward": 64, "heads": 2, "vocabulary": 480}
    make_tiny(LocalConfig.model_validate(tiny), folder / "tiny")
    recipe = folder / "sums.toml"
    text = recipe.read_text(encoding="utf-8")
    for old, new in (
        ('"smollm2"', f'"{folder / "tiny"}"\nuncertified = "tiny"'),
        ("steps = 12", 'steps = 1\ntracker = "none"'),
        ("prompts = 4", "prompts = 2"),
        ("group = 8", "group = 2"),
        ("threads = 2", "threads = 1"),
    ):
        assert old in text
        text = text.replace(old, new)
    recipe.write_text(text, encoding="utf-8")
    return recipe


@pytest.mark.alone
@pytest.mark.parametrize("family", ["sums.py", "program.py"])
def test_the_guides_files_train_as_they_stand(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = written(tmp_path)
    recipe.write_text(recipe.read_text().replace('"sums.py"', f'"{family}"'))
    assert main(["train", str(recipe)]) == 0, capsys.readouterr().err
    assert "audit: holds" in capsys.readouterr().out
    run = tmp_path / "runs" / "sums"
    assert not (run / "failures.jsonl").exists(), (run / "failures.jsonl").read_text()
    assert json.loads((run / "summary.json").read_bytes())["failure_classes"].keys() <= {
        "completed",
        "truncated",
    }
    monkeypatch.setattr("sys.argv", ["samples.py", str(run)])
    exec(compile((tmp_path / "samples.py").read_text(), "samples.py", "exec"), {})
    assert len(capsys.readouterr().out.splitlines()) >= 4


@pytest.mark.alone
def test_a_step_that_no_grader_could_judge_ends_the_run_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = written(tmp_path)
    broken = (tmp_path / "sums.py").read_text().replace('values["answer"]', 'values["anwser"]')
    (tmp_path / "sums.py").write_text(broken)
    recipe.write_text(recipe.read_text().replace("group = 2", "group = 2\nattempts = 1"))
    assert main(["train", str(recipe)]) == 2
    said = capsys.readouterr()
    assert "no rollout of step 1 could be counted: 4 of 4 failures are infrastructure at grade" in said.err
    assert "KeyError: 'anwser'" in said.err
    assert said.out.count("KeyError: 'anwser'") == 1  # told once, though it happened four times
    lines = (tmp_path / "runs" / "sums" / "failures.jsonl").read_text().splitlines()
    assert [json.loads(line)["code"] for line in lines] == ["grader_failed"] * 4
