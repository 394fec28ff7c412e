"""The coordinator's decisions, tested with lists of events and the exact commands that follow."""

from __future__ import annotations

import pytest

from minflinkd.checkpoint.causes import CheckpointKind, FailureCause, Refusal
from minflinkd.checkpoint.machine import events as e
from minflinkd.checkpoint.machine.state import MAX_CLEANING, all_published, may_restore, next_wakeup, owed_to
from minflinkd.runtime.machine import InvariantViolated
from tests.unit.checkpoint.builders import A1, A2, B1, B2, ERROR, NOON, TASKS, A, B, Story, completed, name, snapshot


def test_a_checkpoint_goes_from_the_request_to_the_confirmed_publication() -> None:
    """Every step waits for the result of the one before it, in this order (C20 - C22)."""
    story = Story().running()
    assert story.tell(e.TriggerRequested(1)) == [e.SetUp(1)]
    assert story.tell(e.SetUpDone(1, 7, NOON)) == [e.SendTrigger(A1, 7), e.SendTrigger(B1, 7)]
    assert story.tell(e.TriggerTaken(7, A1), e.TriggerTaken(7, B1)) == []
    assert story.tell(e.Acknowledged(snapshot(7, A, A1))) == []
    story.now = 0.5
    [write] = story.tell(e.Acknowledged(snapshot(7, B, B1)))
    assert isinstance(write, e.WriteMetadata)
    assert write.checkpoint.checkpoint_id == 7
    assert [task.task_id for task in write.checkpoint.tasks] == [A, B]
    assert (write.checkpoint.triggered_ms, write.checkpoint.completed_ms) == (NOON, NOON + 500)
    assert story.tell(e.MetadataWritten(7)) == [
        e.NotifyComplete(A1, 7),
        e.NotifyComplete(B1, 7),
        e.Complete(1, write.checkpoint),
    ]
    assert owed_to(story.state, A1) == 7
    assert story.tell(e.TaskNotified(7, A1)) == []
    assert owed_to(story.state, A1) is None
    assert owed_to(story.state, B1) == 7


def test_periodic_checkpoints_come_every_interval_without_anybody_asking() -> None:
    """The coordinator makes one request of its own in each interval. The next wake-up says when (C20)."""
    story = Story(interval=10.0).running()
    assert next_wakeup(story.state, 0.0) == 10.0
    assert story.at(9.9) == []
    [set_up] = story.at(10.0)
    assert isinstance(set_up, e.SetUp)
    assert story.state.next_trigger == 20.0


def test_tasks_that_run_without_periodic_checkpoints_take_those_that_are_asked_for() -> None:
    """A version on trial is checkpointed only on request, until periodic checkpoints begin (H7)."""
    story = Story(interval=10.0)
    assert story.tell(e.TasksRunning(TASKS, periodic=False)) == []
    assert story.at(50.0) == []
    assert next_wakeup(story.state, 50.0) is None
    assert story.tell(e.TriggerRequested(1, CheckpointKind.SAVEPOINT, forced=True)) == [e.SetUp(1)]
    story.tell(e.SetUpFailed(1, ERROR))
    assert story.tell(e.PeriodicBegins()) == []
    assert story.state.next_trigger == 60.0
    assert story.at(55.0, e.PeriodicBegins()) == [], "they have begun"
    [set_up] = story.at(60.0)
    assert isinstance(set_up, e.SetUp)


def test_a_periodic_checkpoint_can_be_hastened_and_the_next_one_follows_an_interval_later() -> None:
    """After a restart the first one does not wait for an interval (C20)."""
    story = Story(interval=10.0).running()
    [set_up] = story.at(3.0, e.PeriodicHastened())
    assert isinstance(set_up, e.SetUp)
    assert story.state.next_trigger == 13.0


@pytest.mark.parametrize("periodic", [False, True])
def test_a_checkpoint_that_is_not_to_come_is_not_hastened(periodic: bool) -> None:
    """A version on trial takes none, nor does a job without an interval (H7)."""
    story = Story(interval=0.0 if periodic else 10.0)
    story.tell(e.TasksRunning(TASKS, periodic=periodic))
    assert story.at(3.0, e.PeriodicHastened()) == []
    assert story.state.next_trigger is None


