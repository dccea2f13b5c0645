"""Configurations of the local recipe: what ships is valid, what is wrong is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from dressage_recipes.errors import UsageError
from dressage_recipes.local.config import load_config, to_toml


@pytest.mark.parametrize("name", ["demo", "smollm2"])
def test_what_ships_is_valid_and_survives_being_written(name: str, tmp_path: Path) -> None:
    config = load_config(name)
    path = tmp_path / "config.toml"
    path.write_text(to_toml(config), encoding="utf-8")
    assert load_config(path) == config


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("steps = 0\n[tasks.weights]\nread = 1", "steps"),
        ("[tasks.weights]\nread = 1\n[rollouts]\ngroup = 1", "rollouts.group"),
        ("[tasks.weights]\nsleep = 1", "tasks.weights.sleep"),
        ("[tasks.weights]\nread = 1\n[training]\nspeed = 1", "training.speed"),
        ("[tasks.weights]\nread = 1\n[model]\nhidden = 130", "model"),
        ("steps = 3", "tasks"),
        (
            "[tasks.weights]\nread = 1\n[model]\nhidden = 30\nheads = 2",
            "model: hidden .30. / heads .2. must be even",
        ),
        ("steps = true\n[tasks.weights]\nread = 1", "steps: Input should be a valid integer"),
        ('steps = "2"\n[tasks.weights]\nread = 1', "steps: Input should be a valid integer"),
        ("[tasks.weights]\nread = true", "tasks.weights.read: Input should be a valid number"),
        ("out = 3\n[tasks.weights]\nread = 1", "out"),
        ("[tasks.weights]\nread = 1\n[engine]\nthreads = 100000", "engine.threads"),
        ("steps =", "no TOML"),
        pytest.param("steps = " + "[" * 100_000, "no TOML", id="too deep"),
    ],
)
def test_a_wrong_field_is_named(text: str, named: str, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=named):
        load_config(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"gone\.toml"):
        load_config(tmp_path / "gone.toml")
