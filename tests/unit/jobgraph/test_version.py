"""What tells the versions of a job apart (A14a)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from minflinkd.jobgraph.model import Autoscaler, JobGraph, Sink, Source, Vertex, version_of
from minflinkd.runtime.ids import VertexId

JOB = JobGraph(
    name="job",
    parallelism=2,
    max_parallelism=8,
    vertices=(
        Vertex(id=VertexId("a"), source=Source(format="rate")),
        Vertex(id=VertexId("out"), sink=Sink(format="console"), parallelism=1),
    ),
)


@pytest.mark.parametrize(
    "same",
    [
        replace(JOB, parallelism=4),
        replace(JOB, min_parallelism=2),
        replace(JOB, autoscaler=Autoscaler(enabled=False)),
        replace(JOB, vertices=(replace(JOB.vertices[0], parallelism=4), JOB.vertices[1])),
    ],
    ids=["the job's", "the least", "the autoscaler", "a vertex's"],
)
def test_another_parallelism_makes_no_other_version(same: JobGraph) -> None:
    """A task can be given other slots while it runs (R20)."""
    assert version_of(same) == version_of(JOB)


@pytest.mark.parametrize(
    "other",
    [replace(JOB, max_parallelism=4), replace(JOB, params={"a": "b"}), replace(JOB, vertices=JOB.vertices[:1])],
    ids=["partitions", "params", "vertices"],
)
def test_anything_else_makes_one(other: JobGraph) -> None:
    """Other partitions, too: state must be rewritten for them."""
    assert version_of(other) != version_of(JOB)
