"""What the coordinator does with damaged checkpoints after the job went on from an earlier one (C28)."""

from __future__ import annotations

import pytest

from minflinkd.checkpoint.machine import events as e
from minflinkd.checkpoint.machine import transitions
from minflinkd.checkpoint.machine.state import (
    check_invariants,
    has_confirmed,
    orphans,
    protected_files,
    retained,
    whole,
)
from minflinkd.checkpoint.metadata import restore_point
from minflinkd.checkpoint.options import CheckpointOptions
from minflinkd.runtime.machine import InvariantViolated
from minflinkd.storage.publication import SinkTransaction
from tests.unit.checkpoint.builders import A1, A2, B1, B2, JOB, TASKS, A, B, Story, completed, name, snapshot

AGAIN = {A: A2, B: B2}


def ids(story: Story) -> list[int]:
    return [checkpoint.checkpoint_id for checkpoint in story.state.completed]


def fallen_back(**options: int) -> Story:
    """Return a job with the checkpoints 1, 2 and 3, of which 3 is damaged, and that runs again from 2."""
    story = Story(num_retained=options.get("num_retained", 3)).running()
    for number in (1, 2, 3):
        story.completed(number)
    story.tell(e.TasksStopped(), e.FellBack(frozenset({3})), e.RestorePointTaken(2), e.TasksRunning(AGAIN))
    return story


def complete(story: Story, number: int, **more: object) -> list[e.Command]:
    """Complete a checkpoint of the new attempts, and confirm it. Return which checkpoints go."""
    story.pending(number)
    for task, attempt in AGAIN.items():
        story.tell(e.Acknowledged(snapshot(number, task, attempt, **more)))  # type: ignore[arg-type]
    commands = story.tell(e.MetadataWritten(number), e.TaskNotified(number, A2), e.TaskNotified(number, B2))
    return [command for command in commands if isinstance(command, e.DiscardMetadata)]


def test_the_job_is_restored_from_the_latest_whole_checkpoint() -> None:
    """The damaged one still exists, but neither its state nor its output is used (C28)."""
    promised = SinkTransaction(job_id=JOB, sink="out", checkpoint_id=3)
    store = (completed(2), completed(3, snapshot(3, A, A1, transactions=(promised,)), snapshot(3, B, B1)))
    story = Story(store, num_retained=3)
    story.tell(e.FellBack(frozenset({3})))
    point = restore_point(whole(story.state))
    assert point is not None
    assert point.checkpoint_id == 2
    assert not any(task.transactions for task in point.tasks)
    assert 3 not in story.state.unconfirmed, "nobody publishes it any more"


def test_a_damaged_checkpoint_stays_until_enough_later_ones_are_whole() -> None:
    """Somebody may want to know what has happened to it. It does not count as retained (C28)."""
    story = fallen_back()
    assert ids(story) == [1, 2, 3]
    assert complete(story, 4) == []
    assert ids(story) == [1, 2, 3, 4]
    assert retained(story.state) == (1, 2, 3, 4)
    assert complete(story, 5) == [e.DiscardMetadata(1)]
    assert ids(story) == [2, 3, 4, 5]
    assert complete(story, 6) == [e.DiscardMetadata(2), e.DiscardMetadata(3)]
    assert ids(story) == [4, 5, 6]
    assert story.state.skipped == frozenset()


def test_files_of_a_damaged_checkpoint_stay_with_it_and_go_with_it() -> None:
    """The sweep of orphans leaves them alone (C28, F7)."""
    story = fallen_back(num_retained=2)
    assert name(3, A1) in protected_files(story.state)
    assert orphans(story.state, {name(3, A1): (1, 3), name(3, A1, 7): (1, 3)}) == {name(3, A1, 7)}
    assert complete(story, 4) == []
    assert complete(story, 5) == [e.DiscardMetadata(2), e.DiscardMetadata(3)]
    deleted = story.tell(e.MetadataDiscarded(2), e.MetadataDiscarded(3))
    files = frozenset[str]().union(*(command.files for command in deleted if isinstance(command, e.DeleteFiles)))
    assert files == {name(number, attempt) for number in (2, 3) for attempt in TASKS.values()}


def test_a_segment_written_anew_is_not_replaced_with_its_damaged_twin() -> None:
    """The job repeats its work, and makes files with the same content (C28, F4)."""
    story = Story((completed(2), completed(3, snapshot(3, A, A1, digest="same"), snapshot(3, B, B1))), num_retained=3)
    story.tell(e.FellBack(frozenset({3})), e.RestorePointTaken(2), e.TasksRunning(AGAIN))
    story.pending(4)
    story.tell(e.Acknowledged(snapshot(4, A, A2, digest="same")), e.Acknowledged(snapshot(4, B, B2)))
    story.tell(e.MetadataWritten(4))
    assert story.state.completed[-1].physical_files() == {name(4, A2), name(4, B2)}


def test_a_snapshot_that_refers_to_a_damaged_checkpoint_is_declined() -> None:
    """No later checkpoint inherits the damage (C28)."""
    story = fallen_back()
    story.pending(4)
    story.tell(e.Acknowledged(snapshot(4, A, A2, reuses=(name(3, A1),))))
    assert 4 not in story.state.pending


def test_a_damaged_checkpoint_confirms_nothing() -> None:
    """What the job started from is needed until a checkpoint that can be restored is known to all tasks (C25, C28)."""
    story = Story((completed(1),))
    assert not has_confirmed(story.state)
    story.tell(e.FellBack(frozenset({1})))
    assert not has_confirmed(story.state)


def test_a_later_coordinator_knows_what_was_given_up() -> None:
    """The decision is in the storage (C28)."""
    state = transitions.initial(
        JOB, CheckpointOptions(num_retained=3), (completed(1), completed(2)), damaged=frozenset({2, 9})
    )
    check_invariants(state)
    assert [checkpoint.checkpoint_id for checkpoint in whole(state)] == [1]
    assert state.unconfirmed.keys() == {1}


def test_tasks_that_run_on_forbid_going_back() -> None:
    """All tasks must start from the same checkpoint (C28)."""
    story = Story().running().completed(1)
    with pytest.raises(InvariantViolated):
        story.tell(e.FellBack(frozenset({1})))
