"""What a TaskManager tells of its own processes: memory, threads, descriptors of supervisor, session child and JVM."""

from __future__ import annotations

import contextlib

import psutil


def process_metrics(pids: dict[str, int | None]) -> dict[str, float]:
    """`{name}.rss_bytes`, `.threads`, `.descriptors` for each living process; cheap enough for every heartbeat."""
    metrics: dict[str, float] = {}
    for name, pid in pids.items():
        if pid is None:
            continue
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            with process.oneshot():
                metrics[f"{name}.rss_bytes"] = float(process.memory_info().rss)
                metrics[f"{name}.threads"] = float(process.num_threads())
                metrics[f"{name}.descriptors"] = float(process.num_fds())
    return metrics
