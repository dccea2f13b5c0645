"""Codecs for tests: a toy one, made here, and real ones, fetched into the cache of the checkout."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from dressage_tito import ChatCodec, Encoded, ParsedTurn, Refusal
from dressage_tito.grammars import grammar_named
from dressage_tito.toy import write_toy_tokenizer

FETCH = Path(__file__).resolve().parents[3] / "scripts" / "fetch_test_models.py"

GLM_LIKE = (
    "{%- for m in messages %}{{- '<|observation|>\\n' if m.role == 'tool' else '<|' + m.role + '|>\\n' }}"
    "{{- m.content }}{%- endfor %}{%- if add_generation_prompt %}{{- '<|assistant|>\\n' }}{%- endif %}"
)
"""A family without closing tokens: the opener of the next block ends a turn."""

SMOL_LIKE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\\nYou are helpful<|im_end|>\\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""A ChatML template that ignores tools, as SmolLM2-Instruct's does."""


@pytest.fixture(scope="session")
def toy_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_tokenizer(tmp_path_factory.mktemp("toy"))


@pytest.fixture(scope="session")
def toy(toy_folder: Path) -> ChatCodec:
    return ChatCodec.from_folder(toy_folder)


@pytest.fixture
def codec_with(tmp_path: Path) -> Callable[..., ChatCodec]:
    """A toy codec under another template."""

    def make(template: str, *, more_special: Sequence[str] = (), **options: Any) -> ChatCodec:
        folder = write_toy_tokenizer(tmp_path / "made", template=template, more_special=more_special)
        return ChatCodec.from_folder(folder, **options)

    return make


@pytest.fixture(scope="session")
def smol_like() -> str:
    return SMOL_LIKE


@pytest.fixture
def glm_like(tmp_path: Path) -> ChatCodec:
    """Stops on <|endoftext|>, <|user|> or <|observation|>; the last two also open the next block."""
    names = ("<|user|>", "<|observation|>", "<|assistant|>", "<|system|>")
    folder = write_toy_tokenizer(tmp_path / "glm", template=GLM_LIKE, more_special=names)
    plain = ChatCodec.from_folder(folder)
    stops = [plain.encode_sample(name)[0] for name in ("<|endoftext|>", "<|user|>", "<|observation|>")]
    (folder / "generation_config.json").write_text(f'{{"eos_token_id": {stops}}}')
    return ChatCodec.from_folder(folder)


@pytest.fixture(scope="session")
def model_folder() -> Callable[[str], Path]:
    """The folder of a real tokenizer. A fetch that fails is a failure, never a skip."""

    def fetch(name: str) -> Path:
        done = subprocess.run(
            [sys.executable, str(FETCH), name], capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == 0, f"{name} could not be fetched:\n{done.stderr}"
        return Path(done.stdout.splitlines()[-1])

    return fetch


@pytest.fixture(scope="session")
def real_codec(model_folder: Callable[[str], Path]) -> Callable[[str], ChatCodec]:
    """A real tokenizer's codec, loaded once."""
    loaded: dict[str, ChatCodec] = {}

    def load(name: str) -> ChatCodec:
        if name not in loaded:
            loaded[name] = ChatCodec.from_folder(model_folder(name))
        return loaded[name]

    return load


@pytest.fixture(scope="session")
def qwen3(real_codec: Callable[[str], ChatCodec]) -> ChatCodec:
    return real_codec("qwen3")


@pytest.fixture(scope="session")
def granted() -> Callable[[Encoded | Refusal], Encoded]:
    """The encoded delta, or a test failure that names the refusal."""

    def check(result: Encoded | Refusal) -> Encoded:
        assert isinstance(result, Encoded), result
        return result

    return check


@pytest.fixture(scope="session")
def renderings() -> ModuleType:
    """The module grammar_renderings.py beside this file."""
    path = Path(__file__).with_name("grammar_renderings.py")
    spec = importlib.util.spec_from_file_location("grammar_renderings", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GRAMMAR_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "parameters": {
                "type": "object",
                "properties": {
                    "s": {"type": "string"},
                    "n": {"type": "integer"},
                    "f": {"type": "number"},
                    "b": {"type": "boolean"},
                    "o": {"type": "object", "properties": {"n": {"type": "integer"}}},
                    "l": {"type": "array", "items": {"type": "integer"}},
                    "z": {"type": ["string", "null"]},
                    "any": {},
                },
            },
        },
    }
]


@pytest.fixture(scope="session")
def parse() -> Callable[..., ParsedTurn]:
    """A grammar's ``parse`` by name, with a tool ``f`` of typed parameters."""

    def run(name: str, text: str, **options: Any) -> ParsedTurn:
        given = {
            "reasoning_open": False,
            "finish_reason": "stop",
            "tools": GRAMMAR_TOOLS,
            "reasoning_tags": None if name == "harmony" else ("<think>", "</think>"),
            **options,
        }
        return grammar_named(name).parse(text, **given)  # type: ignore[arg-type]

    return run
