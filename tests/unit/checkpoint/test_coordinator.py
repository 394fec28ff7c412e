"""The coordinator's decisions, tested with lists of events and the exact commands that follow."""

from __future__ import annotations

import pytest

from minflinkd.checkpoint.causes import CheckpointKind, FailureCause, Refusal
from minflinkd.checkpoint.machine import events as e
from minflinkd.checkpoint.machine.state import MAX_CLEANING, all_published, may_restore, next_wakeup, owed_to
from minflinkd.runtime.ids import AttemptId
from minflinkd.runtime.machine import InvariantViolated
from minflinkd.storage.interface import StorageFull
from minflinkd.taskmanager.child.protocol import SessionLost
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


def test_periodic_checkpoints_begin_with_no_tasks_and_without_an_interval_never() -> None:
    """Periodic checkpoints need running tasks and an interval (C20)."""
    story = Story(interval=10.0)
    story.tell(e.PeriodicBegins())
    assert story.state.next_trigger is None, "no task runs"
    story = Story(interval=0.0)
    story.tell(e.TasksRunning(TASKS, periodic=False), e.PeriodicBegins())
    assert story.state.next_trigger is None, "they are switched off"


def test_periodic_checkpoints_stop_with_the_tasks() -> None:
    """Nothing is triggered while the tasks are not running (C20)."""
    story = Story(interval=10.0).running()
    assert story.at(5.0, e.TasksStopped()) == []
    assert story.at(50.0) == []
    assert next_wakeup(story.state, 50.0) is None


@pytest.mark.parametrize(
    ("prepare", "kind", "reason"),
    [
        ((e.TasksRunning(TASKS), e.Stopped()), CheckpointKind.MANUAL, Refusal.SHUT_DOWN),
        ((e.TasksRunning(TASKS),), CheckpointKind.PERIODIC, Refusal.PERIODIC_OFF),
        ((), CheckpointKind.MANUAL, Refusal.NOT_ALL_TASKS_RUNNING),
        (
            (e.TasksRunning(TASKS), e.TriggerRequested(1), e.TriggerRequested(2)),
            CheckpointKind.MANUAL,
            Refusal.ALREADY_QUEUED,
        ),
    ],
)
def test_a_request_is_refused_for_a_named_reason(
    prepare: tuple[e.Event, ...], kind: CheckpointKind, reason: Refusal
) -> None:
    """A refusal has a name, and does not count as a failure (C20)."""
    story = Story()
    story.tell(*prepare)
    assert story.tell(e.TriggerRequested(9, kind)) == [e.Refuse(9, reason)]
    assert story.state.failures == story.state.trigger_failures == 0


def test_one_request_waits_in_the_queue_until_the_checkpoint_in_flight_ends() -> None:
    """The queue is checked whenever a pending checkpoint completes, expires or is aborted (C20)."""
    story = Story().running().pending(1)
    assert story.tell(e.TriggerRequested(2)) == []
    commands = story.tell(e.Declined(1, A1, ERROR))
    assert commands[-1] == e.SetUp(2)


def test_a_queued_periodic_request_gives_way_to_one_that_somebody_made() -> None:
    """The queue holds one request. The manual one also serves the period (C20)."""
    story = Story(interval=1.0).running()
    story.at(1.0)
    story.at(2.0)
    assert [request.kind for request in story.state.queued] == [CheckpointKind.PERIODIC]
    assert story.tell(e.TriggerRequested(5)) == [e.Refuse(-2, Refusal.ALREADY_QUEUED)]
    assert [request.number for request in story.state.queued] == [5]


def test_min_pause_counts_from_the_end_of_the_last_checkpoint() -> None:
    """The request comes too soon and waits. The wake-up is when the pause ends (C20)."""
    story = Story(min_pause=5.0).running()
    story.now = 3.0
    story.completed(1)
    assert story.at(4.0, e.TriggerRequested(2)) == []
    assert next_wakeup(story.state, 4.0) == 8.0
    assert story.at(7.9) == []
    assert story.at(8.0) == [e.SetUp(2)]


def test_a_forced_request_skips_three_checks_and_no_other() -> None:
    """A forced request skips the checks for a queued one, too many in flight and too soon, but no other (C20)."""
    story = Story(min_pause=100.0).running().pending(1)
    story.tell(e.TriggerRequested(2))
    assert story.tell(e.TriggerRequested(3, forced=True)) == [e.SetUp(3)]
    assert story.tell(e.SetUpDone(3, 2, NOON))[0] == e.SendTrigger(A1, 2)
    assert sorted(story.state.pending) == [1, 2]
    story.tell(e.TasksStopped())
    assert story.tell(e.TriggerRequested(4, forced=True)) == [e.Refuse(4, Refusal.NOT_ALL_TASKS_RUNNING)]


