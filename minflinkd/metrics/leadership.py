"""Metrics of the leader. A standby only reports that it does not lead, and how long it has known no leader."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from minflinkd.metrics.samples import LeadershipSample

LEADER = ("minflinkd_leader", "1 if this daemon leads.")
WITHOUT_LEADER = (
    "minflinkd_without_leader_seconds",
    "How many seconds this daemon has known no leader. At the leader: before it began to lead.",
)


class LeadershipCollector(Collector):
    def __init__(self, sample: Callable[[], LeadershipSample] = LeadershipSample) -> None:
        self._sample = sample

    def describe(self) -> Iterable[Metric]:
        return ()  # otherwise the registry would collect a sample to learn the names, before the daemon leads

    def collect(self) -> Iterator[Metric]:
        sample = self._sample()
        name, text = LEADER
        yield GaugeMetricFamily(name, text, value=1)
        yield GaugeMetricFamily(
            "minflinkd_leadership_seconds",
            "How many seconds this daemon has led.",
            value=max(0.0, time.time() - sample.since_ms / 1000) if sample.since_ms else 0.0,
        )
        yield GaugeMetricFamily("minflinkd_leadership_epoch", "Number of this leadership.", value=sample.epoch)
        name, text = WITHOUT_LEADER
        yield GaugeMetricFamily(name, text, value=sample.without_leader)
        yield GaugeMetricFamily("minflinkd_standbys", "Number of standby daemons.", value=sample.standbys)
        yield CounterMetricFamily(
            "minflinkd_adopted_tasks",
            "Tasks that a JobMaster of this daemon adopted from an earlier JobMaster, without a restart.",
            value=sample.adopted_tasks,
        )
