"""Says which figures of the last run of `make bench` are worse than their own history.

A figure is worse if it differs from the median of the runs before by more than 10 %, and by more than what the machine
explains: the spread of the earlier runs, and how much an empty loop was slowed down in this one. Only runs on the same
kind of machine count, and `--quick` only beside `--quick`. Exits with 1 if a figure is worse.
"""

from __future__ import annotations

import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum

import msgspec
from rich.table import Table

from benchmarks.records import Record, stored
from benchmarks.running import console, say

TOLERATED = 0.10
RUNS = 10  # earlier ones that count
ROBUST = 1.4826  # makes the median deviation of normally distributed values their standard deviation


class Verdict(StrEnum):
    NEW = "new"
    SAME = "same"
    WORSE = "worse"
    BETTER = "better"


class Compared(msgspec.Struct, frozen=True):
    now: Record
    before: float  # the median of the earlier runs; 0 if there is none
    change: float  # a share of `before`; more is worse, whatever the unit
    explained: float  # as large a change is no change
    verdict: Verdict


def compared(records: Sequence[Record]) -> Iterator[Compared]:
    """Compare each figure of the last run, in their order."""
    if not records:
        return
    last = records[-1]
    comparable = [r for r in records if r.machine == last.machine and r.quick == last.quick]
    earlier: dict[tuple[str, str, str], list[Record]] = defaultdict(list)
    for record in comparable:
        if record.run != last.run:
            earlier[_key(record)].append(record)
    for record in comparable:
        if record.run == last.run:
            yield _judged(record, earlier[_key(record)][-RUNS:])


def _key(record: Record) -> tuple[str, str, str]:
    return record.figure.bench, record.figure.figure, record.figure.unit


def _judged(now: Record, earlier: Sequence[Record]) -> Compared:
    medians = [record.figure.median for record in earlier]
    before = statistics.median(medians) if medians else 0.0
    if not before:  # nothing to compare with, or a share of nothing
        return Compared(now, before, 0.0, 0.0, Verdict.NEW)
    change = (now.figure.median - before) / abs(before)
    if now.figure.unit.endswith("/s"):  # a rate: less is worse
        change = -change
    explained = TOLERATED + _spread(earlier, before) + (now.noise.median - 1 if now.noise else 0.0)
    verdict = Verdict.WORSE if change > explained else Verdict.BETTER if change < -explained else Verdict.SAME
    return Compared(now, before, change, explained, verdict)


def _spread(earlier: Sequence[Record], before: float) -> float:
    """How far apart earlier runs were; of one or two, how far apart their own samples were."""
    if len(earlier) >= 3:
        return ROBUST * statistics.median(abs(record.figure.median - before) for record in earlier) / abs(before)
    return max((record.figure.max - record.figure.min) / 2 for record in earlier) / abs(before)


def table(found: Iterable[Compared]) -> Table:
    shown = Table("row", "figure", "unit", "before", "now", "worse by", "explained by the machine", "")
    for one in found:
        figure = one.now.figure
        share = f"{one.change:+.0%}", f"{one.explained:.0%}"
        shown.add_row(
            figure.bench, figure.figure, figure.unit, f"{one.before:.4g}", f"{figure.median:.4g}", *share, one.verdict
        )
    return shown


def main() -> None:
    records = stored()
    found = list(compared(records))
    told = [one for one in found if one.verdict in (Verdict.WORSE, Verdict.BETTER)]
    if told:
        console.print(table(told))
    counts = ", ".join(f"{sum(one.verdict is v for one in found)} {v}" for v in Verdict)
    say(f"{records[-1].commit} of {records[-1].run}: {counts}" if records else "no run has been recorded: make bench")
    sys.exit(any(one.verdict is Verdict.WORSE for one in found))


if __name__ == "__main__":
    main()
