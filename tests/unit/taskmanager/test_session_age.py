"""When a session child counts as aged."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from minflinkd.taskmanager.child.age import Figures, aged, sensible
from minflinkd.taskmanager.child.figures import figures_together, process_metrics

BOUNDS = Figures(threads=10, open_files=20, memory=30 << 20)


def test_a_session_at_its_bounds_has_not_aged() -> None:
    """A session may reach a bound, but not pass it (R6a)."""
    assert aged(BOUNDS, BOUNDS) == ""


@pytest.mark.parametrize(
    ("figures", "reason"),
    [
        (Figures(11, 0, 0), "11 threads, more than 10"),
        (Figures(0, 21, 0), "21 open files, more than 20"),
        (Figures(0, 0, 31 << 20), "31 MiB of memory, more than 30 MiB"),
    ],
)
def test_each_bound_counts_alone_and_is_named(figures: Figures, reason: str) -> None:
    """The bounds are threads, descriptors and memory (R6a)."""
    assert aged(figures, BOUNDS) == reason


def test_a_bound_that_a_fresh_session_nearly_passes_is_raised() -> None:
    """Otherwise each successor would be replaced at once (R6a)."""
    assert sensible(BOUNDS, Figures(threads=6, open_files=14, memory=0)) == Figures(10, 21, 30 << 20)


def test_figures_of_two_processes_are_added_and_one_that_is_gone_counts_nothing() -> None:
    """The two are the session child and its JVM (R6a)."""
    with _still_process() as first, _still_process() as second:
        one, other = process_metrics({"p": first.pid}), process_metrics({"p": second.pid})
        both = figures_together((first.pid, second.pid, None))
        assert both.open_files == one["p.descriptors"] + other["p.descriptors"]
        assert both.threads == one["p.threads"] + other["p.threads"]
    assert figures_together((first.pid,)) == Figures(0, 0, 0)


@contextmanager
def _still_process() -> Iterator[subprocess.Popen[bytes]]:
    """Start a process and wait until it only waits. A process that starts still opens and closes files."""
    command = [sys.executable, "-c", "print('up', flush=True); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        yield child
        child.communicate(b"\n")
