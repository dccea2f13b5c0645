"""Several Prometheus expositions as one: each sample gets the label of the shard that it came from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families


class _Merged:
    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for shard, text in self._texts.items():
            for family in text_string_to_metric_families(text):
                if family.name.endswith("_created"):
                    continue  # a gauge of its own in this format
                made = families.setdefault(
                    family.name, Metric(family.name, family.documentation, family.type)
                )
                for sample in family.samples:
                    made.add_sample(sample.name, {**sample.labels, "shard": shard}, sample.value)
        yield from families.values()


def merged(texts: Mapping[str, str]) -> bytes:
    """The exposition of all shards; ``texts`` are theirs by shard."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Merged(texts))
    return generate_latest(registry)
