"""Where a Kafka source begins and ends, with Apache Kafka itself: at offsets, at times, at the ends at the start."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from minflinkd.checkpoint import offsets as record
from minflinkd.jobgraph.chaining import chain
from minflinkd.jobgraph.model import RuntimeMode, Task
from minflinkd.jobgraph.validation import parse_job
from minflinkd.jobmaster.origin import Origin
from minflinkd.runtime.ids import AttemptId, JobId
from minflinkd.storage.registry import Storages
from minflinkd.taskmanager.child import protocol as p
from tests.servers.apache_kafka import ApacheKafka, Record
from tests.spark.session_child import Child, call, job, source, sql, task
from tests.spark.test_session_snapshots import artifact
from tests.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

SEEN = "SELECT partition, offset, CAST(value AS STRING) AS value FROM messages"
# Writes the rows of each micro-batch. With a file `wait`, the second one says `began`, and waits for a file `go`.
SINK = """
import json, os, time
def write(batch, epoch):
    rows = [list(row) for row in batch.collect()]
    deadline = time.monotonic() + 120
    while epoch == 1 and os.path.exists(%(place)r + "/wait") and not os.path.exists(%(place)r + "/go"):
        open(%(place)r + "/began", "w").close()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    with open(%(place)r + "/out.jsonl", "a") as out:
        out.writelines(json.dumps(row) + "\\n" for row in rows)
