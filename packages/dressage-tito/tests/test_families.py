"""Families as data, and the table: each model that tests fetch is certified, or refused with a reason."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from dressage_tito import ChatCodec, Encoded, Message, ProfileError, Refusal, ToolCall
from dressage_tito.families import declared_families
from dressage_tito.fuzz import TOOLS

pytestmark = pytest.mark.heavy

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"
Granted = Callable[[Encoded | Refusal], Encoded]
ModelFolder = Callable[[str], Path]

NAMED_IN_THE_README = {
    "Qwen2.5", "Qwen3", "Qwen3-2507", "Qwen3-Coder", "Qwen3.5 think", "Qwen3.5 no-think", "Qwen3.6",
    "Qwen3.8",
    "Llama 3", "Llama 3.1", "Llama 3.2", "Llama 3.3", "GLM-4.5", "GLM-4.6", "GLM-4.7", "DeepSeek V3",
    "DeepSeek V3.1", "DeepSeek R1-distill", "Kimi K2", "gpt-oss (harmony)", "MiniMax M2", "Mistral (tekken)",
    "Gemma 3", "Gemma 4", "Nemotron 3", "LFM2", "Phi-3", "Cohere", "SmolLM2", "Hermes",
}  # fmt: skip


def _script(name: str) -> ModuleType:
    if str(SCRIPTS) not in sys.path:
        sys.path.insert(0, str(SCRIPTS))
    known = sys.modules.get(name)
    if known is not None:
        return known
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


MODELS = _script("model_sources").MODELS
REFUSED = {"mistral-nemo": "refused: extend, prefix, policy"}


@pytest.mark.parametrize("name", list(MODELS))
def test_each_family_is_certified_or_refused_with_an_explained_reason(
    name: str, model_folder: ModelFolder
) -> None:
    row = _script("families").certify_row(name, model_folder(name), conversations=5, seed=4)
    assert row.failures == ()
    assert row.unexplained == ()
    assert row.status == REFUSED.get(name, "certified")


def test_the_table_has_every_family() -> None:
    assert {model.family for model in MODELS.values()} >= NAMED_IN_THE_README
    sources = _script("model_sources")
    assert {model.vocabulary for model in MODELS.values()} <= set(sources.VOCABULARIES)


def test_a_failed_check_or_an_unexplained_refusal_is_a_failed_row(
    model_folder: ModelFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    families = _script("families")
    folder = model_folder("command-r7b")
    monkeypatch.setattr("dressage_tito.families.family_of", lambda *_: None)
    row = families.certify_row("command-r7b", folder, conversations=8, seed=4)
    assert row.status == "FAILED"
    assert "content_beside_calls" in row.unexplained


def test_every_explanation_is_a_sentence_and_every_family_can_be_found() -> None:
    for family in declared_families():
        assert family.marks or family.templates
        assert all(len(text) > 20 for text in (family.explains or {}).values())


def _toml(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "my.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_users_profile_wins(toy_folder: Path, tmp_path: Path) -> None:
    mine = _toml(tmp_path, 'thinking_in_history = "strips"\nstops = ["<|endoftext|>"]\nreasoning_tags = []\n')
    codec = ChatCodec.from_folder(toy_folder, profile=mine)
    assert codec.decode(codec.stop_token_ids) == "<|endoftext|>"
    assert codec.profile.thinking_in_history == "strips"
    assert codec.profile.reasoning_tags is None
    plain = ChatCodec.from_folder(toy_folder)
    assert codec.profile.turn_close_ids == plain.profile.turn_close_ids
    assert codec.profile_hash != plain.profile_hash
    tags = ChatCodec.from_folder(toy_folder, profile={"reasoning_tags": ["<a>", "</a>"]}).profile
    assert tags.reasoning_tags == ("<a>", "</a>")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("stop = []", "the key 'stop' is not known; known are"),
        ('stops = ["<nope>"]', "stops names '<nope>', which is no token"),
        ('stops = "x"', "stops is 'x': give a list of texts"),
        ('bos = "always"', "bos is 'always': give one of template, none"),
        ("developer_role = 1", "developer_role is 1: give true or false"),
        ('reasoning_tags = ["<a>"]', "give an opening and a closing tag"),
        ('closing_stops = { "<|im_end|>" = "<x>" }', "closing_stops names '<x>'"),
        ('tool_grammar = "klingon"', "tool_grammar is 'klingon': give one of none, unknown"),
        ("= 3", "cannot be read as TOML"),
        ("stops = " + "[" * 5000, "cannot be read as TOML"),
    ],
)
def test_a_wrong_profile_is_refused_by_its_key(
    text: str, said: str, toy_folder: Path, tmp_path: Path
) -> None:
    path = _toml(tmp_path, text)
    with pytest.raises(ProfileError, match=r"my\.toml") as caught:
        ChatCodec.from_folder(toy_folder, profile=path)
    assert said in str(caught.value)


def test_a_missing_profile_file_is_named(toy_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"none\.toml cannot be read"):
        ChatCodec.from_folder(toy_folder, profile=tmp_path / "none.toml")


def test_gpt_oss_goes_on_after_the_stop_that_its_history_writes_in_another_way(
    real_codec: Callable[[str], ChatCodec], granted: Granted
) -> None:
    codec = real_codec("gpt-oss")
    prompt = granted(codec.start([Message("user", "q")])).ids.tolist()
    prefix = [*prompt, *codec.encode_sample("<|channel|>final<|message|>a<|return|>")]
    delta = granted(codec.extend(prefix, [Message("user", "q2")]))
    assert codec.decode(delta.ids) == "<|start|>user<|message|>q2<|end|><|start|>assistant"
    cut = granted(codec.extend(prefix[:-1], [Message("user", "q2")]))
    assert codec.decode(cut.ids[:1]) == "<|end|>"
    refused = codec.extend(prefix, [Message("user", "q2")], thinking="as-template")
    assert isinstance(refused, Refusal)
    assert refused.reason == "stop_rewritten"
    call = codec.encode_sample("<|channel|>commentary to=functions.shell<|message|>{}<|call|>")
    result = Message("tool", "r", tool_call_id="c", name="shell")
    after_call = granted(codec.extend([*prompt, *call], [result], TOOLS))
    assert codec.decode(after_call.ids).startswith("<|start|>functions.shell to=assistant")
    unnamed = dataclasses.replace(result, name="")
    read = granted(codec.extend([*prompt, *call], [unnamed], TOOLS))
    assert read.ids.tolist() == after_call.ids.tolist()
    for results in ([unnamed, unnamed], [Message("user", "x"), unnamed]):
        refused = codec.extend([*prompt, *call], results, TOOLS)
        assert isinstance(refused, Refusal)
        assert refused.reason == "name_missing"


def test_parallel_results_are_merged_as_the_template_merges_them(
    real_codec: Callable[[str], ChatCodec], granted: Granted
) -> None:
    for name in ("qwen3", "glm4_5", "llama3_2", "minimax_m2"):
        codec = real_codec(name)
        calls = tuple(ToolCall(f"call0000{i}", "shell", {"command": "x"}, "") for i in range(2))
        parallel = codec.profile.parallel_calls and name != "llama3_2"
        turns = [Message("user", "u"), Message("assistant", "", tool_calls=calls[: 2 if parallel else 1])]
        results = [
            Message("tool", f"r{call.id}", tool_call_id=call.id, name="shell") for call in turns[1].tool_calls
        ]
        whole = str(codec.reference_text([*turns, *results], TOOLS))
        prompt = str(codec.reference_text(turns[:1], TOOLS))
        closed = str(codec.reference_text(turns, TOOLS, generation=False))
        sampled = closed[len(prompt) :] if closed.startswith(prompt) else ""
        prefix = codec.encode_sample(prompt + sampled.removesuffix(codec.profile.turn_close_text))
        delta = granted(codec.extend(prefix, results, TOOLS))
        assert whole.endswith(codec.decode(delta.ids)), name
        assert codec.decode(delta.ids).count("rcall") == len(results)


def test_one_bos_stands_at_the_start_and_none_in_a_suffix(
    real_codec: Callable[[str], ChatCodec], granted: Granted
) -> None:
    codec = real_codec("llama3")
    bos = codec.bos_id
    start = granted(codec.start([Message("user", "<|begin_of_text|>")]))
    assert start.ids.tolist().count(bos) == 1
    assert start.ids[0] == bos
    delta = granted(codec.extend([*start.ids.tolist(), *codec.encode_plain("hi")], [Message("user", "x")]))
    assert bos not in delta.ids


def test_a_result_s_name_is_taken_from_the_turn_only_where_the_turn_leaves_no_doubt(
    real_codec: Callable[[str], ChatCodec], granted: Granted
) -> None:
    codec = real_codec("gemma4")
    prompt = granted(codec.start([Message("user", "q")], TOOLS)).ids.tolist()
    unnamed = [Message("tool", word, tool_call_id=word) for word in ("r1", "r2")]

    def after(*called: str, results: list[Message] = unnamed) -> Encoded | Refusal:
        text = "".join(f"<|tool_call>call:{name}{{}}<tool_call|>" for name in called) + "<|tool_response>"
        return codec.extend([*prompt, *codec.encode_sample(text)], results, TOOLS)

    named = [dataclasses.replace(message, name="shell") for message in unnamed]
    same = granted(after("shell", "shell"))
    assert same.ids.tolist() == granted(after("shell", "shell", results=named)).ids.tolist()
    both = [dataclasses.replace(unnamed[0], name="read_file"), dataclasses.replace(unnamed[1], name="shell")]
    assert isinstance(after("shell", "read_file", results=both), Encoded)
    for refused in (
        after("shell", "read_file"),
        after("shell"),
        after(),
        after("read_file", "shell", "shell"),
    ):
        assert isinstance(refused, Refusal)
        assert refused.reason == "name_missing"
