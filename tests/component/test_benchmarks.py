"""What every row of the benchmarks shares: the loop that tells how busy the machine is."""

from __future__ import annotations

import subprocess
import sys
from itertools import islice

import psutil

from benchmarks.noise import heard


def test_the_loop_tells_how_long_it_took_again_and_again() -> None:
    """One number a line, in milliseconds, until it is ended."""
    command = [sys.executable, "-m", "benchmarks.noise"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = [float(line) for line in islice(process.stdout, 3)]
        process.terminate()
    assert all(0 < one < 60_000 for one in told)


def test_the_loop_ends_with_its_block() -> None:
    """A benchmark leaves no process behind."""
    before = set(psutil.Process().children())
    with heard():
        (process,) = set(psutil.Process().children()) - before
    assert not process.is_running()