@pytest.mark.parametrize(
    ("meanwhile", "answer"),
    [
        (e.TasksStopped(), e.Fail(1, None, FailureCause.TASK_FAILURE, None)),
        (e.Stopped(), e.Fail(1, None, FailureCause.SHUT_DOWN, None)),
    ],
)
def test_a_set_up_that_the_world_overtook_leads_to_nothing(meanwhile: e.Event, answer: e.Command) -> None:
    """The id of such a set-up is spent, and no task hears of it (C20)."""
    story = Story().running()
    story.tell(e.TriggerRequested(1))
    assert story.tell(meanwhile) == [answer]
    assert story.tell(e.SetUpDone(1, 7, NOON)) == []
    assert story.state.pending == {}
    assert story.state.last_id == 7


def test_the_checks_are_made_again_after_the_set_up() -> None:
    """A final checkpoint was requested meanwhile, so the periodic one is dropped (C20)."""
    story = Story(interval=1.0).running()
    story.at(1.0)
    story.tell(e.FinalRequested())
    assert story.tell(e.SetUpDone(-1, 1, NOON)) == [e.Refuse(-1, Refusal.PERIODIC_OFF), e.SetUp(-2)]


def test_a_failed_set_up_counts_as_a_failed_trigger_until_one_succeeds() -> None:
    """Failed set-ups are counted separately and consecutively, and do not fail the job (C23)."""
    story = Story().running()
    story.tell(e.TriggerRequested(1))
    assert story.tell(e.SetUpFailed(1, ERROR)) == [e.Fail(1, None, FailureCause.TRIGGER_FAILURE, ERROR)]
    story.pending(1, request=2)
    assert e.NotifyAborted(B1, 1) in story.tell(e.TriggerFailed(1, A1, ERROR))
    assert (story.state.trigger_failures, story.state.failures) == (2, 0)
    story.pending(2, request=3).tell(e.TriggerTaken(2, A1))
    assert story.state.trigger_failures == 2
    story.tell(e.TriggerTaken(2, B1))
    assert story.state.trigger_failures == 0


def test_a_set_up_without_an_end_expires() -> None:
    """The wait for an id has a timeout (A5)."""
    story = Story(timeout=60.0).running()
    story.tell(e.TriggerRequested(1))
    assert next_wakeup(story.state, 0.0) == 60.0
    [failed] = story.at(60.0)
    assert isinstance(failed, e.Fail)
    assert (failed.request, failed.checkpoint_id, failed.cause) == (1, None, FailureCause.TRIGGER_FAILURE)
    assert "no checkpoint id could be reserved within 60 s" in str(failed.error)


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


def test_more_failures_in_a_row_than_tolerated_fail_the_job() -> None:
    """Each failed checkpoint counts once. A completed one resets the count (C23)."""
    story = Story(tolerable_failed=1).running()
    story.pending(1).tell(e.Declined(1, A1, ERROR), e.Declined(1, B1, ERROR))
    assert story.state.failures == 1
    story.completed(2)
    assert story.state.failures == 0
    story.pending(3).tell(e.Declined(3, A1, ERROR))
    full = StorageFull("no space").info()
    assert story.pending(4).tell(e.Declined(4, A1, full))[-1] == e.FailJob(4, FailureCause.STORAGE, full)


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
    assert e.DeleteFiles(frozenset({name(1, A1), name(4, A1)})) in story.tell(e.Declined(4, B1, ERROR))


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


def test_a_pause_that_began_during_the_set_up_refuses_the_request() -> None:
    """The check is repeated, because another checkpoint in flight has ended meanwhile. The id is spent (C20)."""
    story = Story(max_concurrent=2, min_pause=5.0, tolerable_failed=1).running().pending(1)
    story.tell(e.TriggerRequested(2), e.Declined(1, A1, ERROR))
    assert story.tell(e.SetUpDone(2, 2, NOON)) == [e.Refuse(2, Refusal.TOO_SOON)]
    assert (story.state.last_id, story.state.pending) == (2, {})


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        ((e.Stopped(),), Refusal.SHUT_DOWN),
        ((e.TasksStopped(),), Refusal.NOT_ALL_TASKS_RUNNING),
    ],
)
def test_a_request_that_waits_is_refused_where_waiting_helps_no_more(
    prepare: tuple[e.Event, ...], reason: Refusal
) -> None:
    """The queue is checked again and the request is answered, so nobody waits for ever (C20)."""
    story = Story().running().pending(1)
    story.tell(e.TriggerRequested(2))
    assert e.Refuse(2, reason) in story.tell(*prepare)
    assert story.state.queued == ()


