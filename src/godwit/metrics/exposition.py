"""A set of metrics, collected in one moment, and its text form for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec

from godwit.metrics.distribution import Distribution

if TYPE_CHECKING:
    from prometheus_client.core import Metric

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
PREFIX: Final = "godwit_"

MetricKind: TypeAlias = Literal["gauge", "counter", "histogram"]
LabelValues: TypeAlias = tuple[str, ...]


class MetricFamily(msgspec.Struct):
    """All values of one metric, by the values of its labels."""

    kind: MetricKind
    text: str
    labels: tuple[str, ...]
    values: list[tuple[LabelValues, float | Distribution]]


class MetricSet:
    """Metrics by name. Collecting is cheap; `render` does the work, in any thread."""

    def __init__(self) -> None:
        self.families: dict[str, MetricFamily] = {}

    def gauge(self, name: str, text: str, value: float, **labels: str) -> None:
        """Add a value that may rise and fall."""
        self._add("gauge", name, text, value, labels)

    def counter(self, name: str, text: str, value: float, **labels: str) -> None:
        """Add a total that only rises. Its name is given without `_total`."""
        self._add("counter", name, text, value, labels)

    def histogram(self, name: str, text: str, value: Distribution, **labels: str) -> None:
        """Add a distribution."""
        self._add("histogram", name, text, value, labels)

    def counters(self, name: str, text: str, label: str, values: Mapping[str, int]) -> None:
        """Add a counter for each value of a label. Without a value the metric is listed all the same."""
        self.families.setdefault(PREFIX + name, MetricFamily("counter", text, (label,), []))
        for key, value in values.items():
            self._add("counter", name, text, value, {label: key})

    def _add(
        self, kind: MetricKind, name: str, text: str, value: float | Distribution, labels: Mapping[str, str]
    ) -> None:
        family = self.families.get(PREFIX + name)
        if family is None:
            family = self.families[PREFIX + name] = MetricFamily(kind, text, tuple(labels), [])
        family.values.append((tuple([_text(labels[key]) for key in family.labels]), value))

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics as prometheus_client needs them."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        for name, family in self.families.items():
            if family.kind == "histogram":
                histogram = HistogramMetricFamily(name, family.text, labels=family.labels)
                for labels, value in family.values:
                    assert isinstance(value, Distribution)
                    histogram.add_metric(labels, buckets=value.buckets(), sum_value=value.total)
                yield histogram
                continue
            make = GaugeMetricFamily if family.kind == "gauge" else CounterMetricFamily
            metric = make(name, family.text, labels=family.labels)
            for labels, value in family.values:
                assert not isinstance(value, Distribution)
                metric.add_metric(labels, value)
            yield metric

    def render(self) -> bytes:
        """Return the text form."""
        from prometheus_client.exposition import generate_latest

        return generate_latest(self)


def render_process() -> bytes:
    """Return the usual metrics of a process, `process_...`, of this one. There are none outside Linux."""
    from prometheus_client.exposition import generate_latest
    from prometheus_client.process_collector import ProcessCollector

    return generate_latest(ProcessCollector(registry=None))


def _text(value: str) -> str:
    """Return a label's value as valid Unicode: names come from the network, and from the file system."""
    return value.encode("utf-8", "replace").decode()
