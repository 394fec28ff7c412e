"""Metrics of a TaskManager: its disk, the files with its tasks' state (F6, F10), and requests to storages (S6)."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from minflinkd.filemerging.compaction import FileUse, space_use
from minflinkd.storage.recording import StorageStatistics
from minflinkd.taskmanager.attempts.attempt import Attempt


def merging_metrics(attempts: Iterable[Attempt], new: int, rewritten: int) -> dict[str, float]:
    """Return the metrics, by each attempt's last completed checkpoint. `new` and `rewritten`: bytes since the start."""
    parts: dict[str, list[FileUse]] = defaultdict(list)
    for attempt in attempts:
        if attempt.runs:
            for name, use in attempt.uses.items():
                parts[name].append(use)  # tasks share files, and refer to different parts of them
    space = space_use(
        {name: FileUse(max(u.stored for u in uses), sum(u.referenced for u in uses)) for name, uses in parts.items()}
    )
    return {
        "merging.physical_files": float(len(parts)),
        "merging.bytes_stored": float(space.stored),
        "merging.bytes_referenced": float(space.referenced),
        "merging.space_amplification": space.amplification,
        "merging.bytes_new": float(new),
        "merging.bytes_rewritten": float(rewritten),
    }


def disk_metrics(directory: Path) -> dict[str, float]:
    """Return the space of the file system with the tasks' state; nothing if it is not there yet."""
    try:
        found = shutil.disk_usage(directory)
    except OSError:
        return {}
    return {"disk.free_bytes": float(found.free), "disk.total_bytes": float(found.total)}


def storage_metrics(statistics: Mapping[str, StorageStatistics]) -> dict[str, float]:
    """Return `storage.{scheme}.{request}.requests`, `.bytes`, `.seconds` for each kind of request made so far.

    The storages count each request where it is made.
    """
    return {
        f"storage.{scheme}.{kind}.{name}": float(getattr(made, name))
        for scheme, kinds in statistics.items()
        for kind, made in kinds.items()
        for name in ("requests", "bytes", "seconds")
    }
