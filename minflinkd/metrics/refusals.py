"""Requests over HTTP that were refused for who sent them, by reason (E41)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector


class RefusalCollector(Collector):
    """Counts, and shows the counts. The reasons are few and the daemon's own.

    `reasons`: are shown before there is a refusal. For Prometheus, a counter that begins with 20 has not increased.
    """

    def __init__(self, reasons: Iterable[str] = ()) -> None:
        self.counts: Counter[str] = Counter(dict.fromkeys(reasons, 0))

    def collect(self) -> Iterator[Metric]:
        refused = CounterMetricFamily(
            "minflinkd_http_refused", "Requests that were refused for who sent them.", labels=["reason"]
        )
        for reason, count in sorted(self.counts.items()):
            refused.add_metric([reason], count)
        yield refused
