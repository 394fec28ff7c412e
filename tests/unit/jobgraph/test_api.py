from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from minflinkd.jobgraph.api import Job
from minflinkd.jobgraph.faults import InvalidJobGraph
from minflinkd.jobgraph.model import JobGraph
from minflinkd.jobgraph.validation import parse_job


def carrier_delays() -> Job:
    job = Job("carrier-delays", parallelism=2, params={"minutes": 60}, checkpointing={"interval": "5s"})
    flights = job.source(
        "flights",
        format="json",
        path="/data/flights",
        schema="carrier STRING, time TIMESTAMP, delay DOUBLE",
        options={"maxFilesPerTrigger": 1},
        watermark=("time", "2 hours"),
    )
    query = "SELECT window(time, '${minutes} minutes') AS w, count(*) AS n FROM flights GROUP BY 1"
    job.sql("delays", query, inputs=[flights]).sink("out", format="parquet", path="/data/out", delivery="exactly-once")
    return job


def test_the_api_gives_the_model_of_the_job_file(document: dict[str, Any]) -> None:
    """Both give the same model (J1)."""
    assert carrier_delays().graph() == parse_job(document)


def test_a_job_becomes_a_job_file() -> None:
    """A job is submitted as a job file in JSON (J1)."""
    job = carrier_delays()
    written = job.to_json()
    assert isinstance(written, str)  # json.dumps gives a str as well; Path.write_text takes it
    assert parse_job(json.loads(written)) == job.graph()


def test_faults_are_told_all_at_once_when_the_graph_is_wanted(tmp_path: Path) -> None:
    """The API reports them as well, and raises nothing before (J4)."""
    job = Job("", max_parallelism=0)
    job.python("clean", "flights.clean", inputs=[job.source("flights", python="flights:read")])
    job.artifact("flights.py")
    with pytest.raises(InvalidJobGraph) as refused:
        job.graph(base=tmp_path)
    assert [fault.path for fault in refused.value.faults] == [
        "max-parallelism",
        "name",
        "vertices.clean.python",
        "vertices.clean",
        "artifacts[0]",
    ]


def test_a_graph_is_a_value() -> None:
    """Two graphs of the same job are equal."""
    graph = carrier_delays().graph()
    assert isinstance(graph, JobGraph)
    assert graph == carrier_delays().graph()
