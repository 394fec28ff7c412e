"""Metrics of the physical files that hold the state of a TaskManager's tasks (F6, F10)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from minflinkd.filemerging.compaction import FileUse, space_use
from minflinkd.taskmanager.attempt import Attempt


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
