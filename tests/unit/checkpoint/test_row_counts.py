"""Counts of rows stay with their vertices, through every version of a job."""

from __future__ import annotations

from msgspec.structs import replace

from minflinkd.checkpoint.row_counts import bad_records, row_counts, sink_rows, source_rows
from minflinkd.jobgraph.chaining import chain
from minflinkd.jobgraph.model import Input, JobGraph, OnBadRecord, Sink, Source, Task, Vertex
from minflinkd.rpc.snapshot import RowCounts, TaskSnapshot
from minflinkd.runtime.ids import AttemptId, ResourceId, TaskId, VertexId


def graph(*, exchange: bool, sinks: tuple[str, ...] = ("out",)) -> JobGraph:
    edge = Input(id=VertexId("events"), exchange=exchange)
    return JobGraph(
        name="counted",
        vertices=(
            Vertex(id=VertexId("events"), source=Source(format="rate")),
            Vertex(id=VertexId("sums"), inputs=(edge,), sql="SELECT * FROM events"),
            *(
                Vertex(id=VertexId(name), inputs=(Input(id=VertexId("sums")),), sink=Sink(format="console"))
                for name in sinks
            ),
        ),
    )


def tasks(job: JobGraph) -> dict[TaskId, Task]:
    return {task.id: task for task in chain(job)}


def snapshot(task: str, rows: RowCounts, **inputs: int) -> TaskSnapshot:
    return TaskSnapshot(
        task_id=TaskId(task),
        attempt_id=AttemptId("a" * 32),
        resource_id=ResourceId("tm-1"),
        checkpoint_id=1,
        batch_id=3,
        rows=rows,
        inputs={VertexId(vertex): at for vertex, at in inputs.items()},
    )


APART = (
    snapshot("events", RowCounts(read={"events": 100}, written={"events": 100})),
    snapshot("sums", RowCounts(read={"events": 90}, written={"out": 9}), events=4),
)


def test_the_same_version_goes_on_with_its_counts() -> None:
    found = row_counts(APART, tasks(graph(exchange=True)))
    assert list(found.values()) == [each.rows for each in APART]


def test_rows_of_sources_and_sinks_stay_when_two_tasks_become_one() -> None:
    """Rows of the exchange that is gone count for nobody."""
    (found,) = row_counts(APART, tasks(graph(exchange=False))).values()
    assert found == RowCounts(read={"events": 100}, written={"out": 9})


def test_rows_of_sources_and_sinks_stay_when_one_task_becomes_two() -> None:
    (one,) = tasks(graph(exchange=False))
    whole = (snapshot(one, RowCounts(read={"events": 70}, written={"out": 7})),)
    first, second = row_counts(whole, tasks(graph(exchange=True))).values()
    assert (first.read, second.written) == ({"events": 70}, {"out": 7})


def test_a_sink_that_is_gone_takes_its_rows_with_it() -> None:
    both = (APART[0], snapshot("sums", RowCounts(read={"events": 90}, written={"out": 9, "copy": 9}), events=4))
    *_, found = row_counts(both, tasks(graph(exchange=True))).values()
    assert found.written == {"out": 9}


def test_bad_records_stay_with_the_vertex_that_found_them() -> None:
    """Also if the vertex is in another task from then on; those of a vertex that is gone are dropped (K7)."""
    (one,) = tasks(graph(exchange=False))
    whole = (snapshot(one, RowCounts(rejected={"events": 7, "sums": 2, "gone": 1})),)
    first, second = row_counts(whole, tasks(graph(exchange=True))).values()
    assert (first.rejected, second.rejected) == ({"events": 7}, {"sums": 2})
    apart = (snapshot("events", RowCounts(rejected={"events": 7})), snapshot("sums", RowCounts(rejected={"sums": 2})))
    assert row_counts(apart, tasks(graph(exchange=False)))[one].rejected == {"events": 7, "sums": 2}


def test_a_vertex_that_looks_for_bad_records_has_a_count_from_the_beginning() -> None:
    """For Prometheus, a metric that begins with 1 has not increased. Counts of before are not shown of others."""
    (task,) = chain(graph(exchange=False))
    looking = replace(task, vertices=(replace(task.vertices[0], on_bad_record=OnBadRecord.DROP), *task.vertices[1:]))
    assert bad_records(looking, RowCounts(rejected={"sums": 2})) == {"events": 0}
    assert bad_records(looking, RowCounts(rejected={"events": 7})) == {"events": 7}


def test_rows_of_an_exchange_are_neither_a_sources_nor_a_sinks() -> None:
    """Otherwise a job of several tasks would count its rows again in every task that they pass through."""
    first, second = chain(graph(exchange=True))
    assert (source_rows(first, APART[0].rows), sink_rows(first, APART[0].rows)) == (100, 0)
    assert (source_rows(second, APART[1].rows), sink_rows(second, APART[1].rows)) == (0, 9)
