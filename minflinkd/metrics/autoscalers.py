"""The metrics of autoscalers (R62)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from minflinkd.metrics.samples import AutoscalerSample


def of_autoscalers(samples: Sequence[tuple[str, AutoscalerSample]]) -> Iterator[Metric]:
    """Yield the metrics of all jobs that have one."""
    by_group: list[tuple[str, str, Callable[[AutoscalerSample], Mapping[str, float]]]] = [
        ("slots", "Slots of a slot sharing group of a job with an autoscaler.", lambda s: s.slots),
        ("wanted_slots", "Slots that the rows that come in need, at the target utilization.", lambda s: s.wanted),
        ("utilization", "Share of its slots that the rows that come in use.", lambda s: s.utilization),
    ]
    for name, text, values in by_group:
        family = GaugeMetricFamily(f"minflinkd_job_autoscaler_{name}", text, labels=["job", "group"])
        for job, sample in samples:
            for group, value in sorted(values(sample).items()):
                family.add_metric([job, group], value)
        yield family
    limited = GaugeMetricFamily(
        "minflinkd_job_autoscaler_limited", "1 while a job needs more slots than it can get.", labels=["job"]
    )
    changes = CounterMetricFamily(
        "minflinkd_job_autoscaler_changes",
        "Changes that an autoscaler has asked for since the daemon leads.",
        labels=["job", "direction"],
    )
    for job, sample in samples:
        limited.add_metric([job], sample.limited)
        for direction, count in sorted(sample.changes.items()):
            changes.add_metric([job, direction], count)
    yield from (limited, changes)
