"""What a micro-batch costs: a fixed part, and a part that grows with its rows and shrinks with its slots. Pure.

    seconds = fixed + per_row * rows / slots

Planning, commits and scheduling are fixed: rows do not make them longer, nor slots shorter. A line through the last
minutes' micro-batches separates the two parts, if their rows differ enough. If they do not, the share of each part is
unknown between two bounds: nothing of the time grows with the rows, or all of it that can.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Final

from minflinkd.autoscaler.readings import Batch

LEAST: Final = 5  # micro-batches for a line through them
FEW: Final = 2  # micro-batches for the bounds
SPREAD: Final = 1.5  # how many times more rows the large ones must have than the small ones; chance does not do that
SPREAD_OF_WIDTHS: Final = 1.2  # the same if they had different numbers of slots, which is not chance
UNSURE: Final = 0.15  # standard error of the growing part, of a mean micro-batch: the line is no use above it
OFF: Final = 0.15  # by which those with the present slots may lie off a line through all, of their mean
FAR: Final = 4.0  # times the median distance from the line: a pause of the machine, which says nothing of the job
LATELY: Final = 60.0  # seconds whose micro-batches give the bounds


@dataclass(frozen=True)
class Cost:
    """Seconds: `fixed` of a micro-batch, `per_row` of a row on one slot, which is at most `highest`."""

    fixed: float
    per_row: float
    highest: float
    sure: bool  # False: the two parts cannot be told apart yet, and `per_row` is `highest`

    def seconds(self, rows: float, slots: float) -> float:
        """Return how long a micro-batch of so many rows takes on so many slots."""
        return self.fixed + self.per_row * rows / slots


def cost_of(batches: Sequence[Batch], width: int, now: float) -> Cost | None:
    """Return what micro-batches cost; None if there are too few.

    If those with the present width lie off the line through all, they count alone: with more slots than it has
    partitions, or with a part that one slot does for all, a task does not follow the formula from one width to another.
    """
    known = [b for b in batches if b.batches]
    own = [b for b in known if b.width == width]
    lately = [b for b in own if b.at > now - LATELY] or own or known
    lately = lately if len(lately) >= FEW else known[-FEW:]
    if len(lately) < FEW:
        return None
    load, seconds = fmean([b.load for b in lately]), fmean([b.seconds for b in lately])
    lowest = _least_fixed(known)
    highest = max(0.0, seconds - lowest) / load if load > 0 else 0.0
    line = _fitted(known, lowest)
    if line is not None and len(own) >= FEW and abs(seconds - line[0] - line[1] * load) > OFF * seconds:
        line = _fitted(own, lowest)
    if line is None:
        return Cost(fixed=lowest, per_row=highest, highest=highest, sure=False)
    return Cost(fixed=line[0], per_row=line[1], highest=max(highest, line[1]), sure=True)


def _fitted(used: Sequence[Batch], lowest: float) -> tuple[float, float] | None:
    """Return the fixed part and the slope of a line through micro-batches; None if there is no certain one."""
    if len(used) < LEAST or not _spread(used):
        return None
    points = [(b.load, b.seconds) for b in used]
    fixed, slope, _ = _line(points)
    off = [abs(y - fixed - slope * x) for x, y in points]
    far = FAR * max(median(off), 1e-3)
    near = [point for point, distance in zip(points, off, strict=True) if distance <= far]
    if len(near) < LEAST:
        return None
    fixed, slope, error = _line(near)
    mean_x, mean_y = fmean([x for x, _ in near]), fmean([y for _, y in near])
    if mean_x <= 0 or error * mean_x > UNSURE * mean_y:
        return None
    fixed = min(max(fixed, lowest), min(y for _, y in near))
    return fixed, max(0.0, (mean_y - fixed) / mean_x)


def _least_fixed(batches: Sequence[Batch]) -> float:
    """Return the seconds that are certainly fixed: what Spark says it did outside, and what no slot worked in."""
    outside = min(b.outside for b in batches)
    idle = [(1 - min(1.0, b.parallel)) * b.seconds for b in batches if b.parallel is not None]
    known = max(outside, median(idle)) if idle else outside
    return min(known, min(b.seconds for b in batches))


def _spread(batches: Sequence[Batch]) -> bool:
    loads = sorted([b.load for b in batches])
    small, large = loads[len(loads) // 10], loads[-1 - len(loads) // 10]
    several = len({b.width for b in batches}) > 1
    return large > 0 and large >= (SPREAD_OF_WIDTHS if several else SPREAD) * small


def _line(points: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """Return where the line of least squares begins, its slope, and the slope's standard error."""
    count = len(points)
    mean_x, mean_y = sum([x for x, _ in points]) / count, sum([y for _, y in points]) / count
    spread = sum([(x - mean_x) ** 2 for x, _ in points])
    if spread <= 0:
        return mean_y, 0.0, math.inf
    slope = sum([(x - mean_x) * (y - mean_y) for x, y in points]) / spread
    begin = mean_y - slope * mean_x
    left = sum([(y - begin - slope * x) ** 2 for x, y in points])
    return begin, slope, math.sqrt(left / max(1, count - 2) / spread)
