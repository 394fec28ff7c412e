"""Metrics of TaskManagers' processes, from what their heartbeats say: memory, heap, garbage collection."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from minflinkd.metrics.samples import ClusterSample


def of_processes(sample: ClusterSample) -> Iterator[Metric]:
    memory = GaugeMetricFamily(
        "minflinkd_taskmanager_memory_bytes",
        "Resident memory of a TaskManager's processes.",
        labels=["taskmanager", "process"],
    )
    for task_manager, processes in sample.memory.items():
        for process, used in processes.items():
            memory.add_metric([task_manager, process], used)
    yield memory
    yield from _of_jvms(sample)


def _of_jvms(sample: ClusterSample) -> Iterator[Metric]:
    labels = ["taskmanager"]
    used = GaugeMetricFamily("minflinkd_taskmanager_heap_used_bytes", "Heap that a session's JVM uses.", labels=labels)
    most = GaugeMetricFamily(
        "minflinkd_taskmanager_heap_max_bytes", "Heap that a session's JVM may use.", labels=labels
    )
    other = GaugeMetricFamily(
        "minflinkd_taskmanager_non_heap_used_bytes", "Memory that a session's JVM uses besides its heap.", labels=labels
    )
    share = GaugeMetricFamily(
        "minflinkd_taskmanager_gc_share",
        "Share of the last minute for which a session's JVM stood still to collect garbage.",
        labels=labels,
    )
    count = CounterMetricFamily(
        "minflinkd_taskmanager_gc_collections", "Garbage collections of a session.", labels=["taskmanager", "collector"]
    )
    spent = CounterMetricFamily(
        "minflinkd_taskmanager_gc_seconds",
        "Seconds that a session spent in garbage collections.",
        labels=["taskmanager", "collector"],
    )
    for task_manager, jvm in sample.jvms.items():
        used.add_metric([task_manager], jvm.heap_used)
        most.add_metric([task_manager], jvm.heap_max)
        other.add_metric([task_manager], jvm.non_heap_used)
        if jvm.gc_share is not None:
            share.add_metric([task_manager], jvm.gc_share)
        for collector, (collections, seconds) in sorted(jvm.collections.items()):
            count.add_metric([task_manager, collector], collections)
            spent.add_metric([task_manager, collector], seconds)
    yield from (used, most, other, share, count, spent)
