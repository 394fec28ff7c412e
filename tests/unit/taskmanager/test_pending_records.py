"""How many records wait in the topics of a source (K9)."""

from __future__ import annotations

from pathlib import Path

import pytest

from minflinkd.rpc.messages import MOST_PARTS, PendingRecords
from minflinkd.rpc.snapshot import PlanNode
from minflinkd.taskmanager.session.query.pending import client_settings, count, ends_in, in_kafka, positions


def test_the_records_after_what_was_processed_wait() -> None:
    processed = in_kafka('{"clicks":{"0":17,"1":4},"buys":{"0":0}}')
    found = count(processed, ends_in("clicks\t0\t20\nclicks\t1\t4\nbuys\t0\t9\n"))
    assert found == PendingRecords(records=12, partitions=3, parts={"buys.0": 9, "clicks.0": 3, "clicks.1": 0})


def test_a_partition_without_an_end_is_left_out_and_a_shorter_one_has_none() -> None:
    """A topic may be deleted, and one that is made anew is shorter than what was processed."""
    processed = in_kafka('{"clicks":{"0":17},"gone":{"0":4}}')
    assert count(processed, ends_in("clicks\t0\t3\n")) == PendingRecords(records=0, partitions=1, parts={"clicks.0": 0})


def test_the_partitions_with_most_records_are_named() -> None:
    many = MOST_PARTS + 10
    processed = {("clicks", number): 0 for number in range(many)}
    found = count(processed, {("clicks", number): number for number in range(many)})
    assert (found.records, found.partitions) == (sum(range(many)), many)
    assert found.parts.keys() == {f"clicks.{number}" for number in range(10, many)}


@pytest.mark.parametrize("offset", [None, "7", "text", '{"logOffset":3}', '{"c":{"0":null}}', '{"c":{"x":1}}'])
def test_an_offset_that_is_not_of_kafka_has_no_partitions(offset: str | None) -> None:
    assert in_kafka(offset) == {}


def test_the_client_has_the_settings_of_the_source_but_for_those_of_its_consumer() -> None:
    options = {
        "kafka.bootstrap.servers": "broker:9092",
        "Kafka.sasl.mechanism": "PLAIN",
        "kafka.own.callback.url": "http://login",
        "kafka.metric.reporters": "shop.Reporter",
        "kafka.request.timeout.ms": "60000",
        "subscribe": "clicks",
    }
    wanted = {"bootstrap.servers": "broker:9092", "sasl.mechanism": "PLAIN", "own.callback.url": "http://login"}
    assert client_settings(options) == wanted


CLICKS = PlanNode(kind="kafka", stateful=False, number=0, vertex="clicks")
BUYS = PlanNode(kind="kafka", stateful=False, number=1, vertex="buys")


def wrote(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_what_the_last_committed_micro_batch_read_is_processed(tmp_path: Path) -> None:
    """The one that runs is not, however long it runs."""
    for batch, (clicks, buys) in enumerate([('{"c":{"0":5}}', "-"), ('{"c":{"0":9}}', '{"b":{"0":1}}')]):
        wrote(tmp_path / "offsets" / str(batch), f"v1\n{{}}\n{clicks}\n{buys}")
    wrote(tmp_path / "commits/0", "v1\n{}")
    wrote(tmp_path / "sources/0/0", '\0v1\n{"c":{"0":2}}')
    wrote(tmp_path / "sources/1/0", '\0v1\n{"b":{"0":0}}')
    assert positions(tmp_path, (CLICKS, BUYS)) == {"clicks": '{"c":{"0":5}}', "buys": '{"b":{"0":0}}'}
    wrote(tmp_path / "commits/1", "v1\n{}")
    assert positions(tmp_path, (CLICKS, BUYS)) == {"clicks": '{"c":{"0":9}}', "buys": '{"b":{"0":1}}'}


def test_before_the_first_micro_batch_all_records_from_the_beginning_wait(tmp_path: Path) -> None:
    """It may run for hours, and then they are what matters. Nothing is known until Spark has chosen the beginning."""
    assert positions(tmp_path, (CLICKS,)) == {}
    wrote(tmp_path / "sources/0/0", '\0v1\n{"c":{"0":2}}')
    wrote(tmp_path / "offsets/0", 'v1\n{}\n{"c":{"0":900}}')
    assert positions(tmp_path, (CLICKS,)) == {"clicks": '{"c":{"0":2}}'}
