"""How busy the machine was while a row was measured: an empty loop, timed four times a second.

The loop runs in a process of its own, so that the benchmark's own threads do not slow it down, and takes about 2 % of a
core. On a quiet machine it always takes the same time. Other work makes it wait for a core or share one.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

PAUSE = 0.25
TURNS = 200_000  # some 5 ms
LONGEST = 6 * 3600.0  # a loop whose benchmark was killed ends by itself


class Noise(msgspec.Struct, frozen=True):
    """How long the loop took, as a multiple of the fastest one of the same row."""

    median: float
    high: float  # 90 % are below
    fastest: float  # milliseconds: says how fast this machine is at all

    def sentence(self) -> str:
        return f"An empty loop took {self.median:.2f} times its fastest (90 % of them below {self.high:.2f} times)."


def of_loops(milliseconds: Sequence[float]) -> Noise | None:
    """Sum up how long the loops took. None if there are too few to say anything."""
    if len(milliseconds) < 10:
        return None
    fastest = min(milliseconds)
    high = statistics.quantiles(milliseconds, n=10)[-1]
    return Noise(round(statistics.median(milliseconds) / fastest, 3), round(high / fastest, 3), round(fastest, 3))


@contextmanager
def heard() -> Iterator[list[float]]:
    """Time loops during the block. The list has them, in milliseconds, when the block has ended."""
    loops: list[float] = []
    command = (sys.executable, "-m", "benchmarks.noise")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1])
    try:
        yield loops
    finally:
        process.terminate()
        told, _ = process.communicate(timeout=30)
        loops += [float(line) for line in told.splitlines(keepends=True) if line.endswith("\n")]


def main() -> None:
    end = time.monotonic() + LONGEST
    while time.monotonic() < end:
        began = time.perf_counter()
        for _ in range(TURNS):
            pass
        print(1000 * (time.perf_counter() - began), flush=True)
        time.sleep(PAUSE)


if __name__ == "__main__":
    main()
