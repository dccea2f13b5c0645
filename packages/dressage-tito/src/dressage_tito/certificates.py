"""Which tokenizers and templates are certified: hashes that ship with the package, and a user's reports."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dressage_tito.errors import NotCertifiedError

if TYPE_CHECKING:
    from dressage_tito.codec import ChatCodec


@dataclass(frozen=True, slots=True)
class Certificate:
    """What was certified. ``tokenizer_hash`` and ``template_hash`` are blake2b-128, ``profile_hash`` also
    binds the template's arguments; ``passed`` counts conversations by check."""

    name: str
    tokenizer_hash: str
    template_hash: str
    profile_hash: str
    passed: Mapping[str, int]

    def covers(self, codec: ChatCodec) -> bool:
        """Whether it is about this codec as it is set up."""
        return (self.tokenizer_hash, self.template_hash, self.profile_hash) == (
            codec.tokenizer_hash,
            codec.template_hash,
            codec.profile_hash,
        )


def known_certificates() -> tuple[Certificate, ...]:
    """The certificates that ship with the package, each of a real tokenizer under its own template."""
    text = resources.files("dressage_tito").joinpath("known_good.json").read_text(encoding="utf-8")
    return tuple(_certificate(item) for item in json.loads(text)["certified"])


def read_report(path: str | Path) -> Certificate | None:
    """The certificate in a report of ``dressage-tito certify --report``; None where it did not certify.

    Raises NotCertifiedError where the file is no such report.
    """
    try:
        report = json.loads(Path(path).read_text(encoding="utf-8"))
        return _certificate({"name": report["path"], **report}) if report["certified"] is True else None
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise NotCertifiedError(f"{path} is no report of dressage-tito certify ({error})") from error


def _certificate(item: Mapping[str, Any]) -> Certificate:
    return Certificate(
        item["name"],
        item["tokenizer_hash"],
        item["template_hash"],
        item["profile_hash"],
        dict(item["passed"]),
    )


def require_certified(
    codec: ChatCodec, *, reports: Iterable[str | Path] = (), override: str = ""
) -> Certificate | None:
    """The codec's certificate: for training, where an uncertified template would give wrong contexts.

    ``reports`` are files of ``dressage-tito certify --report``. ``override`` is the name of one model
    (``codec.name``, its folder's name) that is used uncertified, on purpose; then None is returned.
    Raises NotCertifiedError, which says how to certify or override.
    """
    found = [read_report(path) for path in reports]
    for certificate in [*(item for item in found if item is not None), *known_certificates()]:
        if certificate.covers(codec):
            return certificate
    if override and override == codec.name:
        return None
    other = f" (the override names {override!r}, another model)" if override else ""
    raise NotCertifiedError(
        f"the tokenizer and chat template of {codec.name!r} are not certified{other}: run "
        f"`dressage-tito certify FOLDER --report FILE` and give the report, or override by its name"
    )