def test_periodic_checkpoints_begin_with_no_tasks_and_without_an_interval_never() -> None:
    """Periodic checkpoints need running tasks and an interval (C20)."""
    story = Story(interval=10.0)
    story.tell(e.PeriodicBegins())
    assert story.state.next_trigger is None, "no task runs"
    story = Story(interval=0.0)
    story.tell(e.TasksRunning(TASKS, periodic=False), e.PeriodicBegins())
    assert story.state.next_trigger is None, "they are switched off"
    story = Story(interval=0.5)
    story.tell(e.TasksRunning(TASKS, periodic=False), e.PeriodicBegins())
    assert story.state.next_trigger == 0.5


def test_periodic_checkpoints_stop_with_the_tasks() -> None:
    """Nothing is triggered while the tasks are not running (C20)."""
    story = Story(interval=10.0).running()
    assert story.at(5.0, e.TasksStopped()) == []
    assert story.at(50.0) == []
    assert next_wakeup(story.state, 50.0) is None


def test_a_checkpoint_expires_and_what_it_wrote_is_deleted() -> None:
    """The tasks are told, only files of this checkpoint are deleted, and the caller hears the cause (C21, C22)."""
    story = Story(timeout=60.0, tolerable_failed=1).running().pending(1)
    story.tell(e.Acknowledged(snapshot(1, A, A1)))
    *aborts, failed, deleted = story.at(60.0)
    assert aborts == [e.NotifyAborted(A1, 1), e.NotifyAborted(B1, 1)]
    assert isinstance(failed, e.Fail)
    assert (failed.checkpoint_id, failed.cause) == (1, FailureCause.EXPIRED)
    assert "task b has not acknowledged within 60 s" in str(failed.error)
    assert deleted == e.DeleteFiles(frozenset({name(1, A1)}))


def test_a_late_or_doubled_acknowledgement_changes_nothing() -> None:
    """An acknowledgement may come from another attempt, repeat one, or belong to a checkpoint that is gone.

    Its files are deleted (C21).
    """
    story = Story().running().pending(1)
    story.tell(e.Acknowledged(snapshot(1, A, A1)))
    before = story.state.pending
    other = snapshot(1, A, A1, writes=(name(1, A1, 9),))
    story.tell(e.Acknowledged(snapshot(1, A, A1)), e.Acknowledged(snapshot(1, B, B2)), e.Acknowledged(other))
    assert story.state.pending == before
    aborted = story.tell(e.Declined(1, B1, ERROR))
    [deleted] = [command.files for command in aborted if isinstance(command, e.DeleteFiles)]
    assert deleted == {name(1, A1), name(1, A1, 9), name(1, B2)}
    assert story.tell(e.Acknowledged(snapshot(1, B, B1))) == [e.DeleteFiles(frozenset({name(1, B1)}))]


def test_a_repeated_acknowledgement_of_a_completed_checkpoint_deletes_none_of_its_files() -> None:
    """The answer to the first acknowledgement may have been lost (C21, F5)."""
    story = Story().running().completed(1)
    assert story.tell(e.Acknowledged(snapshot(1, A, A1))) == []
    assert story.state.doomed == ()


def test_an_old_attempt_can_neither_decline_nor_fail_a_checkpoint() -> None:
    """A message of an older attempt changes nothing (C21)."""
    story = Story().running().pending(1)
    assert story.tell(e.Declined(1, A2, ERROR), e.TriggerFailed(1, A2, ERROR)) == []
    story.tell(e.Acknowledged(snapshot(1, A, A1)))
    assert story.tell(e.Declined(1, A1, ERROR)) == []


def told(number: int) -> tuple[e.Event, ...]:
    """Return the events that say that all tasks have published the checkpoint."""
    return e.TaskNotified(number, A1), e.TaskNotified(number, B1)


def test_files_of_a_subsumed_checkpoint_go_after_its_metadata_and_only_if_no_later_one_uses_them() -> None:
    """The metadata is deleted first, then the physical files that the next checkpoint does not refer to (C22, F5)."""
    story = Story().running().completed(1).pending(2)
    story.tell(e.Acknowledged(snapshot(2, A, A1, reuses=(name(1, A1),))), e.Acknowledged(snapshot(2, B, B1)))
    commands = story.tell(e.MetadataWritten(2))
    assert commands[:2] == [e.NotifyComplete(A1, 2), e.NotifyComplete(B1, 2)]
    assert story.tell(e.TaskNotified(2, A1)) == []  # task B may still refer to the files of 1
    assert story.tell(e.TaskNotified(2, B1)) == [e.DiscardMetadata(1)]
    assert story.tell(e.MetadataDiscarded(1)) == [e.DeleteFiles(frozenset({name(1, B1)}))]