"""
Rows = list[tuple[int, int, str]]  # partition, offset, value


@pytest.fixture
def child(connected: Child) -> Child:
    return connected


class Reader:
    """Runs bounded jobs over one topic, and returns the rows that each has written."""

    def __init__(self, child: Child, kafka: ApacheKafka, topic: str, directory: Path) -> None:
        self.child = child
        self.kafka = kafka
        self.topic = topic
        self.directory = directory
        self.out = directory / "out.jsonl"
        self.out.touch()
        self.artifacts = artifact(directory, "kafka_rows.py", SINK % {"place": str(directory)})

    async def feed(self, *records: Record) -> None:
        self.kafka.produce(self.topic, records)

    def task(self, **options: str) -> Task:
        connection = {"kafka.bootstrap.servers": self.kafka.address, "subscribe": self.topic}
        options = connection | (options or {"startingOffsets": "earliest"})
        vertex = source("messages", "kafka", **options)
        return task(vertex, sql("seen", SEEN, "messages"), call("kafka_rows:write", "seen"))

    async def start(self, *, offsets: dict[str, str] | None = None, **options: str) -> AttemptId:
        restored = p.Restored(checkpoint_id=0, batch_id=-1, offsets=offsets) if offsets is not None else None
        context = job(mode=RuntimeMode.BATCH)
        return await self.child.run(context, self.task(**options), artifacts=self.artifacts, restored=restored)

    async def end(self, attempt: AttemptId) -> Rows:
        """Wait for the end of the input. Return all rows that were written since the last call, in order."""
        await self.child.notice(p.InputEnded, lambda notice: notice.attempt_id == attempt)
        await self.child.stop(attempt)
        rows = [json.loads(line) for line in self.out.read_text().splitlines()]
        self.out.write_text("")
        return sorted((partition, offset, value) for partition, offset, value in rows)

    async def read(self, *, offsets: dict[str, str] | None = None, **options: str) -> Rows:
        return await self.end(await self.start(offsets=offsets, **options))


async def reader(child: Child, kafka: ApacheKafka, topic: str, directory: Path) -> Reader:
    """Return a reader of a new topic with 10 records in partition 0 and 5 in partition 1."""
    await kafka.create_topic(topic)
    found = Reader(child, kafka, topic, directory)
    await found.feed(*records(0, range(10)), *records(1, range(5)))
    return found


def records(partition: int, numbers: Iterable[int]) -> list[Record]:
    """Return records of which the value says the place. Their times are 1,000 s apart."""
    return [Record(f"{partition}-{n}", partition, timestamp=1_000_000 * (n + 1)) for n in numbers]


def rows(partition: int, numbers: Iterable[int]) -> Rows:
    return [(partition, n, f"{partition}-{n}") for n in numbers]


async def test_a_job_starts_at_given_offsets(child: Child, apache_kafka: ApacheKafka, tmp_path: Path) -> None:
    """It reads each row from there on once, and none before (C26)."""
    topic = await reader(child, apache_kafka, "given", tmp_path)
    given = {"messages": '{"given":{"0":4,"1":2}}'}
    assert await topic.read(offsets=given) == rows(0, range(4, 10)) + rows(1, range(2, 5))


async def test_a_job_starts_at_the_offsets_recorded_of_a_job_without_checkpoints(
    child: Child, apache_kafka: ApacheKafka, tmp_path: Path
) -> None:
    """What the first job reported is written, found and used as a JobMaster does it (C26).

    In its directory there is nothing else. Between the two jobs no row is lost, and none is read twice.
    """
    topic = await reader(child, apache_kafka, "recorded", tmp_path)
    first = await topic.start()
    assert await topic.end(first) == rows(0, range(10)) + rows(1, range(5))
    (last, *_) = [n for n in reversed(child.notices) if isinstance(n, p.BatchFinished) and n.attempt_id == first]

    directory = tmp_path / "checkpoints" / "0123"
    directory.mkdir(parents=True)
    graph = parse_job(
        {
            "name": "reads on",
            "restore": {"path": str(directory), "offsets": "latest"},
            "vertices": {
                "messages": {"source": {"format": "kafka", "options": {"subscribe": "recorded"}}},
                "out": {"inputs": ["messages"], "sink": {"format": "console"}},
            },
        }
    )
    (reading,) = chain(graph)
    reported, sources = last.metrics.source_offsets, {reading.id: frozenset({"messages"})}
    empty = record.Offsets(job_id=JobId("0" * 32))
    known = record.advanced(empty, {reading.id: reported}, None, sources, {reading.id: False}, 0)
    (directory / record.FILE).write_bytes(record.encode(known))
    storages = Storages({})
    start = await Origin(storages, graph).find()
    await storages.aclose()
    assert start is not None

    await topic.feed(*records(0, range(10, 13)), *records(1, range(5, 6)))
    assert await topic.read(offsets=start.restores[reading.id].offsets) == rows(0, range(10, 13)) + rows(1, [5])


@pytest.mark.parametrize("option", ["startingTimestamp", "startingOffsetsByTimestamp"])
async def test_a_job_starts_at_a_time(child: Child, apache_kafka: ApacheKafka, tmp_path: Path, option: str) -> None:
    """It begins with the first record of each partition that is not older (C26, J9)."""
    topic = await reader(child, apache_kafka, f"at-{option}", tmp_path)
    each = json.dumps({topic.topic: {"0": 7_500_000, "1": 4_000_000}})
    options = {"startingTimestamp": "4000000", "startingOffsetsByTimestamp": each}
    begins = 7 if option == "startingOffsetsByTimestamp" else 3
    assert await topic.read(**{option: options[option]}) == rows(0, range(begins, 10)) + rows(1, range(3, 5))


async def test_a_bounded_job_reads_to_the_ends_at_its_start(
    child: Child, apache_kafka: ApacheKafka, tmp_path: Path
) -> None:
    """What is added while it runs belongs to another job, which starts where this one has ended (J8, C26)."""
    topic = await reader(child, apache_kafka, "bounded", tmp_path)
    (tmp_path / "wait").touch()
    attempt = await topic.start(startingOffsets="earliest", maxOffsetsPerTrigger="4")
    # The first one may be under way before the ends are known.
    await until((tmp_path / "began").exists, "the second micro-batch is under way")
    await topic.feed(*records(0, range(10, 20)), *records(1, range(5, 7)))
    (tmp_path / "go").touch()
    assert await topic.end(attempt) == rows(0, range(10)) + rows(1, range(5))
    ends = {"messages": '{"bounded":{"0":10,"1":5}}'}
    assert await topic.read(offsets=ends) == rows(0, range(10, 20)) + rows(1, range(5, 7))
