from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from dressage_tito import ChatCodec, NotCertifiedError, require_certified
from dressage_tito.certificates import known_certificates
from dressage_tito.checks import CHECKS
from dressage_tito.cli import main


def test_an_uncertified_model_is_refused_unless_it_is_overridden_by_its_name(toy_folder: Path) -> None:
    codec = ChatCodec.from_folder(toy_folder)
    with pytest.raises(NotCertifiedError, match="dressage-tito certify FOLDER --report FILE"):
        require_certified(codec)
    with pytest.raises(NotCertifiedError, match="the override names 'other', another model"):
        require_certified(codec, override="other")
    assert require_certified(codec, override=codec.name) is None


def test_a_report_certifies_what_it_was_made_of_and_nothing_else(toy_folder: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    assert main(["certify", str(toy_folder), "--conversations", "12", "--report", str(report)]) == 0
    codec = ChatCodec.from_folder(toy_folder)
    found = require_certified(codec, reports=[report])
    assert found is not None
    assert set(found.passed) == set(CHECKS)
    other = ChatCodec.from_folder(toy_folder, template_kwargs={"enable_thinking": False})
    with pytest.raises(NotCertifiedError):
        require_certified(other, reports=[report])
    said = json.loads(report.read_text())
    report.write_text(json.dumps({**said, "certified": False}))
    with pytest.raises(NotCertifiedError, match="are not certified"):
        require_certified(codec, reports=[report])
    for text in ("[]", "[" * 100_000):
        report.write_text(text)
        with pytest.raises(NotCertifiedError, match=r"report\.json is no report"):
            require_certified(codec, reports=[report])


def test_a_report_that_cannot_be_written_is_said(
    toy_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "certify",
        str(toy_folder),
        "--conversations",
        "5",
        "--report",
        str(tmp_path / "no" / "r.json"),
    ]
    assert main(arguments) == 1
    assert "cannot be written" in capsys.readouterr().err


def test_the_command_takes_a_profile_and_template_arguments(
    toy_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = tmp_path / "p.toml"
    profile.write_text("nonsense = 1")
    assert main(["certify", str(toy_folder), "--profile", str(profile)]) == 1
    assert "'nonsense' is not known" in capsys.readouterr().err
    kwargs = '{"enable_thinking": false}'
    arguments = ["certify", str(toy_folder), "--conversations", "5", "--json", "--template-kwargs", kwargs]
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out)["template_kwargs"] == {"enable_thinking": False}


@pytest.mark.parametrize("name", ["qwen3", "qwen2_5", "llama3_1"])
def test_known_hashes_ship_with_the_package(name: str, real_codec: Callable[[str], ChatCodec]) -> None:
    found = require_certified(real_codec(name))
    assert found is not None
    assert found.name == name
    assert min(found.passed[check] for check in CHECKS) > 0


def test_known_certificates_count_every_check() -> None:
    known = known_certificates()
    assert len(known) >= 15
    assert all(set(item.passed) == set(CHECKS) for item in known)