def test_files_that_a_checkpoint_in_flight_may_refer_to_wait_for_its_end() -> None:
    """A pending checkpoint that was triggered before may still refer to them (F5)."""
    story = Story(max_concurrent=2).running().completed(1)
    story.pending(2).pending(3)
    for task, attempt in TASKS.items():
        story.tell(e.Acknowledged(snapshot(2, task, attempt)))
    story.tell(e.MetadataWritten(2), *told(2))
    assert story.tell(e.MetadataDiscarded(1)) == []
    assert story.tell(e.Acknowledged(snapshot(3, A, A1, reuses=(name(1, A1),)))) == []
    story.tell(e.Acknowledged(snapshot(3, B, B1)))
    assert e.DeleteFiles(frozenset({name(1, B1)})) in story.tell(e.MetadataWritten(3))
    assert name(1, A1) in story.state.completed[-1].physical_files()


def test_a_snapshot_that_refers_to_a_file_nobody_retains_is_declined() -> None:
    """A checkpoint that cannot be restored never completes (F4)."""
    story = Story().running().pending(1)
    commands = story.tell(e.Acknowledged(snapshot(1, A, A1, reuses=(name(9, A2),))))
    [answer] = [command for command in commands if isinstance(command, e.Fail)]
    assert answer.cause is FailureCause.DECLINED
    assert answer.error is not None
    assert answer.error.code == "checkpoint-file-not-retained"
    assert e.DeleteFiles(frozenset({name(1, A1)})) in commands


def test_a_checkpoint_is_retained_until_its_tasks_have_published_it() -> None:
    """A checkpoint's metadata is the only proof of what is owed. A later one subsumes it when nothing is owed (C22)."""
    story = Story().running().pending(1)
    for task, attempt in TASKS.items():
        story.tell(e.Acknowledged(snapshot(1, task, attempt)))
    story.tell(e.MetadataWritten(1), e.TaskNotified(1, A1))
    story.completed(2)
    assert [checkpoint.checkpoint_id for checkpoint in story.state.completed] == [1, 2]
    assert story.tell(e.TaskNotified(1, B1)) == [e.DiscardMetadata(1)]


def test_too_many_old_checkpoints_stop_the_making_of_new_ones() -> None:
    """A storage that deletes too slowly is not given more to delete (C20)."""
    story = Story(max_concurrent=1).running()
    for number in range(1, MAX_CLEANING + 2):
        story.completed(number)
    assert story.tell(e.TriggerRequested(99)) == [e.Refuse(99, Refusal.TOO_MANY_TO_CLEAN)]
    [deletion] = story.tell(e.MetadataDiscarded(1))
    assert isinstance(deletion, e.DeleteFiles)
    assert story.tell(e.TriggerRequested(99)) == [e.Refuse(99, Refusal.TOO_MANY_TO_CLEAN)]
    story.tell(e.FilesDeleted(deletion.files))
    assert story.tell(e.TriggerRequested(100)) == [e.SetUp(100)]


def test_metadata_that_could_not_be_written_is_deleted_before_anything_else_may_happen() -> None:
    """After a failed write the outcome is unknown, so nothing is restored until the deletion is certain (C22)."""
    story = Story(tolerable_failed=1).running().pending(1)
    for task, attempt in TASKS.items():
        story.tell(e.Acknowledged(snapshot(1, task, attempt)))
    assert not may_restore(story.state)
    assert story.tell(e.MetadataFailed(1, ERROR)) == [
        e.NotifyAborted(A1, 1),
        e.NotifyAborted(B1, 1),
        e.DiscardMetadata(1),
        e.Fail(1, 1, FailureCause.FINALIZE_FAILURE, ERROR),
    ]
    assert not may_restore(story.state)
    assert story.tell(e.MetadataDiscarded(1)) == [e.DeleteFiles(frozenset({name(1, A1), name(1, B1)}))]
    assert may_restore(story.state)


