"""From Kafka to Kafka: how long a row is on its way, in real-time mode and in micro-batches (T6).

2,000 events a second, one partition, 20 keys, a checkpoint every 10 s, on one broker. *Projection* hands every row on,
*count by key* writes the new count of each row's key. Each event carries its number, and so does what is written for
it. The latency of an event is the time from its append to the first topic to the append of its result to the second
one, both as the broker stamps them, in whole milliseconds. The modes take turns; the first seconds of a turn are left
out.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from benchmarks.figures import Row
from benchmarks.running import quick_asked, run, say
from tests.cluster import Cluster, running_cluster, write_job
from tests.servers.apache_kafka import ApacheKafka

RATE = 2000  # events a second
KEYS = 20
WARM = 8.0  # seconds of a turn
MODES = ("real-time", "micro-batch")
QUERIES = {
    "projection": "SELECT key, CAST(n AS STRING) AS value FROM numbers",
    "count by key": "SELECT key, CONCAT(MAX(n), ' ', COUNT(*)) AS value FROM numbers GROUP BY key",
}
NUMBERS = "SELECT key, CAST(CAST(value AS STRING) AS BIGINT) AS n FROM events"


async def measure(base: Path, quick: bool) -> Row:
    row = Row("latency", f"Latency from Kafka to Kafka, {RATE:,} events/s")
    seconds, turns = (20.0, 1) if quick else (45.0, 3)
    found: dict[tuple[str, str], list[list[int]]] = {}
    kafka = ApacheKafka(base / "kafka")
    await kafka.start()
    try:
        settings = {
            "resourcemanager.max-taskmanagers": 1,
            "execution.checkpointing.interval": "10 s",
            "taskmanager.spark.conf": {"spark.jars": kafka.jars},
        }
        async with running_cluster(base / "cluster", **settings) as cluster:
            await cluster.await_ready(1)
            for turn in range(turns):
                for query in QUERIES:
                    for mode in MODES:
                        name = f"{query.replace(' ', '-')}-{mode}-{turn}"
                        latencies = await _turn(kafka, cluster, base, name, query, mode, seconds)
                        found.setdefault((query, mode), []).append(latencies)
                        p50, p99 = _quantile(latencies, 0.5), _quantile(latencies, 0.99)
                        say(f"latency: turn {turn + 1}, {query}, {mode}: p50 {p50} ms, p99 {p99} ms")
    finally:
        await kafka.kill()
    for query in QUERIES:
        for name, share in (("p50", 0.5), ("p99", 0.99), ("longest", 1.0)):
            ours, theirs = ([float(_quantile(turn, share)) for turn in found[query, mode]] for mode in MODES)
            row.add(f"{query}, real-time: {name} of a turn", "ms", ours, ("micro-batches", theirs))
    return row


async def _turn(
    kafka: ApacheKafka, cluster: Cluster, base: Path, name: str, query: str, mode: str, seconds: float
) -> list[int]:
    """Return the latencies of one turn in milliseconds, sorted."""
    for topic in (f"{name}-in", f"{name}-out"):
        await kafka.create_topic(topic, 1, message_timestamp_type="LogAppendTime")
    file = write_job(base / f"{name}.json", _document(kafka, name, query, mode))
    job_id = await cluster.submit(file)
    await cluster.await_state(job_id, "RUNNING")
    await asyncio.to_thread(_produce, kafka, f"{name}-in", WARM + seconds)
    began = await asyncio.to_thread(_times, kafka, f"{name}-in")
    first = min(began.values()) + WARM * 1000
    deadline = time.monotonic() + 60
    while True:
        ended = await asyncio.to_thread(_times, kafka, f"{name}-out")
        if len(ended) == len(began):
            break
        assert time.monotonic() < deadline, f"{len(ended)} of {len(began)} events have come"
        await asyncio.sleep(0.5)
    await cluster.cancel(job_id)
    return sorted(ended[number] - at for number, at in began.items() if at >= first)


def _document(kafka: ApacheKafka, name: str, query: str, mode: str) -> dict[str, Any]:
    servers = {"kafka.bootstrap.servers": kafka.address}
    source = {**servers, "subscribe": f"{name}-in", "startingOffsets": "earliest"}
    return {
        "name": name,
        "execution": mode,
        "vertices": {
            "events": {"source": {"format": "kafka", "options": source}},
            "numbers": {"inputs": ["events"], "sql": NUMBERS},
            "rows": {"inputs": ["numbers"], "sql": QUERIES[query]},
            "out": {
                "inputs": ["rows"],
                "output-mode": "update",
                "sink": {"format": "kafka", "options": {**servers, "topic": f"{name}-out", "kafka.linger.ms": "0"}},
            },
        },
    }


def _produce(kafka: ApacheKafka, topic: str, seconds: float) -> None:
    """Write events evenly. Blocks."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": kafka.address, "linger.ms": 0, "acks": "1", "log_level": 0})
    began, sent = time.monotonic(), 0
    while (now := time.monotonic() - began) < seconds:
        while sent < now * RATE:
            producer.produce(topic, str(sent), key=f"k{sent % KEYS}")
            sent += 1
        producer.poll(0)
        time.sleep(0.001)
    assert not producer.flush(60)


def _times(kafka: ApacheKafka, topic: str) -> dict[int, int]:
    """Return for each event when the broker appended the first record of it, in ms. Blocks.

    In micro-batches, one record has the counts of several events of its key: its time counts for all of them.
    """
    from confluent_kafka import Consumer
    from confluent_kafka.cimpl import TopicPartition

    settings = {"group.id": "nobody", "enable.auto.commit": False, "enable.partition.eof": True, "log_level": 0}
    consumer, found = Consumer({"bootstrap.servers": kafka.address, **settings}), dict[int, int]()
    last: dict[bytes, int] = {}
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        while True:
            message = consumer.poll(10)
            assert message is not None, f"{topic} has no end"
            if message.error() is not None:
                break
            key, number = message.key(), int(message.value().split()[0])
            for each in range(last.get(key, int(key[1:]) - KEYS) + KEYS, number + 1, KEYS):
                found.setdefault(each, message.timestamp()[1])
            last[key] = max(number, last.get(key, number))
    finally:
        consumer.close()
    return found


def _quantile(values: list[int], share: float) -> int:
    """`values`: sorted."""
    return values[min(len(values) - 1, int(len(values) * share))]


if __name__ == "__main__":
    run(measure, quick=quick_asked(__doc__))
