"""What a TaskManager says of its processes and its session's JVM: for the metrics, and in Flink's form. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from minflinkd.metrics.samples import JvmSample
from minflinkd.rest.schemas.taskmanagers import GarbageCollector, TaskManagerMetrics

PROCESSES: Final = ("supervisor", "session", "jvm", "python_workers")
MOST_COLLECTORS: Final = 8  # a JVM has two to four
_COLLECTOR: Final = "jvm.gc."
_COUNT: Final = ".count"


def collectors(metrics: Mapping[str, float]) -> Iterator[tuple[str, float, float]]:
    """Yield the name of each collector, its number of collections, and their milliseconds."""
    names = sorted(name for name in metrics if name.startswith(_COLLECTOR) and name.endswith(_COUNT))
    for name in names[:MOST_COLLECTORS]:
        of_collector = name.removesuffix(_COUNT)
        yield of_collector.removeprefix(_COLLECTOR), metrics[name], metrics.get(f"{of_collector}.time_ms", 0.0)


def memory(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the resident memory by kind of process."""
    return {name: used for name in PROCESSES if (used := metrics.get(f"{name}.rss_bytes")) is not None}


def jvm_sample(metrics: Mapping[str, float]) -> JvmSample | None:
    """Return None while no session has said anything of its JVM."""
    if (used := metrics.get("jvm.heap.used_bytes")) is None:
        return None
    return JvmSample(
        heap_used=used,
        heap_max=metrics.get("jvm.heap.max_bytes", 0.0),
        non_heap_used=metrics.get("jvm.non_heap.used_bytes", 0.0),
        collections={name: (count, ms / 1000) for name, count, ms in collectors(metrics)},
        gc_share=metrics.get("jvm.gc_share"),
    )


def flink_metrics(metrics: Mapping[str, float]) -> TaskManagerMetrics:
    """Return the figures in Flink's form. What is not known is 0, as at Flink."""

    def figure(name: str) -> int:
        return int(metrics.get(f"jvm.{name}", 0))

    return TaskManagerMetrics(
        heap_used=figure("heap.used_bytes"),
        heap_committed=figure("heap.committed_bytes"),
        heap_max=figure("heap.max_bytes"),
        non_heap_used=figure("non_heap.used_bytes"),
        non_heap_committed=figure("non_heap.committed_bytes"),
        non_heap_max=figure("non_heap.max_bytes"),
        direct_count=figure("direct.count"),
        direct_used=figure("direct.used_bytes"),
        direct_max=figure("direct.capacity_bytes"),
        mapped_count=figure("mapped.count"),
        mapped_used=figure("mapped.used_bytes"),
        mapped_max=figure("mapped.capacity_bytes"),
        garbage_collectors=tuple(
            GarbageCollector(name=name, count=int(count), time=int(ms)) for name, count, ms in collectors(metrics)
        ),
    )
