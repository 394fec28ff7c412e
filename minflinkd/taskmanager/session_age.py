"""Whether a session child has aged and is to be replaced at an idle moment (R6a). Pure.

What queries leave behind in a JVM is little, but never nothing: a session that lives for months goes over some bound,
and one that leaks does so soon.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Figures:
    """Of the session child and its JVM together. `memory` is resident, in bytes."""

    threads: int
    open_files: int
    memory: int


def sensible(bounds: Figures, fresh: Figures) -> Figures:
    """`bounds`, but each at least half as much again as a fresh session has.

    Else its successor would be as old at once, and sessions would be replaced without end.
    """
    return Figures(
        threads=max(bounds.threads, fresh.threads * 3 // 2),
        open_files=max(bounds.open_files, fresh.open_files * 3 // 2),
        memory=max(bounds.memory, fresh.memory * 3 // 2),
    )


def aged(figures: Figures, bounds: Figures) -> str:
    """Which bound is passed, and by how much; empty while none is."""
    if figures.threads > bounds.threads:
        return f"{figures.threads} threads, more than {bounds.threads}"
    if figures.open_files > bounds.open_files:
        return f"{figures.open_files} open files, more than {bounds.open_files}"
    if figures.memory > bounds.memory:
        return f"{figures.memory >> 20} MiB of memory, more than {bounds.memory >> 20} MiB"
    return ""
