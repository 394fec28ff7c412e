"""The rules for sinks whose rows are changes of a table (K4, K6, J4)."""

from __future__ import annotations

from typing import Any

import pytest

from minflinkd.jobgraph.changes import ChangeColumns, change_columns
from minflinkd.jobgraph.faults import GraphFault, InvalidJobGraph
from minflinkd.jobgraph.model import Sink
from minflinkd.jobgraph.validation import parse_job

DELTA = {"format": "delta", "path": "s3://lake/users"}
ICEBERG = {"format": "iceberg", "options": {"table": "db.users", "catalog.uri": "http://c:1"}}
JDBC = {"format": "jdbc", "options": {"url": "jdbc:postgresql://db/d", "dbtable": "users"}}
CHANGES = {"key": "id", "newest-by": "offset", "deleted": "is_deleted"}


def faults(sink: dict[str, Any], **options: str) -> tuple[GraphFault, ...]:
    changed = sink | {"options": sink.get("options", {}) | options}
    vertices = {"rows": {"source": {"format": "rate"}}, "out": {"inputs": ["rows"], "sink": changed}}
    try:
        parse_job({"name": "changes", "vertices": vertices})
    except InvalidJobGraph as error:
        return error.faults
    return ()


@pytest.mark.parametrize("sink", [DELTA, ICEBERG, JDBC], ids=["delta", "iceberg", "jdbc"])
def test_rows_may_say_which_is_the_newest_and_what_is_deleted(sink: dict[str, Any]) -> None:
    """The options are the sink's own, whatever it writes to."""
    assert faults(sink, **CHANGES) == ()
    assert faults(sink, key="id, day", **{"newest-by": "lsn , offset"}) == ()


def test_the_columns_that_only_say_what_to_do_are_known() -> None:
    """They are not written. A sink without a key changes nothing, whatever else it names."""
    given = CHANGES | {"newest-by": "lsn, offset"}
    found = change_columns(Sink(format="delta", options=given))
    assert found == ChangeColumns(key=("id",), newest_by=("lsn", "offset"), deleted="is_deleted")
    assert found.unwritten == ("lsn", "offset", "is_deleted")
    assert change_columns(Sink(format="delta", options={"key": "id"})) == ChangeColumns(key=("id",))
    assert change_columns(Sink(format="delta", options={"newest-by": "lsn"})) is None
    assert change_columns(Sink(format="parquet", options=given)) is None


@pytest.mark.parametrize(
    ("options", "path", "problem"),
    [
        ({"newest-by": "n"}, "newest-by", "only a sink with a key knows which rows are of one thing"),
        ({"deleted": "gone"}, "deleted", "only a sink with a key"),
        (CHANGES | {"newest-by": " ,"}, "newest-by", "it names no column"),
        (CHANGES | {"deleted": " "}, "deleted", "it names no column"),
        ({"key": "id", "deleted": "gone"}, "deleted", "nobody would know which is the last"),
        (CHANGES | {"deleted": "gone, away"}, "deleted", "it names several columns"),
        (CHANGES | {"deleted": "offset"}, "deleted", '"offset" is in newest-by, too'),
        (CHANGES | {"key": "id, offset"}, "newest-by", '"offset" is in key, too'),
        (CHANGES | {"key": "id, is_deleted"}, "deleted", '"is_deleted" is in key, too'),
    ],
)
def test_what_cannot_be_meant_is_refused(options: dict[str, str], path: str, problem: str) -> None:
    (fault,) = faults(DELTA, **options)
    assert fault.path == f"vertices.out.sink.options.{path}"
    assert problem in fault.problem


def test_a_sink_that_only_adds_rows_takes_no_changes() -> None:
    """It would add deletes as rows."""
    kafka = {"format": "kafka", "options": {"kafka.bootstrap.servers": "b:1", "topic": "t"}}
    for sink in ({"format": "parquet", "path": "/out"}, kafka):
        (fault,) = faults(sink, **CHANGES)
        assert (fault.path, fault.problem) == (
            "vertices.out.sink.options.newest-by",
            f"a {sink['format']} sink only adds rows",
        )


def test_a_table_is_not_partitioned_by_what_it_does_not_get() -> None:
    (fault,) = faults(DELTA | {"partition-by": ["is_deleted"]}, **CHANGES)
    assert '"is_deleted" is in partition-by, too, and columns of deleted are not written' in fault.problem
