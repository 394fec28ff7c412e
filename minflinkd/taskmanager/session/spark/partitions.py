"""What the partitions of each query have done, as `java/Partitions.java` has heard it from Spark: one call each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minflinkd.rpc.messages import Partition, Spent, TaskPartitions
from minflinkd.rpc.messages.partitions import MOST_PARTITIONS
from minflinkd.taskmanager.session.spark.java_classes import PACKAGE
from minflinkd.taskmanager.session.spark.session import Session

_SPENT = len(Spent.__struct_fields__)


@dataclass(frozen=True)
class Stage:
    """One execution of a stage, in a micro-batch. `all_ms` and `all_longest_ms` are of all its complete executions."""

    key: int
    batch_id: int
    tasks: int
    task_ms: int
    longest_ms: int
    rows: int
    most_rows: int
    all_ms: int = 0
    all_longest_ms: int = 0


class PartitionBook:
    """Hears of everything that the session does from now on. Its methods raise Py4JError when the JVM is gone."""

    def __init__(self, session: Session) -> None:
        self._book = getattr(session.jvm, f"{PACKAGE}.Partitions")()
        session.spark.sparkContext._jsc.sc().addSparkListener(self._book)

    def stages(self, run_id: str) -> list[Stage]:
        """Return the last executions of each stage of a query's run, the older ones of a stage first."""
        return [Stage(*map(int, line.split("\t"))) for line in str(self._book.stages(run_id)).splitlines()]

    def partitions(self, run_id: str, stage: int) -> TaskPartitions:
        """Return the partitions of the last execution of a stage."""
        lines = str(self._book.partitions(run_id, stage, MOST_PARTITIONS)).splitlines()
        if not lines:  # many queries have run since, and the book has forgotten this one
            return TaskPartitions()
        batch_id, tasks = map(int, lines[0].split("\t"))
        told = sorted(map(partition_of, lines[1:]), key=lambda one: one.index)
        return TaskPartitions(batch_id=batch_id, partitions=tasks, told=tuple(told))


def partition_of(line: str) -> Partition:
    index, host, executor, attempt, status, started, *spent = line.split("\t")
    return Partition(
        index=int(index),
        host=host,
        executor=executor,
        attempt=int(attempt),
        status=status,
        started_ms=int(started),
        last=_spent(spent[:_SPENT]),
        total=_spent(spent[_SPENT:]),
    )


def _spent(figures: Sequence[str]) -> Spent:
    ms, rows_in, rows_out, bytes_in, bytes_out = map(int, figures)
    return Spent(ms=ms, rows_in=rows_in, rows_out=rows_out, bytes_in=bytes_in, bytes_out=bytes_out)
