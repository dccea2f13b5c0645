from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from dressage_tito import ChatCodec, Encoded, ParsedTurn, Refusal
from dressage_tito.certify import certify, certify_codec
from dressage_tito.cli import main
from dressage_tito.toy import TEMPLATE, write_toy_tokenizer


def test_the_toy_is_certified(toy_folder: Path) -> None:
    report = certify(toy_folder, conversations=60)
    assert report.certified
    assert report.declared == {}
    assert report.refused == {}


def test_a_chatml_template_without_tools_is_certified_without_them(
    codec_with: Callable[..., ChatCodec], smol_like: str
) -> None:
    report = certify_codec(codec_with(smol_like), "smol", conversations=60)
    assert report.failures == ()
    assert report.certified
    assert not report.supports_tools


class _LosesABlank(ChatCodec):
    def start(self, *args: object, **kwargs: object) -> Encoded | Refusal:
        result = super().start(*args, **kwargs)  # type: ignore[arg-type]
        if isinstance(result, Encoded) and len(result.ids) > 30:
            return Encoded(result.ids[:-1], result.frame[:-1], result.reasoning_open)
        return result


class _ClosesTwice(ChatCodec):
    def extend(self, prefix_ids, *args, **kwargs):  # type: ignore[no-untyped-def]
        return super().extend(list(prefix_ids)[:-1] or [0], *args, **kwargs)


class _LosesReasoning(ChatCodec):
    def parse(self, *args: object, **kwargs: object) -> ParsedTurn:
        turn = super().parse(*args, **kwargs)  # type: ignore[arg-type]
        return ParsedTurn(turn.content, "", turn.tool_calls)


class _ParsesLiterals(ChatCodec):
    def start(self, messages, tools=None, **kwargs):  # type: ignore[no-untyped-def]
        good = super().start(messages, tools, **kwargs)
        ids = self.encode_sample(self.decode(good.ids))
        import numpy as np

        return Encoded(np.array(ids, dtype=np.int32), np.ones(len(ids), dtype=np.bool_), good.reasoning_open)


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (_LosesABlank, "start"),
        (_ClosesTwice, "extend"),
        (_ClosesTwice, "prefix"),
        (_LosesReasoning, "parse"),
        (_ParsesLiterals, "control"),
    ],
)
def test_a_broken_codec_fails_its_check_with_a_small_counterexample(
    toy_folder: Path, broken: type[ChatCodec], check: str
) -> None:
    report = certify_codec(broken.from_folder(toy_folder), "broken", conversations=60)
    assert not report.certified
    found = [failure for failure in report.failures if failure.check == check]
    assert found
    assert min(len(json.dumps(failure.messages)) for failure in found) < 700


def test_a_template_that_rewrites_earlier_turns_is_not_certified(
    codec_with: Callable[..., ChatCodec],
) -> None:
    template = TEMPLATE.replace(
        "{{- '<|im_start|>assistant\\n' }}\n",
        "{{- '<|im_start|>assistant' + ('' if loop.last else ' (earlier)') + '\\n' }}\n",
    )
    assert template != TEMPLATE
    codec = codec_with(template)
    assert codec.profile.not_appendable["user+tools"] == "template_rewrites_history"
    report = certify_codec(codec, "rewrites", conversations=30)
    assert not report.certified
    assert report.passed.get("extend", 0) == 0
    assert report.refused["extend"]["template_rewrites_history"] > 0
    guessing = codec.with_profile(dataclasses.replace(codec.profile, not_appendable={}))
    assert {f.check for f in certify_codec(guessing, "guesses", conversations=30).failures} >= {"extend"}


def test_the_command_prints_and_exits_0_when_certified(
    toy_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["certify", str(toy_folder), "--conversations", "20"]) == 0
    assert capsys.readouterr().out.endswith("\ncertified\n")
    assert main(["certify", str(toy_folder), "--json", "--conversations", "20"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["certified"] is True
    assert report["failures"] == []
    assert len(report["tokenizer_hash"]) == 32


def test_the_command_exits_1_with_a_counterexample(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    template = TEMPLATE.replace(
        "{{- '<|im_start|>assistant\\n' }}\n",
        "{{- '<|im_start|>assistant' + "
        "('' if loop.last or message.content | length < 12 else '!') + '\\n' }}\n",
    )
    folder = write_toy_tokenizer(tmp_path / "f", template=template)
    assert main(["certify", str(folder), "--conversations", "20"]) == 1
    said = capsys.readouterr().out
    assert "FAILED extend: ids differ at" in said
    assert '{"role": "user"' in said
    assert said.endswith("NOT certified\n")


def test_the_command_exits_1_with_the_fix_for_a_folder_that_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["certify", str(tmp_path / "none")]) == 1
    assert "no such folder" in capsys.readouterr().err
    assert main(["certify", str(tmp_path / "none"), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["certified"] is False


def test_the_command_refuses_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["certify", "x", "--conversations", "0"])
    assert caught.value.code == 2
    assert "at least 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--conversations", "many", "'many' is no number of at least 1"),
        ("--conversations", "-3", "expected one argument|'-3' is no number"),
        ("--template-kwargs", "{", "{ is no JSON object"),
        ("--template-kwargs", "[1]", "is no JSON object"),
        ("--template-kwargs", '{"a": ' + "[" * 20_000, "is no JSON object"),
        ("--template-kwargs", '{"messages": 1}', "may not set .'messages'."),
    ],
)
def test_the_command_says_what_an_option_takes(
    capsys: pytest.CaptureFixture[str], option: str, value: str, said: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["certify", "x", option, value])
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert re.search(said, error), error


def test_a_template_that_prints_the_time_is_certified_while_the_clock_stands_still(tmp_path: Path) -> None:
    timed = "{{- strftime_now('%H:%M:%S.%f') }}" + TEMPLATE
    report = certify(write_toy_tokenizer(tmp_path / "timed", template=timed), conversations=6)
    assert report.certified
