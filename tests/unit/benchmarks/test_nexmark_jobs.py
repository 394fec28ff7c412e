"""The jobs of the benchmark Nexmark: those of examples/nexmark, with other sources and without sinks."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.nexmark.job import IN_TWO_TASKS, QUERIES, document
from minflinkd.jobgraph.chaining import chain
from minflinkd.jobgraph.document import read_job_file
from tests.cluster import write_job


@pytest.mark.parametrize("query", QUERIES)
def test_a_job_is_valid_and_runs_in_one_query(query: str, tmp_path: Path) -> None:
    """What plain PySpark runs is the same query, so only a job without a counterpart has an exchange."""
    graph = read_job_file(write_job(tmp_path / "job.yaml", document(query, Path("/load"), parallelism=2))).job()
    assert len(chain(graph)) == (3 if query in IN_TWO_TASKS else 1)
    assert [vertex.id for vertex in graph.vertices if vertex.source is not None] == ["events"]
    assert sum(vertex.watermark is not None for vertex in graph.vertices) <= 1  # Spark refuses a second one
