"""How many records wait in the topics of a source (K6)."""

from __future__ import annotations

import pytest

from minflinkd.rpc.messages import MOST_PARTS, PendingRecords
from minflinkd.taskmanager.session.query.pending import client_settings, ends, partitions, pending


def test_the_records_after_what_was_read_wait() -> None:
    read = partitions({"clicks": {"0": 17, "1": 4}, "buys": {"0": 0}})
    found = pending(read, ends("clicks\t0\t20\nclicks\t1\t4\nbuys\t0\t9\n"))
    assert found == PendingRecords(records=12, parts={"buys.0": 9, "clicks.0": 3, "clicks.1": 0})


def test_a_partition_that_is_gone_is_left_out() -> None:
    """A topic may be deleted, and made anew with fewer partitions, or be shorter than what was read."""
    read = partitions({"clicks": {"0": 17, "1": 4}})
    assert pending(read, ends("clicks\t0\t3\n")) == PendingRecords(records=0, parts={"clicks.0": 0})


def test_the_partitions_with_most_records_are_named() -> None:
    count = MOST_PARTS + 10
    read = partitions({"clicks": {str(number): 0 for number in range(count)}})
    found = pending(read, {("clicks", number): number for number in range(count)})
    assert found.records == sum(range(count))
    assert found.parts.keys() == {f"clicks.{number}" for number in range(10, count)}


@pytest.mark.parametrize("offset", [None, 7, "text", {"logOffset": 3}, {"clicks": {"0": None}}, {"clicks": {"x": 1}}])
def test_an_offset_that_is_not_of_kafka_has_no_partitions(offset: object) -> None:
    assert partitions(offset) == {}


def test_the_client_has_the_settings_of_the_source_and_no_other() -> None:
    options = {"kafka.bootstrap.servers": "broker:9092", "kafka.sasl.mechanism": "PLAIN", "subscribe": "clicks"}
    assert client_settings(options) == {"bootstrap.servers": "broker:9092", "sasl.mechanism": "PLAIN"}
