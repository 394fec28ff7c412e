"""The queries of the benchmark Nexmark compute what they should: as jobs, in many micro-batches, beside a batch."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.nexmark.events import Events
from benchmarks.nexmark.expected import plain
from benchmarks.nexmark.job import document
from benchmarks.nexmark.queries import QUERIES, Query
from minflinkd.testing import StartJob
from tests import plain_spark

# The benchmark's queries are no part of minflinkd. That jobs of any shape compute what they should is shown by shapes.
pytestmark = [pytest.mark.spark, pytest.mark.slow]

EVENTS = Events(number=8_000, rate=200)  # 40 seconds, four windows
BATCHES = 5


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, list[str]]:
    directory = tmp_path_factory.mktemp("nexmark") / "events"
    EVENTS.write(directory, EVENTS.number)
    command = [sys.executable, "-m", "benchmarks.nexmark.expected", str(directory)]
    environ = plain_spark.environ() | {"TZ": "UTC"}  # the zone of what Spark collects
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = (json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))
    return {each["query"]: each["rows"] for each in found}


@pytest.mark.parametrize("query", [query for query in QUERIES.values() if query.expected], ids=lambda query: query.name)
def test_a_query_finds_what_a_batch_finds(
    query: Query, expected: Mapping[str, list[str]], minflinkd_job: StartJob
) -> None:
    """Where rows change, the last row of each key counts."""
    job = minflinkd_job(document(query, Path("/events"), parallelism=2))
    lines = list(EVENTS.lines())
    size = len(lines) // BATCHES
    for first in range(0, len(lines), size):
        job.feed("events", *(_nulls(json.loads(line)) for line in lines[first : first + size]))
        job.process()
    job.finish()
    rows = job.rows("out")
    if query.key:
        rows = list({tuple(row[column] for column in query.key): row for row in rows}.values())
    assert sorted(json.dumps(plain(row)) for row in rows) == expected[query.name]


def _nulls(event: dict[str, Any]) -> dict[str, Any]:
    return {"person": None, "auction": None, "bid": None} | event
