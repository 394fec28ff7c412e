"""The figures by which a session child ages, of real processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from minflinkd.taskmanager.child.age import Figures
from minflinkd.taskmanager.child.figures import figures_together, process_metrics


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
