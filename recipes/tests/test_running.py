import json
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from dressage_proxy.client import ControlError
from dressage_recipes import running
from dressage_recipes.cli import main
from dressage_recipes.errors import RecipeError, UsageError
from dressage_recipes.local.config import load_config
from dressage_recipes.local.summary import Summary
from dressage_recipes.running import checked_folder, find_model
from dressage_sandbox import UserNamespacesForbidden
from dressage_segments import FailureClass, Final, final_to_record, finalize
from dressage_segments.synthetic import SyntheticSession
from dressage_store import FilesStore
from safetensors import SafetensorError


def ignore(_event):
    return None


@pytest.fixture
def model_folder(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (folder / name).write_text("{}")
    (folder / "tokenizer_config.json").write_text('{"chat_template": "x"}')
    return folder


def test_a_complete_folder_is_taken(model_folder, tmp_path):
    assert find_model(str(model_folder), tmp_path, ignore) == model_folder


def test_a_template_in_a_file_of_its_own_will_do(model_folder):
    (model_folder / "tokenizer_config.json").unlink()
    (model_folder / "chat_template.jinja").write_text("x")
    assert checked_folder(model_folder) == model_folder


@pytest.mark.parametrize(
    ("lacks", "named"),
    [
        ("config.json", "config.json"),
        ("model.safetensors", "weights"),
        ("tokenizer.json", "tokenizer.json"),
        ("tokenizer_config.json", "chat template"),
    ],
)
def test_what_a_folder_lacks_is_named_with_the_fix(model_folder, lacks, named):
    (model_folder / lacks).unlink()
    with pytest.raises(UsageError, match=named) as refused:
        checked_folder(model_folder)
    assert refused.value.fix


def test_a_file_that_cannot_be_read_is_named(model_folder, monkeypatch):
    readable = os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode: path.suffix != ".safetensors" and readable(path, mode)
    )
    with pytest.raises(UsageError, match=r"model\.safetensors cannot be read") as refused:
        checked_folder(model_folder)
    assert "chmod" in refused.value.fix


@pytest.mark.parametrize("name", ["nowhere", "./no/where", "/no/where", "a/b/c"])
def test_a_model_that_is_not_there_is_refused(name, tmp_path):
    with pytest.raises(UsageError, match="no such folder"):
        find_model(name, tmp_path, ignore)


def test_a_refused_run_leaves_no_empty_folder(tmp_path, capsys):
    assert main(["demo", "--model", "nowhere", "--out", str(tmp_path / "run")]) == 2
    assert "--model nowhere" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_hubs_name_is_left_to_transformers(tmp_path):
    assert find_model("owner/name", tmp_path, ignore) == "owner/name"


def test_the_tiny_model_needs_no_folder(tmp_path):
    assert find_model("tiny", tmp_path, ignore) is None


@pytest.fixture
def scripted(monkeypatch):
    """Put a scripted run in the place of the loop: it stores one session and returns a summary."""
    seen = []

    def put(*, error=None, sampled=False):
        def run(config, *, on_event, setup_seconds):
            seen.append(config)
            if sampled:
                _store_session(config.out / "store")
            if error is not None:
                raise error
            _store_session(config.out / "store")
            (config.out / "summary.json").write_text("{}")
            return Summary(
                reward_first=0.25,
                reward_last=0.75,
                rewards=(0.25, 0.75),
                steps=2,
                seconds=3.0,
                setup_seconds=setup_seconds,
                sampled_tokens=3,
                trained_tokens=3,
                lost_tokens={},
                seed=config.seed,
                model="tiny",
                cold_start={"reward": 0.2},
                logprob_gap_max=0.0,
                peak_rss_mib=1.0,
                failure_classes={},
                versions={},
            )

        monkeypatch.setattr(running, "run_demo", run)
        return seen

    return put


def _store_session(root):
    session = SyntheticSession("a")
    session.turn([1, 2, 3], [10, 11, 12], keys=["q"])
    final = Final(1, FailureClass.COMPLETED, {"reward": 1.0})
    with FilesStore(root, retain=True) as store:
        for record in [*session.log, final_to_record(final)]:
            store.append("a", record)
        store.put(finalize(session.tree, final))


