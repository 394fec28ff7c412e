"""The series that are remembered, of a task, a job and the cluster, and how values become one of a minute."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from minflinkd.metrics.history.encoding import NUMBER, SHARE, SHORT_TIME, UNKNOWN, Codec

FINE_MS: Final = 5_000
COARSE_MS: Final = 60_000
PER_MINUTE: Final = COARSE_MS // FINE_MS
FINE_KEPT: Final = 720  # an hour
COARSE_KEPT: Final = 1440  # a day

Value = float | None
Fold = Callable[[Sequence[float]], float]


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def last(values: Sequence[float]) -> float:
    return values[-1]


@dataclass(frozen=True)
class Series:
    name: str
    codec: Codec = NUMBER
    fold: Fold = mean
    whole: bool = False  # its values are whole numbers


@dataclass(frozen=True)
class Layout:
    """The series of one kind of subject, in the order in which values are given."""

    kind: str
    series: tuple[Series, ...]

    @cached_property
    def wide(self) -> tuple[int, ...]:
        return tuple(n for n, series in enumerate(self.series) if series.codec.wide)

    @cached_property
    def narrow(self) -> tuple[int, ...]:
        return tuple(n for n, series in enumerate(self.series) if not series.codec.wide)

    @cached_property
    def places(self) -> tuple[tuple[bool, int], ...]:
        """Of each series: whether it is a wide one, and its number among those of its width."""
        return tuple(
            (True, self.wide.index(n)) if n in self.wide else (False, self.narrow.index(n))
            for n in range(len(self.series))
        )

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(series.name for series in self.series)

    def encode(self, values: Sequence[Value]) -> list[int]:
        return [series.codec.encode(value) for series, value in zip(self.series, values, strict=True)]

    def decode(self, number: int, codes: Sequence[int]) -> list[Value]:
        series = self.series[number]
        table = series.codec.table
        if series.whole:
            return [None if (value := table[each]) is None else round(value) for each in codes]
        return [table[each] for each in codes]

    def fold(self, columns: Sequence[Sequence[int]]) -> list[int]:
        """Return the codes of a minute from those in it, one column for each series."""
        return [self._folded(series, codes) for series, codes in zip(self.series, columns, strict=True)]

    @staticmethod
    def _folded(series: Series, codes: Sequence[int]) -> int:
        table = series.codec.table
        known = [value for each in codes if each != UNKNOWN and (value := table[each]) is not None]
        return series.codec.encode(series.fold(known)) if known else UNKNOWN


# Spark's names for the parts of a micro-batch's `durationMs`. `triggerExecution` is the whole: `batch_duration`.
PHASES: Final = ("latestOffset", "getBatch", "queryPlanning", "walCommit", "addBatch", "commitOffsets")

TASK: Final = Layout(
    "task",
    (
        Series("rows_in_per_second"),
        Series("rows_out_per_second"),
        Series("batch_duration"),
        Series("state_rows", fold=last, whole=True),
        Series("state_bytes", fold=last, whole=True),
        Series("watermark_lag"),
        Series("backpressured", SHARE),
        Series("output_backlog", fold=last, whole=True),
        # Nearly all of a micro-batch's time is in addBatch.
        *(Series(f"phase_{name}", NUMBER if name == "addBatch" else SHORT_TIME) for name in PHASES),
    ),
)
JOB: Final = Layout(
    "job",
    (
        Series("rows_in_per_second"),
        Series("rows_out_per_second"),
        Series("checkpoint_duration", fold=last),
        Series("checkpoint_bytes", fold=last, whole=True),
        Series("restarts", fold=last, whole=True),
        Series("pending_records", fold=last, whole=True),
    ),
)
CLUSTER: Final = Layout(
    "cluster",
    (
        Series("slots_total", fold=last, whole=True),
        Series("slots_free", fold=last, whole=True),
        Series("task_managers", fold=last, whole=True),
        Series("jobs_running", fold=last, whole=True),
        Series("loop_lag", fold=max),
        Series("rpc_per_second"),
        Series("rpc_unanswered_per_second"),
        Series("rpc_slowest", fold=max),
        Series("rpc_in_flight", fold=max, whole=True),
    ),
)
