"""Certification: does the codec do, for this tokenizer and this template, what it promises?

Made-up conversations are compared with the template's own full render by the checks of
``dressage_tito.checks``; a failure is shrunk to a conversation that a person can read.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

from dressage_tito.checks import CHECKS, Check, Failed, NotApplicable, Refused, Subject
from dressage_tito.codec import ChatCodec
from dressage_tito.families import explanations
from dressage_tito.fuzz import Conversation, smaller
from dressage_tito.wire import message_to_json

_MAX_SHRINKS = 400
_MAX_FAILURES = 5

__all__ = ["CHECKS", "Counterexample", "Report", "certify", "certify_codec"]


@dataclass(frozen=True, slots=True)
class Counterexample:
    """A check that failed, on a conversation made small."""

    check: str
    detail: str
    messages: tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Report:
    """What certification found. ``passed`` counts conversations by check, ``refused`` refusals by check and
    reason, ``declared`` conversations with a declared difference by its name."""

    path: str
    tokenizer_hash: str
    template_hash: str
    profile_hash: str
    supports_tools: bool
    conversations: int
    passed: dict[str, int]
    refused: dict[str, dict[str, int]]
    declared: dict[str, int]
    failures: tuple[Counterexample, ...]
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    tools_note: str = ""
    """Why tools are refused; "" where they are not."""
    explains: Mapping[str, str] = field(default_factory=dict)
    """What the package declares of the refusals that were met, by reason."""

    @property
    def certified(self) -> bool:
        """No check failed, and each check passed at least once."""
        return not self.failures and all(self.passed.get(name, 0) > 0 for name in CHECKS)

    def to_json(self) -> str:
        """The report as JSON, with ``certified``."""
        return json.dumps({"certified": self.certified, **asdict(self)}, ensure_ascii=False, indent=1)


def certify(path: str | Path, *, conversations: int = 150, seed: int = 0, **options: Any) -> Report:
    """Certify the folder at ``path``; ``options`` go to ``ChatCodec.from_folder``.

    The clock stands still meanwhile, unless ``options`` give one: some templates print the time.

    Raises FolderError or ProfileError where it cannot be loaded.
    """
    now = datetime.now()
    codec = ChatCodec.from_folder(path, **{"clock": lambda: now, **options})
    return certify_codec(codec, str(path), conversations=conversations, seed=seed)


def certify_codec(codec: ChatCodec, name: str, *, conversations: int = 150, seed: int = 0) -> Report:
    """Certify a codec as it is set up (its profile and template arguments included)."""
    run = _Run(codec, seed)
    for index in range(conversations):
        conversation = run.subject.fuzzer.conversation(spelled=index % 3 == 2)
        for check, function in CHECKS.items():
            run.try_check(check, function, conversation)
        if len(run.failures) >= _MAX_FAILURES:
            break
    met = {reason for reasons in run.refused.values() for reason in reasons} | set(run.declared)
    return Report(
        path=name,
        tokenizer_hash=codec.tokenizer_hash,
        template_hash=codec.template_hash,
        profile_hash=codec.profile_hash,
        supports_tools=codec.supports_tools,
        conversations=conversations,
        passed=dict(run.passed),
        refused={check: dict(reasons) for check, reasons in run.refused.items()},
        declared=dict(run.declared),
        failures=tuple(run.failures),
        template_kwargs=codec.template_kwargs,
        tools_note="" if codec.supports_tools else codec.profile.tools_note,
        explains={
            reason: text for reason, text in explanations(codec.profile.family).items() if reason in met
        },
    )


class _Run:
    def __init__(self, codec: ChatCodec, seed: int) -> None:
        self.subject = Subject(codec, seed)
        self.passed: Counter[str] = Counter()
        self.refused: dict[str, Counter[str]] = {}
        self.declared: Counter[str] = Counter()
        self.failures: list[Counterexample] = []

    def try_check(self, name: str, function: Check, conversation: Conversation) -> None:
        try:
            declared = function(self.subject, conversation)
        except NotApplicable:
            return
        except Refused as refusal:
            self.refused.setdefault(name, Counter())[str(refusal)] += 1
        except Failed as failure:
            small, detail = self._shrink(function, conversation, str(failure))
            messages = tuple(message_to_json(message) for message in small.messages())
            self.failures.append(Counterexample(name, detail, messages))
        else:
            self.passed[name] += 1
            if declared:
                self.declared[declared] += 1

    def _shrink(self, function: Check, conversation: Conversation, detail: str) -> tuple[Conversation, str]:
        tries = _MAX_SHRINKS
        found = True
        while found and tries > 0:
            found = False
            for candidate in islice(smaller(conversation), tries):
                tries -= 1
                try:
                    function(self.subject, candidate)
                except Failed as failure:
                    conversation, detail, found = candidate, str(failure), True
                    break
                except (Refused, NotApplicable):
                    continue
        return conversation, detail