def test_a_failover_aborts_what_is_pending_but_waits_for_what_is_being_finalised() -> None:
    """Once the metadata may be in the storage, only the outcome of the write decides (C21, C22)."""
    story = Story(max_concurrent=2).running().pending(1).pending(2)
    for task, attempt in TASKS.items():
        story.tell(e.Acknowledged(snapshot(1, task, attempt)))
    assert story.tell(e.TasksStopped()) == [e.Fail(2, 2, FailureCause.TASK_FAILURE, None)]
    assert story.state.failures == 0
    with pytest.raises(InvariantViolated):
        story.tell(e.TasksRunning({A: A2, B: B2}))
    commands = story.tell(e.MetadataWritten(1))
    assert [type(command) for command in commands] == [e.Complete]  # no task is there to be notified
    assert may_restore(story.state)


def test_attempts_restored_from_a_checkpoint_have_published_it() -> None:
    """A restored attempt publishes what is owed before it runs, so it is not asked again (C22, J12)."""
    story = Story(store=(completed(3), completed(4)))
    assert sorted(story.state.unconfirmed) == [3, 4]
    assert story.tell(e.RestorePointTaken(4), e.TasksRunning({A: A2, B: B2})) == [e.DiscardMetadata(3)]
    assert story.state.unconfirmed == {}


def test_a_task_that_the_version_does_not_have_is_not_waited_for() -> None:
    """What it owed is gone with its vertices.

    If it counted, no later checkpoint would ever be published (C4, C22, H3).
    """
    story = Story(store=(completed(3), completed(4)))
    assert story.tell(e.RestorePointTaken(4), e.TasksRunning({A: A2})) == [e.DiscardMetadata(3)]
    assert story.state.unconfirmed == {}


def test_attempts_that_were_not_restored_are_told_what_is_owed() -> None:
    """A notification is repeated until it is confirmed (C22)."""
    story = Story(store=(completed(4),))
    assert story.tell(e.TasksRunning(TASKS)) == [e.NotifyComplete(A1, 4), e.NotifyComplete(B1, 4)]


def test_an_older_checkpoint_ends_when_a_later_one_is_complete() -> None:
    """An older checkpoint could never become the latest (C22)."""
    story = Story(max_concurrent=2).running().pending(1).pending(2)
    for task, attempt in TASKS.items():
        story.tell(e.Acknowledged(snapshot(2, task, attempt)))
    assert e.Fail(1, 1, FailureCause.SUBSUMED, None) in story.tell(e.MetadataWritten(2))
    assert story.state.failures == 0


def test_a_final_checkpoint_waits_for_the_one_in_flight_and_the_job_for_its_publication() -> None:
    """A job is FINISHED only when a final checkpoint is complete and its sinks have committed (C4)."""
    story = Story(interval=10.0).running().pending(1)
    assert story.tell(e.FinalRequested()) == []
    for task, attempt in TASKS.items():
        story.tell(e.Acknowledged(snapshot(1, task, attempt)))
    commands = story.tell(e.MetadataWritten(1))
    assert commands[-1] == e.SetUp(-1)
    story.tell(e.SetUpDone(-1, 2, NOON))
    for task, attempt in TASKS.items():
        story.tell(e.Acknowledged(snapshot(2, task, attempt)))
    story.tell(e.MetadataWritten(2), e.TaskNotified(1, A1), e.TaskNotified(1, B1), e.TaskNotified(2, A1))
    assert not all_published(story.state)
    story.tell(e.TaskNotified(2, B1))
    assert all_published(story.state)
    assert story.at(100.0) == []  # and no periodic one follows it


def test_a_final_checkpoint_that_failed_is_tried_again() -> None:
    """A failed final checkpoint is repeated until it succeeds, or until too many failures fail the job (C4)."""
    story = Story(tolerable_failed=1).running()
    assert story.tell(e.FinalRequested()) == [e.SetUp(-1)]
    story.tell(e.SetUpDone(-1, 1, NOON), e.Declined(1, A1, ERROR))
    assert next_wakeup(story.state, 0.0) == 1.0
    assert story.at(1.0) == [e.SetUp(-2)]


