"""The table that a sink names."""

from __future__ import annotations

from minflinkd.jobgraph.model import Sink
from minflinkd.taskmanager.session.sinks.tables.delta import DeltaTarget
from minflinkd.taskmanager.session.sinks.tables.iceberg import IcebergTarget
from minflinkd.taskmanager.session.sinks.tables.rows import Table


def table_of(sink: Sink) -> Table:
    return DeltaTarget(sink) if sink.format == "delta" else IcebergTarget(sink)
