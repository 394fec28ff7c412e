"""Whether a session child has aged and should be replaced when idle (R6a). Pure.

Every query leaves a little behind in a JVM. A session that lives for months exceeds some bound in the end, and one that
leaks does so soon.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Figures:
    """Figures of the session child and its JVM together. `memory` is resident memory in bytes."""

    threads: int
    open_files: int
    memory: int


def sensible(bounds: Figures, fresh: Figures) -> Figures:
    """Return `bounds`, raised to at least 1.5 times the figures of a fresh session.

    Otherwise its successor would count as aged at once, and sessions would be replaced without end.
    """
    return Figures(
        threads=max(bounds.threads, fresh.threads * 3 // 2),
        open_files=max(bounds.open_files, fresh.open_files * 3 // 2),
        memory=max(bounds.memory, fresh.memory * 3 // 2),
    )


def aged(figures: Figures, bounds: Figures) -> str:
    """Return which bound is exceeded, and by how much, or an empty string."""
    if figures.threads > bounds.threads:
        return f"{figures.threads} threads, more than {bounds.threads}"
    if figures.open_files > bounds.open_files:
        return f"{figures.open_files} open files, more than {bounds.open_files}"
    if figures.memory > bounds.memory:
        return f"{figures.memory >> 20} MiB of memory, more than {bounds.memory >> 20} MiB"
    return ""
