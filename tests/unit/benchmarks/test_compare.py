"""Which figures of a run of the benchmarks are worse than those of earlier runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import records
from benchmarks.compare import Verdict, compared
from benchmarks.figures import Row
from benchmarks.noise import Noise, of_loops
from benchmarks.records import Record

QUIET = Noise(median=1.0, high=1.1, fastest=5.0)
BUSY = Noise(median=1.6, high=3.0, fastest=5.0)


def run(number: int, value: float, unit: str = "s", *, noise: Noise = QUIET, quick: bool = False) -> Record:
    row = Row("submit", "Submission", noise=noise)
    row.add("submit -> RUNNING", unit, [value * 0.99, value, value * 1.01])
    (record,) = records.of_row(row, f"2026-11-{number:02}", "abc", "a machine", quick=quick)
    return record


def verdict(*found: Record) -> Verdict:
    (one,) = compared(found)
    return one.verdict


def test_a_figure_that_got_twelve_percent_slower_is_worse() -> None:
    """What is said are changes of more than 10 %."""
    before = [run(n, 1.0) for n in range(1, 6)]
    assert verdict(*before, run(6, 1.12)) is Verdict.WORSE
    assert verdict(*before, run(6, 1.09)) is Verdict.SAME
    assert verdict(*before, run(6, 0.85)) is Verdict.BETTER


def test_of_a_rate_less_is_worse() -> None:
    """Rows, bytes and requests per second are better the more there are."""
    before = [run(n, 100.0, "rows/s") for n in range(1, 6)]
    assert verdict(*before, run(6, 80.0, "rows/s")) is Verdict.WORSE
    assert verdict(*before, run(6, 120.0, "rows/s")) is Verdict.BETTER


def test_a_busy_machine_explains_what_is_slower() -> None:
    """If an empty loop took 1.6 times as long, too, a figure may take 1.7 times as long."""
    before = [run(n, 1.0) for n in range(1, 6)]
    assert verdict(*before, run(6, 1.5)) is Verdict.WORSE
    assert verdict(*before, run(6, 1.65, noise=BUSY)) is Verdict.SAME
    assert verdict(*before, run(6, 1.75, noise=BUSY)) is Verdict.WORSE


def test_a_figure_that_was_never_steady_needs_a_larger_change() -> None:
    """The spread of the earlier runs is not a change."""
    before = [run(n, value) for n, value in enumerate((1.0, 1.3, 0.8, 1.2, 0.9), start=1)]
    assert verdict(*before, run(6, 1.3)) is Verdict.SAME
    assert verdict(*before, run(6, 1.6)) is Verdict.WORSE


def test_one_slow_run_in_the_past_changes_nothing() -> None:
    """Compared is with the median, so a single outlier neither hides a change nor makes one."""
    before = [run(n, 5.0 if n == 3 else 1.0) for n in range(1, 6)]
    assert verdict(*before, run(6, 1.12)) is Verdict.WORSE
    assert verdict(*before, run(6, 1.0)) is Verdict.SAME


@pytest.mark.parametrize("earlier", [[], [run(1, 0.5, quick=True)], [run(1, 500.0, "ms")]])
def test_a_figure_without_a_past_is_new(earlier: list[Record]) -> None:
    """A quick run has no bearing on one in full, and a figure in another unit is another figure."""
    assert verdict(*earlier, run(2, 1.0)) is Verdict.NEW


def test_what_was_stored_is_read_again(tmp_path: Path) -> None:
    """Runs are added at the end of the file, a line for each figure."""
    path = tmp_path / "history.jsonl"
    for number in (1, 2):
        records.append([run(number, 1.0)], path)
    assert records.stored(path) == [run(1, 1.0), run(2, 1.0)]


def test_noise_is_told_as_a_multiple_of_the_fastest_loop() -> None:
    """A loop of 5 ms that often takes 10 ms shares its core. Few loops say nothing."""
    assert of_loops([5.0] * 5 + [10.0] * 6) == Noise(median=2.0, high=2.0, fastest=5.0)
    assert of_loops([5.0] * 9) is None
