"""What the coordinator does as the tasks of its job start, stop and end their input."""

from __future__ import annotations

import pytest
from msgspec.structs import replace as copy

from minflinkd.checkpoint.causes import CheckpointKind, FailureCause, Refusal
from minflinkd.checkpoint.machine import events as e
from minflinkd.checkpoint.machine.pending import PendingCheckpoint, Phase
from minflinkd.checkpoint.machine.state import Final, next_wakeup, owed_to
from minflinkd.runtime.ids import TaskId
from minflinkd.runtime.machine import IllegalTransition, InvariantViolated
from tests.unit.checkpoint.builders import (
    A1,
    A2,
    B1,
    B2,
    ERROR,
    JOB,
    NOON,
    TASKS,
    A,
    B,
    Story,
    completed,
    name,
    snapshot,
)

SAVEPOINT = CheckpointKind.SAVEPOINT


def test_the_same_tasks_that_run_change_nothing() -> None:
    """Whoever reports it again does not move the next periodic checkpoint (C20)."""
    story = Story(interval=10.0).running()
    assert story.at(5.0, e.TasksRunning(TASKS)) == []
    assert story.state.next_trigger == 10.0


def test_other_tasks_that_run_have_taken_the_place_of_those_before() -> None:
    """What was under way with them is over, even if nobody said that they had stopped (C21)."""
    story = Story(interval=10.0).running().pending(1)
    commands = story.at(5.0, e.TasksRunning({A: A2, B: B2}))
    assert commands == [e.Fail(1, 1, FailureCause.TASK_FAILURE, None)]
    assert story.state.next_trigger == 15.0
    assert story.state.attempts == {A: A2, B: B2}


def test_what_other_tasks_end_is_told_although_they_were_restored() -> None:
    """They settle what was owed, and end what was pending (C21, C22)."""
    story = Story().running().pending(1)
    story.acknowledged(1)
    story.tell(e.MetadataWritten(1))
    story.pending(2).tell(e.RestorePointTaken(1))
    assert story.tell(e.TasksRunning({A: A2, B: B2})) == [e.Fail(2, 2, FailureCause.TASK_FAILURE, None)]
    assert story.state.unconfirmed == {}


def test_no_task_runs_under_a_coordinator_that_is_shut_down() -> None:
    """Nothing begins any more (C20)."""
    story = Story(interval=10.0)
    story.tell(e.Stopped(), e.TasksRunning(TASKS), e.PeriodicBegins())
    assert (story.state.attempts, story.state.next_trigger) == ({}, None)


def test_tasks_must_not_run_before_the_latest_checkpoint_is_settled() -> None:
    """They might have been restored from the one before it (C22)."""
    story = Story().running().pending(1)
    story.acknowledged(1)
    story.tell(e.TasksStopped())
    with pytest.raises(InvariantViolated) as broken:
        story.tell(e.TasksRunning({A: A2, B: B2}))
    assert broken.value.message == "tasks run although the latest checkpoint is not settled"
    assert broken.value.hint == "ask for the restore point first"


def test_a_checkpoint_that_not_all_have_acknowledged_is_not_completed() -> None:
    """Nobody can have written its metadata (C21)."""
    story = Story().running().pending(1)
    with pytest.raises(IllegalTransition, match="checkpoint 1: PENDING -> COMPLETED"):
        story.tell(e.MetadataWritten(1))


def test_attempts_are_told_in_order_of_all_that_they_have_not_published() -> None:
    """The oldest comes first, and only what was owed before the restore point is settled by it (C22)."""
    story = Story(store=(completed(3), completed(4), completed(5)))
    story.tell(e.RestorePointTaken(4))
    assert story.tell(e.TasksRunning({B: B2, A: A2})) == [
        e.NotifyComplete(A2, 5),
        e.NotifyComplete(B2, 5),
        e.DiscardMetadata(3),
    ]
    story = Story(store=(completed(3), completed(4)))
    assert story.tell(e.TasksRunning({B: B2, A: A2})) == [
        e.NotifyComplete(attempt, number) for number in (3, 4) for attempt in (A2, B2)
    ]


