"""The record of where a job's sources are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minflinkd.checkpoint.causes import CheckpointKind
from minflinkd.checkpoint.metadata import CompletedCheckpoint
from minflinkd.checkpoint.offsets import (
    FILE,
    Offsets,
    OffsetsUnreadable,
    advanced,
    encode,
    is_later,
    read_offsets,
    text,
)
from minflinkd.rpc.snapshot import TaskSnapshot
from minflinkd.runtime.ids import AttemptId, JobId, ResourceId, TaskId
from minflinkd.storage.interface import ObjectNotFound
from minflinkd.storage.registry import Storages

JOB, TASK = JobId("0" * 32), TaskId("flights")
SOURCES = {TASK: frozenset({"flights"})}
KAFKA = '{"flights":{"0":17}}'


def published(offset: str) -> CompletedCheckpoint:
    snapshot = TaskSnapshot(
        task_id=TASK,
        attempt_id=AttemptId("0" * 32),
        resource_id=ResourceId("tm-000000000000"),
        checkpoint_id=4,
        batch_id=3,
        source_offsets={"flights": offset},
    )
    return CompletedCheckpoint(
        job_id=JOB,
        checkpoint_id=4,
        epoch=1,
        kind=CheckpointKind.PERIODIC,
        triggered_ms=0,
        completed_ms=0,
        tasks=(snapshot,),
    )


def test_a_sink_that_publishes_with_checkpoints_begins_again_at_what_is_published() -> None:
    """Rows that were only processed are lost with the state (C26, J12)."""
    record = advanced(
        Offsets(job_id=JOB), {TASK: {"flights": '{"offset":9}'}}, published('{"offset":5}'), SOURCES, {TASK: True}, 7
    )
    assert record.latest() == {"flights": {"offset": 5}}
    assert record.tasks[TASK].processed == {"flights": {"offset": 9}}
    assert (record.tasks[TASK].checkpoint_id, record.recorded_ms) == (4, 7)


def test_other_sinks_begin_again_at_what_is_processed_also_without_any_checkpoint() -> None:
    """Other sinks restart from the processed offsets, also while checkpoints fail (C26)."""
    record = advanced(Offsets(job_id=JOB), {TASK: {"flights": KAFKA}}, None, SOURCES, {TASK: False}, 7)
    assert record.latest() == {"flights": {"flights": {"0": 17}}}
    assert text(record.latest()["flights"]) == KAFKA


def test_a_restarted_task_that_has_not_reported_yet_takes_nothing_back() -> None:
    """A restarted task that has not reported yet does not reset the recorded offsets (C26)."""
    record = advanced(Offsets(job_id=JOB), {TASK: {"flights": KAFKA}}, None, SOURCES, {TASK: False}, 7)
    assert advanced(record, {TASK: {}}, None, SOURCES, {TASK: False}, 8) is record


@pytest.mark.parametrize("reported", [{}, {"flights": '{"flights":{"0":19}}'}])
def test_a_checkpoint_that_is_further_than_an_old_record_counts_until_its_task_reports(
    reported: dict[str, str],
) -> None:
    """The daemon was killed before it recorded more, and the attempt that it adopts has had no input since (C26)."""
    old = advanced(Offsets(job_id=JOB), {TASK: {"flights": '{"flights":{"0":12}}'}}, None, SOURCES, {TASK: False}, 7)
    record = advanced(old, {TASK: reported}, published(KAFKA), SOURCES, {TASK: False}, 8)
    assert record.latest() == {"flights": {"flights": {"0": 19 if reported else 17}}}


def test_a_checkpoint_takes_nothing_back_of_what_was_processed_after_it() -> None:
    """A sink that does not wait for checkpoints has those rows (C26)."""
    old = advanced(Offsets(job_id=JOB), {TASK: {"flights": '{"flights":{"0":21}}'}}, None, SOURCES, {TASK: False}, 7)
    assert advanced(old, {TASK: {}}, published(KAFKA), SOURCES, {TASK: False}, 8).latest() == old.latest()


@pytest.mark.parametrize(
    ("offset", "before", "later"),
    [
        ({"c": {"0": 17, "1": 4}}, {"c": {"0": 12, "1": 4}}, True),
        ({"c": {"0": 17, "1": 3}}, {"c": {"0": 12, "1": 4}}, False),
        ({"c": {"0": 17}}, {"c": {"0": 17}}, False),
        ({"c": {"0": 17, "1": 0}}, {"c": {"0": 17}}, True),
        ({"c": {"0": 17}}, {"c": {"0": 1, "1": 0}}, False),
        ({"logOffset": 3}, {"logOffset": 2}, True),
        (7, 6, True),
        (7, None, True),
        ("b", "a", False),
        ({"id": "x", "n": 2}, {"id": "x", "n": 1}, True),
        ({"id": "y", "n": 2}, {"id": "x", "n": 1}, False),
    ],
)
def test_an_offset_is_later_if_no_number_in_it_is_less(offset: object, before: object, later: bool) -> None:
    assert is_later(offset, before) is later


OFFSETS = st.recursive(
    st.integers(0, 3) | st.sampled_from("ab") | st.none(),
    lambda inner: st.dictionaries(st.sampled_from("01"), inner, max_size=2),
    max_leaves=4,
)


@given(OFFSETS, OFFSETS)
def test_of_two_offsets_at_most_one_is_later(one: object, other: object) -> None:
    """Whatever their form is; and none is later than itself."""
    assert not (is_later(one, other) and is_later(other, one))
    assert not is_later(one, one)


async def test_the_record_is_read_as_it_was_written(tmp_path: object) -> None:
    """C26."""
    storages = Storages({})
    directory = storages.at(str(tmp_path))
    with pytest.raises(ObjectNotFound):
        await read_offsets(directory)
    record = advanced(Offsets(job_id=JOB), {TASK: {"flights": KAFKA}}, published(KAFKA), SOURCES, {TASK: True}, 7)
    await directory.child(FILE).write_bytes(encode(record))
    assert await read_offsets(directory) == record
    await directory.child(FILE).write_bytes(b"{")
    with pytest.raises(OffsetsUnreadable):
        await read_offsets(directory)
    await storages.aclose()
