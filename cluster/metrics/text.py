"""Figures as Prometheus' text."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from cluster.metrics.catalog import CATALOG, COUNTERS, GAUGES, HISTOGRAMS, NAMING_MODELS, TOTALS_NOW
from cluster.metrics.figures import Figures

WHOLE = "all"  # the label `engine` of what is counted for the whole application


def render(figures: Collector) -> bytes:
    """The format is that of Prometheus 0.0.4: OpenMetrics has no colons in names."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(figures)
    return generate_latest(registry)


class FigureFamilies(Collector):
    """Figures with names, labels and buckets, of which `collect` makes families of samples.
    `bounds`: of each histogram's buckets; labels of gauges begin with the engine's number.
    """

    def __init__(self, figures: Figures, bounds: Mapping[str, Sequence[float]], model_name: str) -> None:
        self._by_name: dict[str, list[tuple[tuple[str, ...], float | list[float]]]] = defaultdict(list)
        for (name, labels), value in sorted(figures.items(), key=lambda item: item[0]):
            self._by_name[name].append((labels, value))
        self._bounds = bounds
        self._model_name = model_name

    def collect(self) -> Iterator[Family]:
        for name in CATALOG:
            if name in self._by_name:
                yield self._family(name)

    def _family(self, name: str) -> Family:
        metric = CATALOG[name]
        family: Family
        if name in TOTALS_NOW:
            gauge = GaugeMetricFamily(name, metric.help, labels=("model_name", *metric.labels))
            for labels, value in self._by_name[name]:
                gauge.add_metric((self._model_name, *labels), _number(value))
            return gauge
        names = ("model_name", "engine", *metric.labels)
        if name in GAUGES:
            family = GaugeMetricFamily(name, metric.help, labels=names)
            for labels, value in self._by_name[name]:
                family.add_metric((self._model_name, *labels), _number(value))
        elif name in COUNTERS:
            family = CounterMetricFamily(name, metric.help, labels=names)
            for labels, value in self._by_name[name]:
                model_name, *others = labels if name in NAMING_MODELS else (self._model_name, *labels)
                if len(others) == len(metric.labels):  # not of another version of the software
                    family.add_metric((model_name, WHOLE, *others), _number(value))
        else:
            assert name in HISTOGRAMS, name
            family = HistogramMetricFamily(name, metric.help, labels=names)
            for labels, value in self._by_name[name]:
                self._add_histogram(family, name, labels, value)
        return family

    def _add_histogram(
        self, family: HistogramMetricFamily, name: str, labels: tuple[str, ...], value: float | list[float]
    ) -> None:
        assert isinstance(value, list), f"{name} is no histogram"
        bounds = [*(str(float(bound)) for bound in self._bounds[name]), "+Inf"]
        if len(bounds) != len(value) - 1:
            return  # of another version of the software
        so_far, buckets = 0.0, []
        for bound, count in zip(bounds, value[:-1], strict=True):
            so_far += count
            buckets.append((bound, so_far))
        family.add_metric((self._model_name, WHOLE, *labels), buckets, value[-1])


class MergedFamilies(Collector):
    """The figures of several models, each family once."""

    def __init__(self, figures: Sequence[FigureFamilies]) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Family]:
        merged: dict[str, Family] = {}
        for family in chain.from_iterable(each.collect() for each in self._figures):
            first = merged.setdefault(family.name, family)
            if first is not family:
                first.samples.extend(family.samples)
        for name in NAMING_MODELS & merged.keys():  # of one model in the figures of several
            merged[name].samples[:] = _summed(merged[name].samples)
        yield from merged.values()


def _summed(samples: Sequence[Sample]) -> list[Sample]:
    """One for each set of labels."""
    by_labels: dict[tuple[str, ...], Sample] = {}
    for sample in samples:
        labels = tuple(sample.labels.values())
        known = by_labels.get(labels)
        by_labels[labels] = sample if known is None else known._replace(value=known.value + sample.value)
    return list(by_labels.values())


def _number(value: float | list[float]) -> float:
    assert not isinstance(value, list), "a histogram has no single value"
    return value
