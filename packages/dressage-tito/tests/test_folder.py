from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from dressage_tito import ChatCodec, FolderError, Message, ProfileError
from dressage_tito.toy import TEMPLATE, write_toy_tokenizer


def _copy(source: Path, target: Path) -> Path:
    shutil.copytree(source, target)
    return target


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match="nowhere: no such folder"):
        ChatCodec.from_folder(tmp_path / "nowhere")


def test_a_folder_without_tokenizer_json_names_the_file_and_the_fix(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match=r"tokenizer\.json: missing\. .*save_pretrained"):
        ChatCodec.from_folder(tmp_path)


def test_a_broken_tokenizer_json_is_named(toy_folder: Path, tmp_path: Path) -> None:
    folder = _copy(toy_folder, tmp_path / "f")
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(FolderError, match=r"tokenizer\.json: cannot be read as JSON"):
        ChatCodec.from_folder(folder)
    (folder / "tokenizer.json").write_text("[]")
    with pytest.raises(FolderError, match="not a JSON object"):
        ChatCodec.from_folder(folder)
    (folder / "tokenizer.json").write_text('{"model": {"type": "Nonsense"}}')
    with pytest.raises(FolderError, match="tokenizers library refuses it"):
        ChatCodec.from_folder(folder)


def test_a_folder_without_a_chat_template_says_where_to_put_one(toy_folder: Path, tmp_path: Path) -> None:
    folder = _copy(toy_folder, tmp_path / "f")
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(FolderError, match=r"no chat template .* chat_template\.jinja"):
        ChatCodec.from_folder(folder)


def test_a_template_that_does_not_compile_is_named_with_its_line(toy_folder: Path, tmp_path: Path) -> None:
    folder = _copy(toy_folder, tmp_path / "f")
    (folder / "chat_template.jinja").write_text("a\n{% for %}")
    with pytest.raises(FolderError, match=r"does not compile \(line 2"):
        ChatCodec.from_folder(folder)


def test_a_template_without_assistant_turns_is_no_profile(toy_folder: Path, tmp_path: Path) -> None:
    folder = _copy(toy_folder, tmp_path / "f")
    (folder / "chat_template.jinja").write_text("nothing at all")
    with pytest.raises(ProfileError, match="assistant message's content once"):
        ChatCodec.from_folder(folder)
    (folder / "chat_template.jinja").write_text("{{ raise_exception('no') }}")
    with pytest.raises(ProfileError, match=r"fails on a user message: .*no"):
        ChatCodec.from_folder(folder)


def _config(folder: Path, **values: object) -> None:
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, **values}))


def test_a_template_as_text_in_the_config_is_found(toy_folder: Path, tmp_path: Path, toy: ChatCodec) -> None:
    folder = _copy(toy_folder, tmp_path / "f")
    _config(folder, chat_template=TEMPLATE)
    codec = ChatCodec.from_folder(folder)
    assert codec.profile == toy.profile
    assert codec.template_hash == toy.template_hash
    assert codec.tokenizer_hash == toy.tokenizer_hash


def test_of_named_templates_tool_use_serves_tools_and_default_the_rest(
    toy_folder: Path, tmp_path: Path
) -> None:
    folder = _copy(toy_folder, tmp_path / "f")
    plain = TEMPLATE.replace("if tools", "if false")
    _config(
        folder,
        chat_template=[{"name": "default", "template": plain}, {"name": "tool_use", "template": TEMPLATE}],
    )
    codec = ChatCodec.from_folder(folder)
    assert codec.supports_tools
    _config(folder, chat_template=[{"name": "default", "template": plain}])
    assert not ChatCodec.from_folder(folder).supports_tools


def test_a_template_list_without_names_is_refused_by_place(toy_folder: Path, tmp_path: Path) -> None:
    folder = _copy(toy_folder, tmp_path / "f")
    _config(folder, chat_template=[{"template": "x"}])
    with pytest.raises(FolderError, match=r"chat_template\[0\] lacks name"):
        ChatCodec.from_folder(folder)
    _config(folder, chat_template=7)
    with pytest.raises(FolderError, match="neither text nor a list"):
        ChatCodec.from_folder(folder)


def test_stop_ids_hold_the_closing_id_and_those_of_the_generation_config(
    toy_folder: Path, tmp_path: Path, toy: ChatCodec
) -> None:
    folder = _copy(toy_folder, tmp_path / "f")
    end, eot = toy.encode_sample("<|im_end|>")[0], toy.encode_sample("<|endoftext|>")[0]
    assert toy.stop_token_ids == (end,)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [end, eot]}))
    assert ChatCodec.from_folder(folder).stop_token_ids == (end, eot)


def test_tokens_that_only_the_config_declares_are_added(toy_folder: Path, tmp_path: Path) -> None:
    folder = _copy(toy_folder, tmp_path / "f")
    size = ChatCodec.from_folder(folder).vocab_size
    decoder = {str(size): {"content": "<extra>", "special": True}}
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": decoder}))
    codec = ChatCodec.from_folder(folder)
    assert codec.encode_sample("<extra>") == [size]
    assert codec.vocab_size == size + 1
    decoder = {str(size + 7): {"content": "<extra>", "special": True}}
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": decoder}))
    with pytest.raises(FolderError, match="<extra>"):
        ChatCodec.from_folder(folder)


