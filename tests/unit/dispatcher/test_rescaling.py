"""Running the same version at another parallelism (H6)."""

from __future__ import annotations

import pytest

from minflinkd.dispatcher.rescaling import rescaled
from minflinkd.jobgraph.chaining import chain
from minflinkd.jobgraph.faults import InvalidJobGraph
from minflinkd.jobgraph.model import Input, JobGraph, Sink, Source, Vertex
from minflinkd.runtime.ids import VertexId

JOB = JobGraph(
    name="two tasks",
    parallelism=2,
    max_parallelism=8,
    min_parallelism=2,
    vertices=(
        Vertex(id=VertexId("a"), source=Source(format="rate")),
        Vertex(id=VertexId("b"), inputs=(Input(id=VertexId("a"), exchange=True),), sql="SELECT 1", parallelism=3),
        Vertex(id=VertexId("out"), inputs=(Input(id=VertexId("b")),), sink=Sink(format="console")),
    ),
)


def of_tasks(graph: JobGraph) -> dict[str, int]:
    return {task.id: task.parallelism for task in chain(graph)}


def test_one_number_is_for_all_tasks() -> None:
    """One number also replaces the parallelism that single tasks state (H6)."""
    graph = rescaled(JOB, 1, {}, 0)
    assert (of_tasks(graph), graph.min_parallelism) == ({"a": 1, "b": 1}, 1)


def test_single_tasks_are_named_by_their_ids() -> None:
    """Flink's resource requirements name vertices in this way (E1)."""
    graph = rescaled(JOB, 0, {"b": 4}, 3)
    assert (of_tasks(graph), graph.min_parallelism) == ({"a": 2, "b": 4}, 3)


def test_all_tasks_may_get_a_least_parallelism_above_what_the_job_file_says() -> None:
    """`minflinkd rescale JOB --parallelism 6 --least 4` names every task."""
    graph = rescaled(JOB, 0, {"a": 6, "b": 6, "out": 6}, 4)
    assert (of_tasks(graph), graph.parallelism, graph.min_parallelism) == ({"a": 6, "b": 6}, 6, 4)


@pytest.mark.parametrize(
    ("parallelism", "vertices", "least"), [(9, {}, 0), (0, {"c": 1}, 0), (0, {"a": 0}, 0), (1, {}, -1)]
)
def test_what_cannot_be_is_refused(parallelism: int, vertices: dict[str, int], least: int) -> None:
    """J4."""
    with pytest.raises(InvalidJobGraph):
        rescaled(JOB, parallelism, vertices, least)
