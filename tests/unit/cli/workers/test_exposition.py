"""One page of metrics for several workers: each sample has its worker, and histograms add up."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from shardbus.histograms import Histogram
from shardbus_cli.workers.exposition import merged


class Page:
    """The histogram of one worker, as a node exposes it."""

    def __init__(self, *seconds: float) -> None:
        self.histogram = Histogram((0.1, 1.0))
        for value in seconds:
            self.histogram.observe(value)

    def collect(self) -> list[HistogramMetricFamily]:
        family = HistogramMetricFamily("shardbus_d_seconds", "how long", labels=["entity_type"])
        family.add_metric(["cart"], self.histogram.cumulative(), self.histogram.sum)
        return [family]

    def text(self) -> str:
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return generate_latest(registry).decode()


def test_B55_histograms_of_workers_stay_apart_and_sum_up_to_that_of_all() -> None:
    page = merged({0: Page(0.05, 0.5).text(), 1: Page(0.5, 5.0, 7.0).text()})
    [family] = text_string_to_metric_families(page)
    assert (family.name, family.type) == ("shardbus_d_seconds", "histogram")
    both: dict[tuple[str, str], float] = {}
    for sample in family.samples:
        assert sample.labels["worker"] in {"0", "1"}
        assert sample.labels["entity_type"] == "cart"
        key = (sample.name, sample.labels.get("le", ""))
        both[key] = both.get(key, 0.0) + sample.value
    assert both == {
        ("shardbus_d_seconds_bucket", "0.1"): 1,
        ("shardbus_d_seconds_bucket", "1"): 3,
        ("shardbus_d_seconds_bucket", "+Inf"): 5,
        ("shardbus_d_seconds_count", ""): 5,
        ("shardbus_d_seconds_sum", ""): 0.05 + 0.5 + 0.5 + 5.0 + 7.0,
    }
    assert page.count("# TYPE") == 1