def test_a_file_that_a_younger_checkpoint_has_taken_up_again_stays() -> None:
    """The file had lost its last reference, and was kept only for a checkpoint in flight (F5)."""
    story = Story(max_concurrent=3, tolerable_failed=5).running().completed(1).pending(2).pending(3)
    for task, attempt in TASKS.items():
        story.tell(e.Acknowledged(snapshot(2, task, attempt)))
    story.tell(e.MetadataWritten(2), *told(2), e.MetadataDiscarded(1))
    story.pending(4).tell(e.Acknowledged(snapshot(4, A, A1, reuses=(name(1, A1),))))
    assert e.DeleteFiles(frozenset({name(1, B1)})) in story.tell(e.Declined(3, A1, ERROR))
    shared = story.state
    assert e.DeleteFiles(frozenset({name(1, A1), name(4, A1)})) in story.tell(e.Declined(4, B1, ERROR))
    story.state = shared
    [write] = story.tell(e.Acknowledged(snapshot(4, B, B1, reuses=(name(1, A1),))))
    assert isinstance(write, e.WriteMetadata), "the other task may take it up, too"


def test_a_file_of_a_late_acknowledgement_is_nothing_to_refer_to() -> None:
    """The task that wrote it is told to delete it (C21, F4)."""
    story = Story().running().pending(1)
    story.tell(e.Acknowledged(snapshot(1, A, A1)))
    late = name(1, A1, 9)
    story.tell(e.Acknowledged(snapshot(1, A, A1, writes=(late,))))
    [failed] = [c for c in story.tell(e.Acknowledged(snapshot(1, B, B1, reuses=(late,)))) if isinstance(c, e.Fail)]
    assert failed.error is not None
    assert failed.error.code == "checkpoint-file-not-retained"


def test_a_file_of_two_checkpoints_goes_with_the_metadata_of_the_second() -> None:
    """Every file that a metadata file names exists as long as that metadata file (F5)."""
    story = Story().running().completed(1).pending(2)
    story.tell(e.Acknowledged(snapshot(2, A, A1, reuses=(name(1, A1),))), e.Acknowledged(snapshot(2, B, B1)))
    story.tell(e.MetadataWritten(2), e.TaskNotified(2, A1), e.TaskNotified(2, B1))
    story.completed(3)
    assert sorted(story.state.discarding) == [1, 2]
    assert story.tell(e.MetadataDiscarded(1)) == [e.DeleteFiles(frozenset({name(1, B1)}))]
    assert story.tell(e.MetadataDiscarded(2)) == [e.DeleteFiles(frozenset({name(1, A1), name(2, A1), name(2, B1)}))]


def with_an_unpublished_checkpoint() -> Story:
    story = Story().running().pending(1)
    for task, attempt in TASKS.items():
        story.tell(e.Acknowledged(snapshot(1, task, attempt)))
    story.tell(e.MetadataWritten(1))
    return story


def test_a_survivor_of_a_failover_is_told_of_what_was_aborted_and_still_publishes_itself() -> None:
    """B was restored, so 1 was published for it before it ran. A runs on and still owes 1 (R16, C13, C22)."""
    story = with_an_unpublished_checkpoint().pending(2)
    commands = story.tell(e.TasksStopped(frozenset({A1})))
    assert [c for c in commands if isinstance(c, e.NotifyAborted)] == [e.NotifyAborted(A1, 2)]
    assert owed_to(story.state, A1) is None  # until all tasks run again
    assert story.tell(e.RestorePointTaken(1), e.TasksRunning({A: A1, B: B2})) == [e.NotifyComplete(A1, 1)]
    assert owed_to(story.state, B2) is None
    story.tell(e.TaskNotified(1, A1))
    assert story.state.unconfirmed == {}


def test_a_survivor_that_fails_before_all_tasks_run_is_none() -> None:
    """A task that came up meanwhile is no survivor either, because it was restored itself (R16)."""
    story = with_an_unpublished_checkpoint()
    story.tell(e.TasksStopped(frozenset({A1})), e.RestorePointTaken(1))
    story.tell(e.TasksStopped(frozenset({B2})), e.RestorePointTaken(1))
    assert story.tell(e.TasksRunning({A: A2, B: B2})) == []
    assert story.state.unconfirmed == {}