@pytest.mark.parametrize("ending", ["completes", "expires", "is declined", "cannot be told", "cannot be written"])
def test_the_queue_is_looked_at_however_a_pending_checkpoint_ends(ending: str) -> None:
    """The checkpoint may complete, expire or be aborted (C20)."""
    story = Story(timeout=60.0, tolerable_failed=1).running().pending(1)
    story.tell(e.TriggerRequested(2))
    match ending:
        case "completes":
            story.acknowledged(1)
            commands = story.tell(e.MetadataWritten(1))
        case "expires":
            commands = story.at(60.0)
        case "is declined":
            commands = story.tell(e.Declined(1, B1, ERROR))
        case "cannot be told":
            commands = story.tell(e.TriggerFailed(1, B1, ERROR))
        case _:
            story.acknowledged(1)
            commands = story.tell(e.MetadataFailed(1, ERROR))
    assert commands[-1] == e.SetUp(2)


def test_as_many_checkpoints_as_allowed_are_in_flight_and_no_more() -> None:
    """`max-concurrent-checkpoints` is the limit (C20)."""
    story = Story(max_concurrent=2).running().pending(1).pending(2)
    assert story.tell(e.TriggerRequested(3)) == []
    assert story.tell(e.Declined(1, A1, ERROR))[-1] == e.SetUp(3)


def test_one_set_up_at_a_time() -> None:
    """Forced requests, which are first in the queue, wait for the set-up under way too (C20)."""
    story = Story(max_concurrent=9).running()
    story.tell(e.TriggerRequested(1), e.TriggerRequested(2), e.TriggerRequested(3, forced=True))
    assert story.tell(e.SetUpDone(1, 1, NOON))[-1] == e.SetUp(3)
    assert story.tell(e.SetUpDone(3, 2, NOON))[-1] == e.SetUp(2)


@pytest.mark.parametrize("forced", [False, True])
def test_what_no_waiting_cures_is_never_skipped(forced: bool) -> None:
    """A forced request skips a queued request, too many in flight and too soon (C20).

    It does not skip shut down, periodic off, not running and too many to clean.
    """
    story = Story(num_retained=1)
    assert story.tell(e.TriggerRequested(1, forced=forced)) == [e.Refuse(1, Refusal.NOT_ALL_TASKS_RUNNING)]
    story.running()
    periodic = e.TriggerRequested(2, CheckpointKind.PERIODIC, forced=forced)
    assert story.tell(periodic) == [e.Refuse(2, Refusal.PERIODIC_OFF)]
    for number in range(1, MAX_CLEANING + 2):
        story.completed(number)
    assert story.tell(e.TriggerRequested(3, forced=forced)) == [e.Refuse(3, Refusal.TOO_MANY_TO_CLEAN)]
    story.tell(e.Stopped())
    assert story.tell(e.TriggerRequested(4, forced=forced)) == [e.Refuse(4, Refusal.SHUT_DOWN)]


def test_a_checkpoint_is_counted_once_whatever_is_said_of_it() -> None:
    """If two tasks decline, the time runs out or the metadata fails, that is one failure each time (C23)."""
    story = Story(timeout=60.0, tolerable_failed=9).running().pending(1)
    story.tell(e.Declined(1, A1, ERROR), e.Declined(1, B1, ERROR), e.TriggerFailed(1, A1, ERROR))
    story.at(60.0)
    assert (story.state.failures, story.state.trigger_failures) == (1, 0)
    story.pending(2)
    story.acknowledged(2)
    story.tell(e.MetadataFailed(2, ERROR), e.Declined(2, A1, ERROR))
    story.at(999.0)
    assert (story.state.failures, story.state.trigger_failures) == (2, 0)


@pytest.mark.parametrize(
    ("event", "cause"),
    [
        (e.TasksStopped(), FailureCause.TASK_FAILURE),
        (e.Stopped(), FailureCause.SHUT_DOWN),
    ],
)
def test_what_says_nothing_of_checkpointing_is_no_counted_failure(event: e.Event, cause: FailureCause) -> None:
    """Failed tasks and a coordinator that shuts down do not count as failed checkpoints.

    Both are shown by name (C23).
    """
    story = Story().running().pending(1)
    assert e.Fail(1, 1, cause, None) in story.tell(event)
    assert (story.state.failures, story.state.trigger_failures) == (0, 0)


def test_a_refused_request_leaves_the_failed_triggers_as_they_are() -> None:
    """Failed triggers are counted consecutively. Refusals neither count nor reset them (C23)."""
    story = Story().running()
    story.tell(e.TriggerRequested(1), e.SetUpFailed(1, ERROR))
    story.tell(e.TriggerRequested(2, CheckpointKind.PERIODIC))
    assert story.state.trigger_failures == 1


def test_a_failure_of_an_older_checkpoint_counts_nothing_when_a_later_one_is_complete() -> None:
    """Failures count in a row, and the later checkpoint has shown that checkpoints work (C23)."""
    story = Story(max_concurrent=2).running().pending(1).pending(2)
    story.acknowledged(1)
    story.acknowledged(2)
    story.tell(e.MetadataWritten(2))
    assert not any(isinstance(c, e.FailJob) for c in story.tell(e.MetadataFailed(1, ERROR)))
    assert story.state.failures == 0


