"""Which engines name no weight version that a token could be trained under.

SGLang calls its weights "default" until somebody numbers them. Nothing that such an engine samples is
trained, and a run of which nobody was warned would be for nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from dressage_segments.turn import UNKNOWN_VERSION

from dressage_proxy.engine.wire import version_number

_FIX = "start SGLang with --weight-version 0, or number its weights by POST /update_weight_version"
log = logging.getLogger("dressage.proxy")


class Labels:
    """What engines call their weights. Each finding is logged once."""

    def __init__(self) -> None:
        self._named: dict[str, str] = {}
        self._warned: set[str] = set()

    @property
    def unusable(self) -> Mapping[str, str]:
        """Engines whose label is no version number, with the label."""
        return {url: label for url, label in self._named.items() if label and not _numbered(label)}

    @property
    def warnings(self) -> list[str]:
        """A sentence for each of them."""
        return [_warning(url, label) for url, label in self.unusable.items()]

    def open(self, urls: Collection[str]) -> list[str]:
        """Those of ``urls`` that are to be asked: their label is not known, or is no number yet."""
        for gone in set(self._named) - set(urls):
            del self._named[gone]
        return [url for url in urls if url not in self._named or url in self.unusable]

    def note(self, url: str, label: str | None) -> None:
        """An engine's answer; None: it gave none, "": it names no label."""
        if label is None:
            return
        before = self._named.get(url)
        self._named[url] = label
        if label == before or not label:
            return
        if not _numbered(label):
            log.warning("%s", _warning(url, label))
        elif before:
            log.info("engine %s names its weights %s now", url, label)

    def untrained(self, url: str) -> None:
        """A reply of this engine was of no known version."""
        if url not in self._warned and url not in self.unusable:
            self._warned.add(url)
            log.warning(
                "engine %s samples under no known weight version: nothing of it is trained (version_rule); "
                "%s, or announce its version by POST /rollout/resume where its replies carry none",
                url,
                _FIX,
            )


def _numbered(label: str) -> bool:
    return version_number(label) != UNKNOWN_VERSION


def _warning(url: str, label: str) -> str:
    return (
        f"engine {url} calls its weights {label[:40]!r}, which is no number: nothing that it samples is "
        f"trained (version_rule); {_FIX}"
    )