def test_survivors_are_those_that_ran_and_still_do() -> None:
    """A second failure leaves no more of them (R16)."""
    story = Story().running()
    story.tell(e.TasksStopped(frozenset({A1, B2})))
    assert story.state.survivors == {A1}
    story.tell(e.TasksStopped(frozenset({A1, B1})))
    assert story.state.survivors == {A1}
    story.tell(e.TasksRunning({A: A1, B: B2}))
    assert story.state.survivors == frozenset()
    story.tell(e.TasksStopped())
    assert (story.state.survivors, story.state.attempts) == (frozenset(), {})


def test_a_restore_point_counts_for_the_next_attempts_alone() -> None:
    """Those after them may have been restored from another one, or from none (C22)."""
    story = Story().running().pending(1)
    story.acknowledged(1)
    story.tell(e.MetadataWritten(1), e.TasksStopped(frozenset({A1})), e.RestorePointTaken(1))
    assert story.tell(e.TasksRunning({A: A1, B: B2})) == [e.NotifyComplete(A1, 1)]
    story.tell(e.TasksStopped())
    assert story.tell(e.TasksRunning({A: A2, B: B2})) == [e.NotifyComplete(A2, 1)]
    assert (owed_to(story.state, A2), owed_to(story.state, B2)) == (1, None)


def test_a_job_that_was_stopped_and_runs_again_is_checkpointed_again() -> None:
    """Its stop was complete, and so is over (C24)."""
    story = Story().running()
    story.tell(e.TriggerRequested(1, SAVEPOINT, forced=True, stop=True), e.SetUpDone(1, 1, NOON))
    story.acknowledged(1)
    story.tell(e.MetadataWritten(1), e.TasksStopped(), e.RestorePointTaken(1), e.TasksRunning({A: A2, B: B2}))
    assert story.tell(e.TriggerRequested(2)) == [e.SetUp(2)]


def test_tasks_that_stop_end_all_that_was_asked_of_them() -> None:
    """A stop, a drain and a final checkpoint belong to the tasks that were told (C4, C24)."""
    story = Story(interval=10.0).running()
    story.tell(e.DrainBegun(), e.FinalRequested())
    assert story.tell(e.TasksStopped()) == [], "nobody waits for the coordinator's own request"
    story.tell(e.TriggerRequested(1, SAVEPOINT, forced=True, stop=True))
    assert story.state.queued == ()
    story.tell(e.TasksRunning({A: A2, B: B2}))
    assert (story.state.stopping, story.state.final, story.state.draining) == (None, None, False)
    assert [type(command) for command in story.at(10.0)] == [e.SetUp]


def test_a_final_checkpoint_is_asked_for_by_tasks_that_run_and_once() -> None:
    """It is tried until it succeeds (C4)."""
    story = Story(tolerable_failed=9)
    story.tell(e.FinalRequested())
    assert story.state.final is None
    story.running()
    assert story.at(2.0, e.FinalRequested()) == [e.SetUp(-1)]
    assert story.at(3.0, e.FinalRequested()) == []
    assert story.tell(e.SetUpFailed(-1, ERROR)) == [], "nobody waits for its answer"
    assert story.state.final == Final(retry_at=4.0)
    assert story.at(3.5, e.FinalRequested()) == []
    assert next_wakeup(story.state, 3.5) == 4.0
    assert story.at(4.0) == [e.SetUp(-2)]
    assert next_wakeup(story.state, 4.0) == 604.0, "the set-up"
    story.tell(e.SetUpDone(-2, 1, NOON))
    story.acknowledged(1)
    assert next_wakeup(story.state, 4.0) is None
    commands = story.at(9.0, e.MetadataWritten(1))
    assert commands == [e.NotifyComplete(A1, 1), e.NotifyComplete(B1, 1)]
    assert story.state.final == Final(retry_at=2.0 + 2.0, request=-2, checkpoint_id=1)
    assert story.at(99.0) == []


