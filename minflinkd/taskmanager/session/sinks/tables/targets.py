"""The table that a sink names, and the two-phase sink that writes to it."""

from __future__ import annotations

from pathlib import Path

from minflinkd.jobgraph.changes import change_columns
from minflinkd.jobgraph.model import Sink
from minflinkd.runtime.ids import JobId, VertexId
from minflinkd.taskmanager.attempts.staging import waiting_directory
from minflinkd.taskmanager.session.sinks.batch import TwoPhase
from minflinkd.taskmanager.session.sinks.tables.delta import DeltaTarget
from minflinkd.taskmanager.session.sinks.tables.iceberg import IcebergTarget
from minflinkd.taskmanager.session.sinks.tables.rows import TableRows
from minflinkd.taskmanager.session.sinks.tables.upserts import TableUpserts


def table_of(sink: Sink) -> DeltaTarget | IcebergTarget:
    return DeltaTarget(sink) if sink.format == "delta" else IcebergTarget(sink)


def rows_of(sink: Sink, job_id: JobId, vertex_id: VertexId, directory: str) -> TwoPhase:
    """Return what stages the rows of a sink and commits them. `directory`: of the attempt."""
    if (columns := change_columns(sink)) is not None:
        return TableUpserts(table_of(sink), columns, job_id, vertex_id, directory)
    return TableRows(table_of(sink), job_id, vertex_id, Path(waiting_directory(directory, vertex_id)))
