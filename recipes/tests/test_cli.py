import signal
import subprocess
import sys

import pytest
from dressage_recipes import cli
from dressage_recipes.cli import main
from dressage_recipes.errors import RecipeError, UsageError
from dressage_store import FilesStore


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["demo", "--steps", "0"], "--steps"),
        (["demo", "--steps", "many"], "--steps"),
        (["demo", "--seed", "-1"], "--seed"),
        (["audit"], "DIR"),
        (["train"], "CONFIG.toml"),
        (["fly"], "fly"),
        ([], "COMMAND"),
    ],
)
def test_wrong_usage_names_what_is_wrong_and_exits_2(capsys, arguments, named):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert named in capsys.readouterr().err


def test_a_full_folder_is_never_written_over(tmp_path, capsys):
    (tmp_path / "precious").write_text("x")
    assert main(["demo", "--out", str(tmp_path)]) == 2
    assert f"--out {tmp_path}: the folder is not empty; name a new one" in capsys.readouterr().err


def test_an_out_under_a_file_is_refused(tmp_path, capsys):
    (tmp_path / "file").write_text("x")
    assert main(["demo", "--out", str(tmp_path / "file" / "run")]) == 2
    assert "--out" in capsys.readouterr().err


def test_a_missing_recipe_is_refused(tmp_path, capsys):
    assert main(["train", str(tmp_path / "no.toml")]) == 2
    assert "no such file" in capsys.readouterr().err


def test_an_odd_setup_time_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("DRESSAGE_SETUP_SECONDS", "soon")
    assert main(["audit", str(tmp_path)]) == 2
    assert "DRESSAGE_SETUP_SECONDS" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"XDG_CACHE_HOME": "/a"}, "/a/dressage/models"),
        ({"HOME": "/b"}, "/b/.cache/dressage/models"),
    ],
)
def test_models_are_kept_in_the_users_cache(env, expected):
    assert str(cli._surroundings(env).cache) == expected


def test_ctrl_c_and_a_polite_end_both_exit_130(monkeypatch, capsys):
    for number in (signal.SIGINT, signal.SIGTERM):

        def interrupted(*_arguments, number=number):
            signal.raise_signal(number)
            raise AssertionError("the signal should have come first")

        monkeypatch.setattr(cli, "_audit", interrupted)
        assert main(["audit", "x"]) == 130
        assert capsys.readouterr().err == "dressage: stopped\n"


def test_ctrl_c_while_the_command_line_is_read_is_no_traceback(monkeypatch, capsys):
    monkeypatch.setattr(cli, "build_parser", lambda: signal.raise_signal(signal.SIGINT))
    assert main(["audit", "x"]) == 130
    assert capsys.readouterr().err == "dressage: stopped\n"


def test_a_polite_end_is_heard_by_a_program_in_the_background(monkeypatch, capsys):
    monkeypatch.setattr(cli, "_audit", lambda *_arguments: signal.raise_signal(signal.SIGTERM))
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert main(["audit", "x"]) == 130
    finally:
        signal.signal(signal.SIGINT, previous)


def test_no_command_loads_torch_before_it_needs_it():
    code = (
        "import sys\nfrom dressage_recipes import audit, cli, doctor\ncli.build_parser()\n"
        "heavy = {'torch', 'transformers', 'matplotlib', 'rich', 'accelerate'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_closed_pipe_ends_quietly(tmp_path):
    FilesStore(tmp_path).close()
    program = f"{sys.executable} -m dressage_recipes.cli audit --json {tmp_path} | true"
    done = subprocess.run(["sh", "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert "Traceback" not in done.stderr


def test_an_error_says_its_fix_and_pickles():
    import pickle

    error = UsageError("--x is wrong", fix="say --y")
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == "--x is wrong; say --y"
    assert isinstance(again, RecipeError)
    assert isinstance(again, ValueError)
