"""How many rows an attempt had read and written at the end of each micro-batch."""

from __future__ import annotations

from minflinkd.rpc.snapshot import PlanNode, RowCounts
from minflinkd.runtime.ids import VertexId
from minflinkd.taskmanager.session.query.attempt_rows import KEPT, AttemptRows
from minflinkd.taskmanager.session.query.metrics import rows_by_source
from minflinkd.taskmanager.session.state.operators import scans

LAST = 10**6  # a micro-batch after all others


def test_the_rows_of_a_cut_are_those_up_to_its_micro_batch() -> None:
    """The next attempt processes what comes after the cut again, and counts it then."""
    rows = AttemptRows()
    for epoch in (7, 8, 9):
        rows.wrote(epoch, RowCounts(written={"out": 1}))
        rows.has_read(epoch, {"a": 10, "b": epoch})
    assert rows.at(8) == RowCounts(read={"a": 20, "b": 15}, written={"out": 2})
    assert rows.at(LAST) == RowCounts(read={"a": 30, "b": 24}, written={"out": 3})
    assert rows.at(6) == RowCounts()


def test_what_spark_has_not_reported_is_awaited_only_of_the_attempts_own_micro_batches() -> None:
    """A restored attempt may be cut before its first micro-batch, or after one that a repartition made."""
    rows = AttemptRows()
    assert not rows.is_awaited(4)
    rows.wrote(5, RowCounts(written={"out": 1}))
    assert not rows.is_awaited(4)
    assert rows.is_awaited(5)
    rows.has_read(5, {"a": 3})
    assert not rows.is_awaited(5)


def test_a_report_that_is_seen_twice_counts_once() -> None:
    rows = AttemptRows()
    for _ in range(2):
        rows.has_read(0, {"a": 3})
    assert rows.at(LAST).read == {"a": 3}


def test_totals_go_on_when_old_micro_batches_are_forgotten() -> None:
    rows = AttemptRows()
    for epoch in range(3 * KEPT):
        rows.wrote(epoch, RowCounts(written={"out": 2}))
    assert rows.at(LAST).written == {"out": 6 * KEPT}
    assert rows.at(3 * KEPT - 2).written == {"out": 6 * KEPT - 2}


def test_rows_are_told_by_the_vertex_that_reads_them() -> None:
    """A second source in a vertex is named `<vertex>#2` and counts for the same vertex."""
    progress = {"sources": [{"numInputRows": 5}, {"numInputRows": 7}, {"numInputRows": None}]}
    assert rows_by_source(progress, {0: "a", 1: "a#2", 2: "b"}) == {"a": 12, "b": 0}


def test_rows_of_a_source_that_is_read_in_several_places_count_once() -> None:
    """Spark counts the rows in each place. If two sources have the same rows, the first one counts (J2)."""
    progress = {"sources": [{"numInputRows": 24}, {"numInputRows": 5}, {"numInputRows": 5}]}
    names = {0: "a", 1: "b", 2: "b#2"}
    assert rows_by_source(progress, names, {0: 2, 1: 1, 2: 0}) == {"a": 12, "b": 5}


def test_how_often_spark_counts_a_row_is_seen_in_the_plan() -> None:
    """A function may unite several sources, and all of them are its own (J2)."""
    nodes = (
        PlanNode(number=0, stateful=False, vertex="a", kind="FileSource", lines=(0, 2)),
        PlanNode(number=1, stateful=False, vertex="b", kind="FileSource", lines=(1,)),
        PlanNode(number=2, stateful=False, vertex="b", kind="FileSource", lines=(3,)),
        PlanNode(number=0, stateful=True, vertex="b", kind="Aggregate"),
        PlanNode(number=3, stateful=False, vertex="f", kind="FileSource", lines=(4,)),
        PlanNode(number=4, stateful=False, vertex="f", kind="FileSource", lines=(5,)),
    )
    assert scans(nodes, [VertexId("a"), VertexId("b")]) == {0: 2, 1: 1, 2: 0, 3: 1, 4: 1}
