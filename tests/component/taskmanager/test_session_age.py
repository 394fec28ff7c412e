"""The figures by which a session child ages, of real processes."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from minflinkd.taskmanager.child.age import Figures
from minflinkd.taskmanager.child.figures import figures_together, process_metrics, worker_metrics


def test_figures_of_two_processes_are_added_and_one_that_is_gone_counts_nothing() -> None:
    """The two are the session child and its JVM (R6a)."""
    with _still_process() as first, _still_process() as second:
        one, other = process_metrics({"p": first.pid}), process_metrics({"p": second.pid})
        both = figures_together((first.pid, second.pid, None))
        assert both.open_files == one["p.descriptors"] + other["p.descriptors"]
        assert both.threads == one["p.threads"] + other["p.threads"]
    assert figures_together((first.pid,)) == Figures(0, 0, 0)


def test_what_a_jvm_has_started_is_measured_with_all_its_descendants() -> None:
    """Spark's Python workers are forked by a process that the JVM starts. One that has ended counts nothing (E17)."""
    fork = "import os, time; pid = os.fork(); print('up', flush=True) if pid else None; time.sleep(60)"
    parent = f"import subprocess, sys; sys.exit(subprocess.Popen([sys.executable, '-c', {fork!r}]).wait())"
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE) as jvm:
        assert jvm.stdout is not None
        assert jvm.stdout.readline() == b"up\n"
        workers = psutil.Process(jvm.pid).children(recursive=True)
        found = worker_metrics(jvm.pid)
        assert found["python_workers.processes"] == 2
        assert found["python_workers.rss_bytes"] == pytest.approx(sum(w.memory_info().rss for w in workers), rel=0.2)
        for process in (*workers, jvm):
            process.kill()
    nothing = {"python_workers.rss_bytes": 0.0, "python_workers.processes": 0.0}
    assert worker_metrics(jvm.pid) == worker_metrics(None) == nothing


@contextmanager
def _still_process() -> Iterator[subprocess.Popen[bytes]]:
    """Start a process and wait until it only waits. A process that starts still opens and closes files."""
    command = [sys.executable, "-c", "print('up', flush=True); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        yield child
        child.communicate(b"\n")


def test_figures_that_cannot_be_read_end_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The session is watched by the same task: if the kernel opens no more files, its processes go on."""

    def refuse(pid: int) -> psutil.Process:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(psutil, "Process", refuse)
    here = os.getpid()
    assert figures_together((here,)) == Figures(0, 0, 0)
    assert worker_metrics(here) == {"python_workers.rss_bytes": 0.0, "python_workers.processes": 0.0}
    assert process_metrics({"session": here}) == {}
