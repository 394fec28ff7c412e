"""A row's figures: medians with their minimum and maximum, as JSON lines and as a table."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
from rich.table import Table

from benchmarks.noise import Noise


class Beside(msgspec.Struct, frozen=True):
    """The figure to compare with: the same work done differently, in the same run."""

    what: str
    median: float
    min: float
    max: float
    n: int
    ratio: float | None  # our median / this one


class Figure(msgspec.Struct, frozen=True):
    bench: str
    figure: str
    unit: str
    median: float
    min: float
    max: float
    n: int
    beside: Beside | None = None

    def cells(self) -> tuple[str, ...]:
        other = self.beside
        cells = (self.figure, self.unit, _number(self.median), _range(self), str(self.n))
        if other is None:
            return (*cells, "")
        ratio = "" if other.ratio is None else f", ratio {other.ratio:.3g}"
        return (*cells, f"{other.what}: {_number(other.median)} ({_range(other)}, n {other.n}){ratio}")


HEADER = ("figure", "unit", "median", "min - max", "n", "beside")


@dataclass
class Row:
    """The figures of one row, collected one by one."""

    name: str
    title: str
    figures: list[Figure] = field(default_factory=list)
    load: float = 0.0  # load average of the last minute when the row began
    noise: Noise | None = None  # while it was measured

    def add(
        self, figure: str, unit: str, values: Sequence[float], beside: tuple[str, Sequence[float]] | None = None
    ) -> None:
        """Add a figure, unless there are no values. `beside` is the name and the values of the comparison."""
        if not values:
            return
        median = statistics.median(values)
        other = None
        if beside is not None and beside[1]:
            theirs = statistics.median(beside[1])
            ratio = _rounded(median / theirs) if theirs else None
            low, high = _rounded(min(beside[1])), _rounded(max(beside[1]))
            other = Beside(beside[0], _rounded(theirs), low, high, len(beside[1]), ratio)
        found = (_rounded(median), _rounded(min(values)), _rounded(max(values)), len(values))
        self.figures.append(Figure(self.name, figure, unit, *found, beside=other))

    def add_phases(self, prefix: str, samples: Sequence[Mapping[str, float]], unit: str = "s") -> None:
        """Add a figure for every key, in the order of first appearance."""
        for name in dict.fromkeys(key for sample in samples for key in sample):
            self.add(f"{prefix}{name}", unit, [sample[name] for sample in samples if name in sample])

    def json_lines(self) -> str:
        return "".join(f"{msgspec.json.encode(figure).decode()}\n" for figure in self.figures)

    def table(self) -> Table:
        table = Table(*HEADER, title=self.title, title_justify="left")
        for figure in self.figures:
            table.add_row(*figure.cells())
        return table

    def markdown(self) -> str:
        began = f"Load average of the minute before: {self.load:.1f}."
        if self.noise is not None:
            began = f"{began} {self.noise.sentence()}"
        lines = [f"## {self.title}", "", began, "", _line(HEADER), _line(["---"] * len(HEADER))]
        return "\n".join([*lines, *(_line(figure.cells()) for figure in self.figures), ""])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _rounded(value: float) -> float:
    """Round to four digits, which is more than a measurement on a shared machine is worth."""
    return float(f"{value:.4g}")


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _range(found: Figure | Beside) -> str:
    return f"{_number(found.min)} - {_number(found.max)}"