def test_a_demo_ends_with_curve_verdict_folder_and_how_to_look(scripted, tmp_path, capsys, monkeypatch):
    seen = scripted()
    monkeypatch.setenv("DRESSAGE_SETUP_SECONDS", "12.5")
    out = tmp_path / "run"
    assert main(["demo", "--seed", "7", "--steps", "2", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "0.25 over the first 2 steps, 0.75 over the last 2" in said
    assert "set-up 12 s, run 3 s" in said
    assert "P1 to P5 proven for 100% of the trained tokens" in said
    assert said.rstrip().endswith(f"audit {out}")
    assert (out / "reward.png").is_file()
    assert (seen[0].seed, seen[0].steps, seen[0].out) == (7, 2, out)


def test_a_model_folder_is_trained_with_the_settings_for_pretrained_weights(
    scripted, tmp_path, model_folder, capsys
):
    seen = scripted()
    assert main(["demo", "--model", str(model_folder), "--out", str(tmp_path / "run")]) == 0
    assert seen[0].model.path == str(model_folder)
    assert seen[0].tasks.protocol == "text"


def test_a_recipes_file_is_run(scripted, tmp_path, capsys):
    seen = scripted()
    file = tmp_path / "mine.toml"
    file.write_text(f"steps = 3\nout = {json.dumps(str(tmp_path / 'run'))}\n[tasks.weights]\nread = 1.0\n")
    assert main(["train", str(file)]) == 0
    assert seen[0].steps == 3


def test_a_recipe_never_writes_over_an_earlier_run(scripted, tmp_path, capsys):
    seen = scripted()
    file = tmp_path / "mine.toml"
    file.write_text(f"out = {json.dumps(str(tmp_path))}\n[tasks.weights]\nread = 1.0\n")
    assert main(["train", str(file)]) == 2
    assert f"out {tmp_path}: the folder is not empty" in capsys.readouterr().err
    assert not seen


def test_a_wrong_field_of_a_recipe_is_named(tmp_path, capsys):
    file = tmp_path / "mine.toml"
    file.write_text("stepz = 3\n[tasks.weights]\nread = 1.0\n")
    assert main(["train", str(file)]) == 2
    assert "stepz" in capsys.readouterr().err


def test_forbidden_namespaces_are_one_line_with_the_fix(scripted, tmp_path, capsys):
    inner = UserNamespacesForbidden("user namespaces are not allowed here. To fix: sysctl -w x=1")
    scripted(error=ExceptionGroup("tasks", [ExceptionGroup("inner", [inner])]))
    assert main(["demo", "--out", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "sysctl -w x=1" in said
    assert "dressage doctor" in said


def test_an_error_of_the_recipe_keeps_its_fix_inside_groups(scripted, tmp_path, capsys):
    scripted(error=ExceptionGroup("tasks", [RecipeError("the port is taken", fix="name another")]))
    assert main(["demo", "--out", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err == "dressage: the port is taken; name another\n"


def test_a_stopped_run_says_where_it_lies(scripted, tmp_path, capsys):
    scripted(error=KeyboardInterrupt(), sampled=True)
    out = tmp_path / "a run"
    assert main(["demo", "--out", str(out)]) == 130
    said = capsys.readouterr()
    assert f"run      {out}" in said.out
    assert f"audit '{out}'" in said.out  # as a shell takes it
    assert said.err == "dressage: stopped\n"


def test_a_run_that_is_stopped_before_it_sampled_anything_leaves_nothing(scripted, tmp_path, capsys):
    scripted(error=KeyboardInterrupt())
    out = tmp_path / "run"
    assert main(["demo", "--out", str(out)]) == 130
    assert "nothing was sampled yet" in capsys.readouterr().out
    assert not out.exists()


def test_out_and_seed_of_the_command_line_take_the_place_of_the_recipes(scripted, tmp_path, capsys):
    recipe = tmp_path / "recipe.toml"
    (tmp_path / "file").write_text("")
    recipe.write_text(f'seed = 3\nout = "{tmp_path / "file"}"\n[tasks.weights]\nread = 1')
    seen = scripted()
    assert main(["train", str(recipe), "--out", str(tmp_path / "run"), "--seed", "9"]) == 0
    assert (seen[0].out, seen[0].seed) == (tmp_path / "run", 9)
    assert main(["train", str(recipe)]) == 2
    assert f"out {tmp_path / 'file'}: File exists" in capsys.readouterr().err


def test_every_field_can_be_printed_and_is_a_recipe(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["train", "--print-defaults"])
    assert ended.value.code == 0
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(capsys.readouterr().out)
    assert load_config(recipe).model_copy(update={"out": Path("x")}) == load_config("demo").model_copy(
        update={"out": Path("x")}
    )


def test_a_terminal_that_lacks_characters_gets_others(tmp_path):
    plain = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    code = "from dressage_recipes import cli; cli._say_anything(); print(chr(0x2581))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=plain, capture_output=True, check=True, timeout=60
    )
    assert done.stdout == b"\\u2581\n"


@pytest.mark.parametrize(
    "error",
    [
        ControlError(500, "internal", "the store is not writable"),
        httpx.ConnectError("all connection attempts failed"),
        OSError(28, "No space left on device"),
        FloatingPointError("the gradient is not finite"),
        SafetensorError("I/O error: No space left on device"),
        ExceptionGroup("two", [ExceptionGroup("one", [httpx.ReadTimeout("")])]),
    ],
)
def test_what_goes_wrong_outside_is_told_in_a_line_that_names_the_logs(scripted, tmp_path, capsys, error):
    scripted(error=error)
    assert main(["demo", "--out", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert said[-1].startswith("dressage: the run ended early (")
    assert said[-1].endswith(f"look into {tmp_path / 'run' / 'logs'}")
    assert "Traceback" not in "".join(said)


def test_a_defect_of_ours_keeps_its_traceback(scripted, tmp_path):
    scripted(error=ExceptionGroup("one", [KeyError("a bug")]))
    with pytest.raises(KeyError, match="a bug"):
        main(["demo", "--out", str(tmp_path / "run")])
