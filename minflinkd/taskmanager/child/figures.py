"""Metrics of a TaskManager's processes: memory, threads and descriptors of supervisor, session child and JVM."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import psutil

from minflinkd.taskmanager.child.age import Figures
from minflinkd.taskmanager.child.start import Work

# What is only measured must not end what it measures: the kernel refuses to open files when too many are open.
_UNKNOWN = (psutil.Error, OSError)


def process_metrics(pids: dict[str, int | None]) -> dict[str, float]:
    """Return `{name}.rss_bytes`, `.threads`, `.descriptors` of each living process.

    Of another user's process (`taskmanager.run-as`), only root sees the descriptors. Cheap enough for every heartbeat.
    """
    metrics: dict[str, float] = {}
    for name, pid in pids.items():
        if pid is None:
            continue
        with contextlib.suppress(*_UNKNOWN):
            figures = _figures(pid)
            metrics[f"{name}.rss_bytes"] = float(figures.memory)
            metrics[f"{name}.threads"] = float(figures.threads)
            if figures.open_files:
                metrics[f"{name}.descriptors"] = float(figures.open_files)
    return metrics


def worker_metrics(jvm: int | None) -> dict[str, float]:
    """Return `python_workers.rss_bytes`, `.processes`: of all that the JVM has started, which are Python workers.

    They are forked, and memory that they share counts for each. It looks at all processes of the host, so ask seldom.
    """
    memory = processes = 0
    with contextlib.suppress(*_UNKNOWN):
        for process in psutil.Process(jvm).children(recursive=True) if jvm is not None else ():
            with contextlib.suppress(*_UNKNOWN):
                memory += process.memory_info().rss
                processes += 1
    return {"python_workers.rss_bytes": float(memory), "python_workers.processes": float(processes)}


def figures_together(pids: Iterable[int | None]) -> Figures:
    """Return the sums over those of these processes that live."""
    threads = open_files = memory = 0
    for pid in pids:
        with contextlib.suppress(*_UNKNOWN):
            one = _figures(pid) if pid is not None else Figures(0, 0, 0)
            threads, open_files, memory = threads + one.threads, open_files + one.open_files, memory + one.memory
    return Figures(threads, open_files, memory)


def work_of(pid: int) -> Work:
    """Return the work that a process and all its descendants have done so far."""
    cpu, read = 0.0, 0
    with contextlib.suppress(*_UNKNOWN):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with contextlib.suppress(*_UNKNOWN):
                times = process.cpu_times()
                cpu += times.user + times.system
                read += process.io_counters().read_chars
    return Work(cpu, read)


def _figures(pid: int) -> Figures:
    """Return the figures of one process. Raises psutil.Error, OSError."""
    process = psutil.Process(pid)
    with process.oneshot():
        try:
            open_files = process.num_fds()
        except psutil.AccessDenied:  # it runs as another user, and this thread uses files as ours
            open_files = 0
        return Figures(process.num_threads(), open_files, process.memory_info().rss)