def test_another_checkpoint_is_not_the_final_one() -> None:
    """A savepoint that is in flight as the input ends may not contain the end (C4)."""
    story = Story().running()
    story.tell(e.TriggerRequested(1, SAVEPOINT), e.SetUpDone(1, 1, NOON), e.FinalRequested())
    story.acknowledged(1)
    assert story.tell(e.MetadataWritten(1))[-1] == e.SetUp(-1)
    assert story.state.final is not None
    assert story.state.final.checkpoint_id is None


def test_the_final_checkpoint_waits_until_the_queue_is_empty_and_not_for_a_pause() -> None:
    """No periodic one comes between (C4, C20)."""
    story = Story(interval=1.0, min_pause=50.0).running()
    story.completed(1)
    assert story.tell(e.TriggerRequested(2)) == [], "too soon"
    assert story.tell(e.FinalRequested()) == []
    assert story.at(49.0) == []
    assert story.at(50.0) == [e.SetUp(2)]
    assert story.at(51.0, e.SetUpFailed(2, ERROR)) == [
        e.Fail(2, None, FailureCause.TRIGGER_FAILURE, ERROR),
        e.SetUp(-1),
    ]


def test_a_stop_refuses_all_others_and_ends_with_its_own_request() -> None:
    """The tasks publish nothing after its cut (C24)."""
    story = Story(interval=10.0).running()
    story.tell(e.TriggerRequested(1))
    story.tell(e.TriggerRequested(2, SAVEPOINT, forced=True, stop=True))
    assert story.tell(e.SetUpFailed(1, ERROR))[-1] == e.SetUp(2)
    for kind in (CheckpointKind.MANUAL, SAVEPOINT, CheckpointKind.FINAL):
        assert story.tell(e.TriggerRequested(3, kind, forced=True)) == [e.Refuse(3, Refusal.JOB_STOPS)]
    assert story.tell(e.TriggerRequested(3, CheckpointKind.PERIODIC)) == [e.Refuse(3, Refusal.PERIODIC_OFF)]
    assert story.state.stopping == 2
    story.tell(e.SetUpDone(2, 1, NOON), e.Declined(1, A1, ERROR))
    assert story.state.stopping is None


def test_a_drain_refuses_all_but_the_final_checkpoint() -> None:
    """Each is refused for its own reason (C24)."""
    story = Story(interval=10.0).running()
    story.tell(e.DrainBegun())
    assert story.tell(e.TriggerRequested(1, SAVEPOINT, forced=True)) == [e.Refuse(1, Refusal.JOB_STOPS)]
    assert story.tell(e.TriggerRequested(1, CheckpointKind.PERIODIC)) == [e.Refuse(1, Refusal.PERIODIC_OFF)]
    assert story.tell(e.TriggerRequested(1, CheckpointKind.FINAL)) == [e.SetUp(1)]


def test_a_checkpoint_has_the_time_of_its_last_acknowledgement_and_what_all_tasks_said() -> None:
    """The coordinator's epoch is part of it (C21, C22)."""
    story = Story(hooks=("one",), epoch=3)
    story.tell(e.TasksRunning(TASKS))
    story.now = 1.0
    story.tell(e.TriggerRequested(1), e.SetUpDone(1, 4, NOON), e.HookAnswered(4, "one", b"state"))
    story.now = 1.25
    story.tell(e.Acknowledged(snapshot(4, B, B1)))
    story.now = 2.0
    [write] = story.tell(e.Acknowledged(snapshot(4, A, A1)))
    assert isinstance(write, e.WriteMetadata)
    checkpoint = write.checkpoint
    assert (checkpoint.job_id, checkpoint.epoch, checkpoint.checkpoint_id) == (JOB, 3, 4)
    assert checkpoint.kind is CheckpointKind.MANUAL
    assert (checkpoint.triggered_ms, checkpoint.completed_ms) == (NOON, NOON + 1000)
    assert [task.task_id for task in checkpoint.tasks] == [A, B]
    assert [(hook.name, hook.state) for hook in checkpoint.hooks] == [("one", b"state")]
    nothing = PendingCheckpoint(
        checkpoint_id=1, request=1, kind=SAVEPOINT, tasks={}, triggered_ms=NOON, triggered_at=0.0, deadline=1.0
    )
    assert nothing.complete(checkpoint.job_id, 1).completed_ms == NOON
    assert nothing.phase is Phase.PENDING


