"""Wrong values of options of sources and sinks: refused before anything starts, at their vertex, or harmless (J4)."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from msgspec.structs import replace

from minflinkd.jobgraph.faults import GraphFault
from minflinkd.jobgraph.model import Sink, Source, Vertex
from minflinkd.runtime.ids import VertexId
from minflinkd.taskmanager.child import protocol as p
from tests.shortened import first
from tests.spark.session_child import Child, inputs, job, parquet, rate, source, task
from tests.spark.test_session_sinks import sink

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

SCHEMA = "value LONG, at TIMESTAMP"
ROWS = {
    "json": '{"value": 1, "at": "2026-01-01T00:00:00Z"}\n',
    "csv": "1,2026-01-01T00:00:00Z\n",
}

# Format -> options that get drawn values, right or wrong.
READ = {
    "json": "maxFilesPerTrigger maxBytesPerTrigger maxFileAge latestFirst fileNameOnly maxCachedFiles multiLine "
    "timestampFormat dateFormat timeZone allowComments recursiveFileLookup mode locale encoding",
    "csv": "maxFilesPerTrigger sep quote escape header multiLine maxColumns mode timestampFormat enforceSchema "
    "ignoreLeadingWhiteSpace discardCachedInputRatio comment",
}
WRITTEN = {
    "json": "compression timestampFormat ignoreNullFields timeZone",
    "csv": "compression sep header quote escapeQuotes",
    "parquet": "compression",
    "orc": "compression",
}
VALUES = [
    "x",
    "-1",
    "0",
    "1.5",
    "yes please",
    "gzipp",
    "99999999999999999999",
    "QQQQQQQ",
    "12 parsecs",
    "a\tb",
    "[",
    "1",
]


@pytest.fixture
def child(connected: Child) -> Child:
    return connected


def files(directory: Path, kind: str, **options: str) -> Vertex:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "1.txt").write_text(ROWS.get(kind, ""))
    return Vertex(
        id=VertexId("numbers"), source=Source(format=kind, path=str(directory), schema=SCHEMA, options=options)
    )


async def faults(child: Child, *vertices: Vertex) -> tuple[GraphFault, ...]:
    return (await child.ask(p.AnalyzeTasks(job=job(), tasks=(task(*vertices),)))).faults


@pytest.mark.parametrize(
    ("kind", "option", "value", "words"),
    [
        ("json", "maxFilesPerTrigger", "x", "maxFilesPerTrigger"),
        ("json", "maxFilesPerTrigger", "0", "positive integer"),
        ("json", "maxBytesPerTrigger", "many", "maxBytesPerTrigger"),
        ("csv", "latestFirst", "perhaps", "latestFirst"),
        ("csv", "sep", "", "Delimiter cannot be empty"),
        ("csv", "header", "perhaps", "header"),
        ("csv", "recursiveFileLookup", "perhaps", "perhaps"),
        ("csv", "mode", "STRICT", "not a mode"),
        ("csv", "enforceSchema", "perhaps", "enforceSchema"),
    ],
)
async def test_a_wrong_value_of_an_option_of_a_source_is_a_fault_of_that_option(
    child: Child, tmp_path: Path, kind: str, option: str, value: str, words: str
) -> None:
    """The value would pass Spark's analysis, but fail in each attempt. A right one beside it is not blamed."""
    wrong = files(tmp_path / "in", kind, **{"fileNameOnly": "false", option: value})
    (fault,) = await faults(child, wrong, parquet(tmp_path / "out", "numbers"))
    assert fault.path == f"vertices.numbers.source.options.{option}"
    assert words in fault.problem
    assert "\n" not in fault.problem
    assert fault.hint


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"subscribe": "t"}, "kafka.bootstrap.servers"),
        ({"kafka.bootstrap.servers": "127.0.0.1:1"}, "subscribe"),
        ({"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t", "maxOffsetsPerTrigger": "few"}, "few"),
        ({"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t", "startingOffsets": "{"}, "startingOffsets"),
    ],
)
async def test_a_kafka_source_without_what_it_needs_is_a_fault(
    child: Child, tmp_path: Path, options: dict[str, str], words: str
) -> None:
    """The check does not need a broker."""
    (fault,) = await faults(child, source("numbers", "kafka", **options), parquet(tmp_path / "out", "numbers"))
    assert fault.path.startswith("vertices.numbers.source")
    assert words in f"{fault.path} {fault.problem}"


@pytest.mark.parametrize(("option", "value"), [("batchsize", "x"), ("isolationLevel", "NONSENSE"), ("batchsize", "0")])
async def test_a_wrong_value_of_an_option_of_a_database_is_a_fault_of_that_option(
    child: Child, option: str, value: str
) -> None:
    options = {"url": "jdbc:postgresql://127.0.0.1:1/x", "dbtable": "t", option: value}
    found = await faults(child, rate(), sink("numbers", format="jdbc", options=options))
    assert [fault.path for fault in found] == [f"vertices.out.sink.options.{option}"]


async def test_a_wrong_schema_is_a_fault_of_its_source(child: Child, tmp_path: Path) -> None:
    wrong = files(tmp_path / "in", "json")
    assert wrong.source is not None
    for schema in ("value LUNG", "value LONG,, at", "(", "value"):
        vertex = replace(wrong, source=replace(wrong.source, schema=schema))
        found = await faults(child, vertex, parquet(tmp_path / "out", "numbers"))
        assert [fault.path for fault in found] == ["vertices.numbers.source"], schema


@pytest.mark.parametrize("seed", first(range(2, 8), 2))
async def test_a_drawn_value_is_refused_at_its_option_or_runs(child: Child, tmp_path: Path, seed: int) -> None:
    """What the dry run accepts finishes its first micro-batch."""
    rng = random.Random(seed)
    for number in range(6):
        place, reads = tmp_path / str(number), rng.random() < 0.7
        kind = rng.choice(sorted(READ if reads else WRITTEN))
        option, value = rng.choice((READ if reads else WRITTEN)[kind].split()), rng.choice(VALUES)
        read = files(place / "in", kind if reads else "json", **({option: value} if reads else {}))
        out = Sink(
            format="parquet" if reads else kind, path=str(place / "out"), options={} if reads else {option: value}
        )
        end = Vertex(id=VertexId("out"), inputs=inputs("numbers"), sink=out)
        drawn = f"{'source' if reads else 'sink'} {kind} {option}={value!r}"
        found = await faults(child, read, end)
        if found:
            at = f"vertices.{'numbers.source' if reads else 'out.sink'}.options.{option}"
            assert [fault.path for fault in found] == [at], f"{drawn}: {found}"
            continue
        attempt = await child.run(job(), task(read, end))
        try:
            await child.batches(attempt, 0)
        except AssertionError as error:
            raise AssertionError(f"{drawn} was not refused: {error}") from error
        await child.stop(attempt)
