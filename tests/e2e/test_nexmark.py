"""Nexmark's queries as jobs: joins, windows, sessions, aggregates of aggregates, and what Spark refuses of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import pytest_asyncio
from ruamel.yaml import YAML

from minflinkd.cli.submission import RefusedJob
from tests.cluster import Cluster, write_job
from tests.e2e.comparison import await_finished, compared, generated

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

EXAMPLE = Path(__file__).parents[2] / "examples/nexmark"
QUERIES = sorted(file.stem for file in EXAMPLE.glob("q*.yaml"))
FEW = ("q3", "q5", "q11")  # a join of streams; an aggregate of aggregates, joined with them; sessions
AT_ONCE = 4  # jobs; the TaskManager has as many slots

NO_END = "STREAMING_OUTPUT_MODE.UNSUPPORTED"  # an aggregate in append mode without event time never has a final result
NO_TIME = "() OVER (...) needs all rows"  # and not a window of time
REFUSED = {"q4": NO_END, "q9": NO_TIME, "q15": NO_END, "q16": NO_END, "q17": NO_END, "q18": NO_TIME, "q19": NO_TIME}


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def source(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Path]:
    yield await generated(EXAMPLE / "generate.py", tmp_path_factory.mktemp("nexmark"))


@pytest.mark.parametrize("queries", [FEW, pytest.param(QUERIES, id="all", marks=pytest.mark.slow)])
async def test_every_query_equals_its_batch(
    cluster: Cluster, source: Path, tmp_path: Path, queries: Sequence[str]
) -> None:
    """A rewritten query is compared with the batch of Nexmark's own form."""
    assert len(QUERIES) == 21
    await cluster.await_ready(1)
    places = asyncio.Semaphore(AT_ONCE)

    async def run(query: str) -> None:
        async with places:
            job = await cluster.submit(EXAMPLE / f"{query}.yaml", input=str(source), output=str(tmp_path))
            await await_finished(cluster, job)

    async with asyncio.TaskGroup() as group:
        for query in queries:
            group.create_task(run(query))
    found = await compared(EXAMPLE / "compare.py", source, tmp_path, *queries)
    assert sorted(found) == sorted(queries)
    assert {query: rows for query, rows in found.items() if not rows["equal"] or not rows["batch_rows"]} == {}


@pytest.mark.parametrize("query", REFUSED)
async def test_a_query_is_only_rewritten_where_its_own_form_is_refused(
    cluster: Cluster, source: Path, tmp_path: Path, query: str
) -> None:
    """The README gives the reason for each rewriting.

    If this fails because Spark now accepts a query's own form, use that form in the job file.
    """
    assert REFUSED[query] in await refusal(cluster, query, own_form(query), source, tmp_path)


async def test_query_16_is_refused_for_its_counts_of_different_values_as_well(
    cluster: Cluster, source: Path, tmp_path: Path
) -> None:
    """Its days are texts, which is refused first. With windows in their place, the counts are."""
    sql = own_form("q16").replace("date_format(dateTime, 'yyyy-MM-dd')", "window(dateTime, '1 day')")
    assert "count(DISTINCT" in await refusal(cluster, "q16", sql, source, tmp_path)


def own_form(query: str) -> str:
    return (EXAMPLE / "own" / f"{query}.sql").read_text()


async def refusal(cluster: Cluster, query: str, sql: str, source: Path, base: Path) -> str:
    """Return what the daemon says of the query in this form."""
    await cluster.await_ready(1)
    document = YAML(typ="safe").load(EXAMPLE / f"{query}.yaml")
    sources = {name: vertex for name, vertex in document["vertices"].items() if "source" in vertex}
    own = {"inputs": list(sources), "sql": sql}
    out = {"inputs": ["own"], "sink": {"format": "parquet", "path": str(base / "out")}}
    job = write_job(base / "own.json", document | {"vertices": {**sources, "own": own, "out": out}})
    with pytest.raises(RefusedJob) as refused:
        await cluster.submit(job, input=str(source), output=str(base))
    return "\n".join(refused.value.lines())