def test_the_size_of_a_file_is_the_largest_that_anybody_knows() -> None:
    """At least it ends with its last segment (F4, F10)."""
    story = Story(max_concurrent=2).running().pending(1)
    story.tell(e.Acknowledged(copy(snapshot(1, A, A1), file_sizes={name(1, A1): 700})))
    assert story.state.sizes == {name(1, A1): 700}
    shared = copy(snapshot(1, B, B1), physical_files=(name(1, A1), name(1, B1)), file_sizes={name(1, A1): 600})
    [write] = story.tell(e.Acknowledged(shared))
    assert story.state.sizes == {name(1, A1): 700, name(1, B1): 1}
    assert isinstance(write, e.WriteMetadata)
    assert [task.file_sizes for task in write.checkpoint.tasks] == [{name(1, A1): 700}, {name(1, B1): 1}]
    story.tell(e.MetadataWritten(1), e.FilesDeleted(frozenset({name(1, B1)})))
    assert story.state.sizes == {name(1, A1): 700}


def test_a_file_in_which_a_task_has_nothing_has_no_size_of_its_own() -> None:
    """Another task, which has something in it, knows better (F10)."""
    story = Story().running().pending(1)
    story.tell(e.Acknowledged(copy(snapshot(1, A, A1), files=())))
    assert story.state.sizes == {name(1, A1): 0}


def test_a_task_that_says_nothing_of_sizes_has_none_recorded() -> None:
    """Its checkpoints were written so before they were known (F10)."""
    story = Story().running().pending(1)
    [write] = story.acknowledged(1)
    assert isinstance(write, e.WriteMetadata)
    assert [task.file_sizes for task in write.checkpoint.tasks] == [{}, {}]


def test_adopted_tasks_are_told_of_every_complete_checkpoint_that_they_may_owe() -> None:
    """The coordinator before this one may have died between the checkpoint and the news of it (A14a).

    Tasks publish once, however often they are told.
    """
    story = Story(store=(completed(3), completed(4)))
    assert story.tell(e.TasksAdopted(frozenset({A1, B1}), frozenset())) == []
    assert story.tell(e.TasksRunning(TASKS)) == [
        e.NotifyComplete(attempt, number) for number in (3, 4) for attempt in (A1, B1)
    ]


def test_adopted_tasks_are_told_that_what_is_not_complete_never_will_be() -> None:
    """They may hold up their input for it, or be stopped by it. What is complete is not aborted (A14a)."""
    story = Story(store=(completed(3),))
    assert story.tell(e.TasksAdopted(frozenset({A1, B1}), frozenset({3, 4}))) == [
        e.NotifyAborted(A1, 4),
        e.NotifyAborted(B1, 4),
    ]


def test_beside_adopted_tasks_the_restored_ones_owe_nothing() -> None:
    """A region restarts from the checkpoint and has published what it covers; the adopted ones have perhaps not."""
    story = Story(store=(completed(3),))
    story.tell(e.TasksAdopted(frozenset({A1}), frozenset()), e.RestorePointTaken(3))
    assert story.tell(e.TasksRunning({A: A1, B: B2})) == [e.NotifyComplete(A1, 3)]
    assert owed_to(story.state, B2) is None


def test_what_only_tasks_of_an_earlier_version_owe_is_settled_when_all_are_adopted() -> None:
    """Their successors published it before they ran. Otherwise that checkpoint would never be subsumed."""
    story = Story(store=(completed(3, snapshot(3, A, A1), snapshot(3, TaskId("gone"), B1)),))
    story.tell(e.TasksAdopted(frozenset({A1}), frozenset()))
    assert story.tell(e.TasksRunning({A: A1})) == [e.NotifyComplete(A1, 3)]
    story.tell(e.TaskNotified(3, A1))
    assert story.state.unconfirmed == {}
