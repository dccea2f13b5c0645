"""What a policy's tokenizer and template must show before anything is trained."""

from __future__ import annotations

from pathlib import Path

import pytest
from dressage_recipes.errors import UsageError
from dressage_recipes.local.config import LocalConfig, load_config
from dressage_recipes.local.policy import check_prompts
from dressage_recipes.local.work import open_source
from dressage_tito.toy import write_toy_tokenizer


def config(**model: str) -> LocalConfig:
    raw = load_config("smollm2").model_dump()
    raw["model"] |= model
    raw["engine"] |= {"context_length": 4096}
    return LocalConfig.model_validate(raw)


@pytest.fixture
def wrong(tmp_path: Path) -> Path:
    """A folder whose template writes the last message in another way than the same message in history."""
    folder = write_toy_tokenizer(tmp_path / "wrong")
    file = next(path for path in folder.iterdir() if "im_start" in path.read_text() and "jinja" in path.name)
    text = file.read_text()
    plain = "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    assert plain in text
    odd = "{%- if loop.last %}{{- message.content | upper }}{%- endif %}" + plain
    file.write_text(text.replace(plain, odd))
    return folder


def test_a_tokenizer_that_nobody_certified_yet_is_certified_here(tmp_path: Path) -> None:
    check_prompts(config(), open_source(config()), write_toy_tokenizer(tmp_path / "toy"))


def test_one_that_fails_certification_is_refused_unless_it_is_named(wrong: Path) -> None:
    with pytest.raises(UsageError, match="'wrong' fail certification") as refused:
        check_prompts(config(), open_source(config()), wrong)
    assert "model.uncertified" in refused.value.fix
    with pytest.raises(UsageError):
        check_prompts(config(uncertified="another"), open_source(config()), wrong)
    check_prompts(config(uncertified="wrong"), open_source(config()), wrong)