def test_templates_see_the_tokens_the_clock_the_arguments_and_plain_json(tmp_path: Path) -> None:
    from datetime import UTC, datetime

    template = (
        "{{ strftime_now('%Y') }}{{ eos_token }}{{ tone }}{{ {'é': '<&>'} | tojson }}"
        "{% for m in messages %}{% generation %}{{ '<|im_start|>' + m.content + '<|im_end|>' }}"
        "{% endgeneration %}{% if loop.index > 90 %}{% break %}{% endif %}{% endfor %}"
    )
    folder = write_toy_tokenizer(tmp_path / "t", template=template)
    codec = ChatCodec.from_folder(
        folder, template_kwargs={"tone": "dry"}, clock=lambda: datetime(2031, 1, 1, tzinfo=UTC)
    )
    text = codec.reference_text([Message("user", "hi")])
    assert text == '2031<|im_end|>dry{"é": "<&>"}<|im_start|>hi<|im_end|>'


def test_a_template_cannot_reach_outside_its_sandbox(tmp_path: Path) -> None:
    template = TEMPLATE + "{{ ''.__class__.__mro__[1].__subclasses__() if messages | length > 3 else '' }}"
    codec = ChatCodec.from_folder(write_toy_tokenizer(tmp_path / "t", template=template))
    refused = codec.start([Message("user", "u")] * 4)
    assert getattr(refused, "reason", "") == "template_error"


@pytest.mark.parametrize(
    ("file", "change", "said"),
    [
        ("tokenizer.json", {"added_tokens": [1]}, "added_tokens is no list of objects"),
        ("tokenizer.json", {"added_tokens": {"a": 1}}, "added_tokens is no list of objects"),
        ("tokenizer.json", {"added_tokens": [{"content": "<x>"}]}, "added_tokens is no list of objects"),
        ("tokenizer.json", {"added_tokens": [{"id": 2**31, "content": "<x>"}]}, "below 2147483648"),
        ("tokenizer.json", {"added_tokens": [{"id": 10**30, "content": "<x>"}]}, "below 2147483648"),
        ("tokenizer.json", {"added_tokens": [{"id": -1, "content": "<x>"}]}, "below 2147483648"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"9" * 5000: {}}}, "added_tokens_decoder is no"),
        ("tokenizer_config.json", {"added_tokens_decoder": [1]}, "added_tokens_decoder is no object"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"x": {}}}, "added_tokens_decoder is no object"),
        ("generation_config.json", {"eos_token_id": "</s>"}, "eos_token_id is '</s>'"),
        ("generation_config.json", {"eos_token_id": [1, "</s>"]}, "eos_token_id is"),
        ("generation_config.json", {"eos_token_id": True}, "eos_token_id is True"),
        ("generation_config.json", {"eos_token_id": -1}, "eos_token_id is -1"),
        ("generation_config.json", {"eos_token_id": [2**31]}, "eos_token_id is"),
    ],
)
def test_a_field_that_is_not_of_its_kind_is_named_with_its_file(
    toy_folder: Path, tmp_path: Path, file: str, change: dict[str, object], said: str
) -> None:
    folder = _copy(toy_folder, tmp_path / "f")
    path = folder / file
    before = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**before, **change}))
    with pytest.raises(FolderError, match=said) as caught:
        ChatCodec.from_folder(folder)
    assert file in caught.value.path


def test_a_vocabulary_whose_ids_are_no_int32_is_refused(toy_folder: Path, tmp_path: Path) -> None:
    folder = _copy(toy_folder, tmp_path / "f")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["zzz"] = 2**31
    tokenizer["added_tokens"] = []
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(FolderError, match="the vocabulary has id 2147483648"):
        ChatCodec.from_folder(folder)


@pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json", "generation_config.json"])
def test_a_file_that_is_nested_too_deeply_is_named(toy_folder: Path, tmp_path: Path, file: str) -> None:
    folder = _copy(toy_folder, tmp_path / "f")
    (folder / file).write_text('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}")
    with pytest.raises(FolderError, match=r"cannot be read as JSON \(maximum recursion depth"):
        ChatCodec.from_folder(folder)


@pytest.mark.parametrize(
    "source",
    [
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "{% if 1 %}" * 3000 + "{% endif %}" * 3000,
        "{% for x in [] %}" * 30 + "{% endfor %}" * 30,
        "{{ " + "9" * 5000 + " }}",
    ],
    ids=["brackets", "conditions", "loops", "digits"],
)
def test_a_template_beyond_what_an_interpreter_takes_is_named(
    toy_folder: Path, tmp_path: Path, source: str
) -> None:
    folder = _copy(toy_folder, tmp_path / "f")
    (folder / "chat_template.jinja").write_text(source)
    with pytest.raises(FolderError, match="does not compile"):
        ChatCodec.from_folder(folder)


def test_a_template_that_asks_for_more_memory_than_there_is_refuses(tmp_path: Path) -> None:
    template = TEMPLATE + "{{ 'a' * 10 ** 17 if messages | length > 3 else '' }}"
    codec = ChatCodec.from_folder(write_toy_tokenizer(tmp_path / "t", template=template))
    refused = codec.start([Message("user", "u")] * 4)
    assert getattr(refused, "reason", "") == "template_error"


def test_no_end_of_sequence_id_is_no_error(toy_folder: Path, tmp_path: Path) -> None:
    folder = _copy(toy_folder, tmp_path / "f")
    (folder / "generation_config.json").write_text('{"eos_token_id": null}')
    assert ChatCodec.from_folder(folder).stop_token_ids


def test_a_tokenizer_that_cannot_write_every_text_is_refused(toy_folder: Path, tmp_path: Path) -> None:
    folder = _copy(toy_folder, tmp_path / "f")
    model = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "[UNK]"}
    (folder / "tokenizer.json").write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))
    with pytest.raises(FolderError, match="cannot encode plain text"):
        ChatCodec.from_folder(folder)