def test_a_restarted_job_is_given_as_many_failures_again() -> None:
    """More failures in a row than tolerated fail the job once, and the count begins anew (C23)."""
    story = Story(tolerable_failed=1).running()
    for number in range(1, 5):
        story.pending(number)
        failed = any(isinstance(c, e.FailJob) for c in story.tell(e.Declined(number, A1, ERROR)))
        assert failed is (number in (2, 4))


@pytest.mark.parametrize("attempt", [A1, A2])
def test_what_a_late_acknowledgement_wrote_is_deleted_only_where_nobody_refers_to_it(attempt: AttemptId) -> None:
    """The checkpoint was aborted. The attempt is the present or an older one. A retained file stays (C21, F5)."""
    story = Story(tolerable_failed=1).running().completed(1).pending(2)
    story.tell(e.Declined(2, B1, ERROR))
    late = snapshot(2, A, attempt, writes=(name(2, attempt), name(1, A1)))
    assert story.tell(e.Acknowledged(late)) == [e.DeleteFiles(frozenset({name(2, attempt)}))]
    assert story.tell(e.Acknowledged(late)) == [e.DeleteFiles(frozenset({name(2, attempt)}))]


def test_the_survivors_of_a_failover_are_told_of_the_abort_and_nobody_else() -> None:
    """Survivors are the tasks that run on and have heard of the checkpoint (C13)."""
    story = Story(tolerable_failed=1).running().pending(1)
    assert story.tell(e.TasksStopped(frozenset({B1})))[0] == e.NotifyAborted(B1, 1)


# --- master hooks (C27) -------------------------------------------------------------------------------------------


def test_hooks_are_called_before_the_tasks_and_their_states_are_stored() -> None:
    """No task hears of the checkpoint before all hooks have answered (C27)."""
    story = Story(hooks=("one", "two")).running()
    story.tell(e.TriggerRequested(1))
    assert story.tell(e.SetUpDone(1, 7, NOON)) == [e.CallHook("one", 7), e.CallHook("two", 7)]
    assert story.tell(e.HookAnswered(7, "two", b"2")) == []
    assert story.tell(e.HookAnswered(7, "two", b"again"), e.HookAnswered(6, "one", b"old")) == []
    story.tell(e.Acknowledged(snapshot(7, A, A1)))  # nobody asked for it yet
    assert story.tell(e.HookAnswered(7, "one", b"1")) == [e.SendTrigger(A1, 7), e.SendTrigger(B1, 7)]
    [write] = story.acknowledged(7)
    assert isinstance(write, e.WriteMetadata)
    assert [(hook.name, hook.state) for hook in write.checkpoint.hooks] == [("one", b"1"), ("two", b"2")]


def test_a_hook_that_fails_aborts_the_checkpoint_before_any_task_has_heard_of_it() -> None:
    """The cause has a name and counts with the failed triggers (C27, C23)."""
    story = Story(hooks=("one", "two")).running().pending(1)
    assert story.tell(e.HookFailed(1, ERROR)) == [e.CancelHooks(1), e.Fail(1, 1, FailureCause.MASTER_HOOK, ERROR)]
    assert (story.state.failures, story.state.trigger_failures) == (0, 1)
    assert story.tell(e.HookAnswered(1, "two", b""), e.HookFailed(1, ERROR)) == []


def test_a_hook_that_overruns_aborts_the_checkpoint_and_is_named() -> None:
    """One timeout covers hooks and tasks together (C27)."""
    story = Story(hooks=("one", "two"), timeout=60.0).running().pending(1)
    story.at(20.0, e.HookAnswered(1, "one", b""))
    cancel, failed = story.at(60.0)
    assert cancel == e.CancelHooks(1)
    assert isinstance(failed, e.Fail)
    assert failed.cause is FailureCause.MASTER_HOOK
    assert "master hook two has not answered within 60 s" in str(failed.error)
    story.pending(2)
    story.tell(e.HookAnswered(2, "one", b""))
    story.at(110.0, e.HookAnswered(2, "two", b""))
    failed = next(c for c in story.at(120.0) if isinstance(c, e.Fail))
    assert failed.cause is FailureCause.EXPIRED


def test_a_task_that_declines_since_its_session_is_gone_is_no_counted_failure() -> None:
    """The task's failure is reported soon. Until then every trigger would count (C23)."""
    story = Story(tolerable_failed=0).running().pending(1)
    lost = SessionLost("the session child ended").info()
    assert e.Fail(1, 1, FailureCause.TASK_FAILURE, lost) in story.tell(e.Declined(1, A1, lost))
    assert story.state.failures == 0
