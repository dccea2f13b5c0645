"""Examples of the cold start: they are what the codec would have the engine see, and they mostly guess."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import numpy as np
import pytest
from dressage_paddock import ShellTool
from dressage_paddock.tools import ToolBounds, tool_schema
from dressage_recipes.errors import StoppedError
from dressage_recipes.local.coldstart import (
    ColdStarter,
    Encoder,
    Line,
    call_text,
    corpus,
    demonstrate,
)
from dressage_recipes.local.config import ColdStart, LocalConfig, load_config
from dressage_recipes.local.policy import make_tiny
from dressage_recipes.local.problems import SANDBOX
from dressage_recipes.local.rehearsal import simulate_shell
from dressage_recipes.local.tasks import NAMES, Variant, is_right, make_problem
from dressage_recipes.local.tokenizer import write_tokenizer
from dressage_sandbox import BubblewrapProvider
from dressage_tito import ChatCodec, Encoded, Message
from tokenizers import Tokenizer

WEIGHTS = dict.fromkeys(Variant, 1.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"), corpus(WEIGHTS, 400), vocabulary=480)


def encoder_of(folder: Path) -> Encoder:
    return Encoder(Tokenizer.from_file(str(folder / "tokenizer.json")))


def as_the_proxy_would(codec: ChatCodec, lines: list[Line]) -> list[int]:
    """The ids that codec and engine together would make of an example."""
    tools = [tool_schema(ShellTool())]
    start = codec.start([Message("user", lines[0].text)], tools)
    assert isinstance(start, Encoded)
    ids = list(start.ids)
    for line in lines[1:]:
        if line.role == "assistant":
            ids += codec.encode_sample(line.text + "<|im_end|>")
        else:
            delta = codec.extend(ids, [Message("tool", line.text, tool_call_id="c")], tools)
            assert isinstance(delta, Encoded), delta
            ids += delta.ids.tolist()
    return ids


def test_an_example_has_the_ids_that_codec_and_engine_give(folder: Path) -> None:
    codec, encoder, rng = ChatCodec.from_folder(folder), encoder_of(folder), random.Random(4)
    for _ in range(60):
        lines = demonstrate(make_problem(rng, WEIGHTS), rng, guess=0.2, halfway=0.3)
        ids, mask = encoder.example(lines)
        expected = as_the_proxy_would(codec, lines)
        assert ids[: len(expected)] == expected
        assert [codec.decode(np.array(ids[len(expected) :], np.int32))] == ["\n"]
        assert len(mask) == len(ids)


def test_only_what_the_assistant_says_is_learned(folder: Path) -> None:
    encoder = encoder_of(folder)
    lines = [Line("user", "Read amber."), Line("assistant", call_text("cat amber")), Line("tool", "47")]
    ids, mask = encoder.example([*lines, Line("assistant", "47")])
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    said = tokenizer.decode([i for i, m in zip(ids, mask, strict=True) if m], skip_special_tokens=False)
    assert said == f"{call_text('cat amber')}<|im_end|>47<|im_end|>"


def test_every_file_name_is_one_token_so_that_copying_it_is_one_step(folder: Path) -> None:
    encoder = encoder_of(folder)
    assert [len(encoder.ids(f" {name}")) for name in NAMES] == [1] * len(NAMES)


def test_digits_are_never_merged(folder: Path) -> None:
    assert len(encoder_of(folder).ids("4711")) == 4


def test_the_tokenizer_is_the_same_each_time(folder: Path, tmp_path: Path) -> None:
    again = write_tokenizer(tmp_path, corpus(WEIGHTS, 400), vocabulary=480)
    assert (again / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()


def test_a_demonstrator_that_never_guesses_solves_every_problem() -> None:
    rng = random.Random(5)
    for _ in range(200):
        problem = make_problem(rng, WEIGHTS)
        lines = demonstrate(problem, rng, guess=0.0, halfway=0.0)
        files = dict(problem.files)
        for line in lines:
            if "<tool_call>" in line.text:
                simulate_shell(files, line.text.split('"command": "')[1].split('"}')[0])
        assert is_right(problem, lines[-1].text, files)
        assert sum(line.role == "assistant" for line in lines) <= load_config("demo").tasks.max_turns


def test_a_demonstrator_that_always_guesses_is_right_about_once_in_ninety() -> None:
    rng = random.Random(6)
    right = 0
    for _ in range(2000):
        problem = make_problem(rng, WEIGHTS)
        lines = demonstrate(problem, rng, guess=1.0, halfway=0.0)
        right += is_right(problem, lines[-1].text, problem.files)
    assert right / 2000 < 0.03


async def test_the_simulated_shell_answers_as_the_sandbox_does() -> None:
    provider, rng, tool = BubblewrapProvider(), random.Random(7), ShellTool()
    sandbox = await provider.create(SANDBOX)
    try:
        for variant in Variant:
            problem = make_problem(rng, {variant: 1.0})
            files = dict(problem.files)
            for name, data in files.items():
                await sandbox.write(f"/workspace/{name}", data)
            for command in (*problem.path, f"cat {problem.name}", "cat nothing"):
                real = await tool.call(sandbox, {"command": command}, ToolBounds())
                assert simulate_shell(files, command) == real, command
    finally:
        await provider.close()


def small(config: LocalConfig, **cold: object) -> LocalConfig:
    size = {"hidden": 32, "feed_forward": 64, "heads": 2, "vocabulary": 480}
    return config.model_copy(
        update={
            "model": config.model.model_copy(update=size),
            "cold_start": ColdStart.model_validate({"steps": 3, "batch": 4, "evaluate": 8, **cold}),
        }
    )


def test_a_cold_start_ends_with_the_reward_that_it_measured(tmp_path: Path) -> None:
    config = small(load_config("demo"), adjust_rounds=1, adjust_steps=1)
    model = make_tiny(config, tmp_path)
    seen: list[int] = []
    starter = ColdStarter(model, tmp_path, config.cold_start, config.tasks, seed=1, stop=threading.Event())
    reward = starter.run(lambda step, loss: seen.append(step))
    assert seen == [1, 2, 3, 4]
    assert reward == starter.evaluate()


def test_a_cold_start_stops_when_asked(tmp_path: Path) -> None:
    config, stop = small(load_config("demo")), threading.Event()
    model = make_tiny(config, tmp_path)
    stop.set()
    starter = ColdStarter(model, tmp_path, config.cold_start, config.tasks, seed=1, stop=stop)
    with pytest.raises(StoppedError):
        starter.run(lambda step, loss: None)


def test_the_seed_decides_the_weights(tmp_path: Path) -> None:
    config = small(load_config("demo"))
    first = make_tiny(config, tmp_path / "a").state_dict()
    again = make_tiny(config, tmp_path / "b").state_dict()
    other = make_tiny(config.model_copy(update={"seed": 2}), tmp_path / "c").state_dict()
    assert all(bool((first[name] == again[name]).all()) for name in first)
    assert not all(bool((first[name] == other[name]).all()) for name in first)
