"""A task as Spark sees it, with all that is wrong with it (J4)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession

from minflinkd.jobgraph.faults import GraphFault
from minflinkd.jobgraph.model import OutputMode, RecordFormat, Source, Vertex
from minflinkd.rpc.snapshot import PlanNode
from minflinkd.runtime.errors import ErrorInfo, MinflinkError
from minflinkd.runtime.ids import VertexId
from minflinkd.taskmanager.session.exchange.reading import ExchangeSource
from minflinkd.taskmanager.session.plan.bad_records import no_rows
from minflinkd.taskmanager.session.spark import real_time_source


class TaskNotBuilt(MinflinkError):
    """A task has faults. The exception carries all of them; its message names the first."""

    code = "task-not-built"

    def __init__(self, faults: list[GraphFault]) -> None:
        first = faults[0]
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        super().__init__(f"{first.path}: {first.problem}{more}", hint=first.hint)
        self.faults = faults

    def info(self) -> ErrorInfo:
        return msgspec.structs.replace(super().info(), traceback=self.faults[0].traceback)


Encode = Callable[[DataFrame], DataFrame]


def _as_they_are(rows: DataFrame) -> DataFrame:
    return rows


@dataclass
class Plan:
    """A task as Spark sees it. `frame` is the DataFrame that its sinks and its exchange get."""

    spark: SparkSession
    faults: list[GraphFault] = field(default_factory=list)
    frames: dict[VertexId, DataFrame] = field(default_factory=dict)
    computed: dict[VertexId, DataFrame] = field(default_factory=dict)  # `frames` without the vertex's own watermark
    frame: DataFrame | None = None
    sinks: tuple[Vertex, ...] = ()  # with the job's params filled in; those without inputs get bad records
    output_mode: OutputMode = OutputMode.APPEND
    operators: tuple[PlanNode, ...] = ()
    source_names: dict[int, str] = field(default_factory=dict)  # number of a source -> vertex
    scans: dict[int, int] = field(default_factory=dict)  # number of a source -> how often Spark counts a row of it
    exchanges: dict[int, VertexId] = field(default_factory=dict)  # line of the offset log -> exchange
    watermarks: dict[VertexId, Any] = field(default_factory=dict)  # input -> key in Spark's watermark tracker
    inputs: list[ExchangeSource] = field(default_factory=list)
    kafka_sources: dict[VertexId, Source] = field(default_factory=dict)  # that are read without an end
    record_formats: dict[VertexId, dict[str, RecordFormat]] = field(default_factory=dict)  # with schemas of a registry
    encoders: dict[VertexId, Encode] = field(default_factory=dict)  # of sinks that write with such schemas
    notes: list[str] = field(default_factory=list)  # what the user should know
    real_time: str | None = None  # the key of its sources, if it runs in real-time mode
    unfit: list[GraphFault] = field(default_factory=list)  # those of its faults that micro-batches would not have
    not_real_time: str = ""  # why it runs in micro-batches, if the job leaves that open
    shuffled: tuple[int, ...] = ()  # in real-time mode: the partitions of each shuffle, when it was planned

    def rows_for(self, sink: Vertex) -> DataFrame | None:
        """Return a frame with the columns that a sink gets; None if a vertex before it has a fault."""
        assert sink.sink is not None
        rows = self.frame if sink.inputs else no_rows(self.spark, sink.sink)
        return rows if rows is None else self.encoder(sink.id)(rows)

    def encoder(self, sink: VertexId) -> Encode:
        """Return what makes records of Kafka from the rows of a sink; for most sinks it leaves them as they are."""
        return self.encoders.get(sink, _as_they_are)

    def release(self) -> None:
        """Release its own sources, once no query of the plan runs or will run. Idempotent."""
        for source in self.inputs:
            source.release()
        if self.real_time is not None:
            real_time_source.release(self.spark, self.real_time)

    def require(self) -> DataFrame:
        """Return the frame of a plan without faults. Raises TaskNotBuilt."""
        if self.faults:
            raise TaskNotBuilt(self.faults)
        assert self.frame is not None
        return self.frame

    @property
    def keeps_state(self) -> bool:
        return any(node.stateful for node in self.operators)

    @property
    def schema(self) -> str:
        """The schema of `frame` as Spark's JSON, with the watermark marks on event time columns."""
        assert self.frame is not None
        return str(self.frame._jdf.schema().json())
