"""What the coordinator reports of each checkpoint, and what can be asked of it at any time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec.structs import replace as copy

from minflinkd.checkpoint.causes import CheckpointKind, FailureCause
from minflinkd.checkpoint.machine import events as e
from minflinkd.checkpoint.machine import transitions as coordinator
from minflinkd.checkpoint.machine.state import (
    MAX_CLEANING,
    Doomed,
    all_published,
    available_files,
    file_figures,
    has_confirmed,
    holds,
    may_restore,
    next_wakeup,
    orphans,
    owed_to,
    protected_files,
    retained,
)
from minflinkd.checkpoint.options import CheckpointOptions
from minflinkd.checkpoint.statistics import CheckpointRecord, CheckpointStatus, FileFigures, TaskRecord
from minflinkd.runtime.errors import Consequence, ErrorInfo
from minflinkd.runtime.ids import AttemptId, TaskId
from tests.unit.checkpoint.builders import (
    A1,
    A2,
    B1,
    B2,
    ERROR,
    JOB,
    NOON,
    REPORTS,
    TASKS,
    A,
    B,
    Story,
    completed,
    name,
    snapshot,
)


class Reported(Story):
    """Keeps what is reported for the statistics, and nothing else."""

    def tell(self, *events: e.Event) -> list[e.Command]:
        found: list[e.Command] = []
        for event in events:
            self.state, commands = coordinator.step(self.state, event, self.now)
            found += [command for command in commands if isinstance(command, REPORTS)]
        return found


def reported(**options: object) -> Reported:
    story = Reported(**options)
    story.tell(e.TasksRunning(TASKS))
    return story


def test_every_stage_of_a_checkpoint_is_reported_as_it_stands() -> None:
    """Its times are times of day, measured from its trigger (C30)."""
    story = reported()
    story.now = 100.0
    story.tell(e.TriggerRequested(1, CheckpointKind.SAVEPOINT))
    begun = CheckpointRecord(
        checkpoint_id=7,
        kind=CheckpointKind.SAVEPOINT,
        status=CheckpointStatus.IN_PROGRESS,
        triggered_ms=NOON,
        num_tasks=2,
        missing=(A, B),
    )
    assert story.tell(e.SetUpDone(1, 7, NOON)) == [e.Report(begun)]
    first, second = snapshot(7, A, A1), snapshot(7, B, B1)
    story.now = 100.2
    one = copy(begun, tasks=(TaskRecord.of(first, NOON + 200),), missing=(), files_created=1)
    assert story.tell(e.Acknowledged(first)) == [e.Report(copy(one, missing=(B,)))]
    story.now = 100.3
    both = copy(one, tasks=(*one.tasks, TaskRecord.of(second, NOON + 300)), files_created=2)
    assert story.tell(e.Acknowledged(second)) == [e.Report(both)]
    story.now = 100.8
    done = copy(both, status=CheckpointStatus.COMPLETED, metadata_ms=500.0)
    [report] = story.tell(e.MetadataWritten(7))
    assert isinstance(report, e.Report)
    assert copy(report.record, metadata_ms=round(report.record.metadata_ms, 6)) == done
    assert story.tell(e.TaskNotified(7, A1)) == []
    assert story.tell(e.TaskNotified(7, B1)) == [e.ReportPublished(7)]


def test_a_failed_checkpoint_is_reported_with_its_cause_its_error_and_the_task_that_ended_it() -> None:
    """The user sees who it was, and when (C23, C30)."""
    story = reported(tolerable_failed=9)
    story.pending(1)
    story.now = 2.5
    story.tell(e.Acknowledged(snapshot(1, A, A1)))
    [failed] = story.tell(e.Declined(1, B1, ERROR))
    assert failed == e.Report(
        CheckpointRecord(
            checkpoint_id=1,
            kind=CheckpointKind.MANUAL,
            status=CheckpointStatus.FAILED,
            triggered_ms=NOON,
            num_tasks=2,
            tasks=(TaskRecord.of(snapshot(1, A, A1), NOON + 2500),),
            missing=(B,),
            failed_ms=NOON + 2500,
            cause=FailureCause.DECLINED,
            error=ERROR,
            failed_task=B,
            files_created=1,
        )
    )


def test_a_set_up_that_fails_is_reported_without_an_id() -> None:
    """One that the tasks overtook is not: no checkpoint was tried (C23, C30)."""
    story = reported()
    story.tell(e.TriggerRequested(1))
    assert story.tell(e.SetUpFailed(1, ERROR)) == [e.ReportSetUpFailure(FailureCause.TRIGGER_FAILURE)]
    story.tell(e.TriggerRequested(2))
    assert story.tell(e.SetUpFailed(1, ERROR)) == [], "that was the one before"
    assert story.tell(e.TasksStopped()) == []


def test_what_is_published_by_a_restore_is_reported_too() -> None:
    """All tasks were restored from a checkpoint that includes it (C22, C30)."""
    story = Reported(store=(completed(3), completed(4)))
    story.tell(e.RestorePointTaken(3))
    assert story.tell(e.TasksRunning({A: A2, B: B2})) == [e.ReportPublished(3)]
    assert sorted(story.state.unconfirmed) == [4]


# --- errors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("silent", "who"),
    [
        ("a", "task a has"),
        ("ab", "tasks a, b have"),
        ("abc", "tasks a, b, c have"),
        ("abcd", "tasks a, b, c and 1 more have"),
        ("abcde", "tasks a, b, c and 2 more have"),
    ],
)
def test_a_checkpoint_that_expires_names_the_tasks_that_did_not_answer(silent: str, who: str) -> None:
    """Three of them are enough to begin with (C21)."""
    attempts = {TaskId(task): AttemptId(task * 32) for task in "abcdef"}
    story = Story(timeout=1.5, tolerable_failed=1)
    story.tell(e.TasksRunning(attempts))
    story.pending(1)
    story.tell(*(e.Acknowledged(snapshot(1, t, a)) for t, a in attempts.items() if t not in silent))
    assert story.at(1.4) == []
    [answer] = [command for command in story.at(1.5) if isinstance(command, e.Fail)]
    assert answer.error == ErrorInfo(
        code="checkpoint-expired",
        message=f"{who} not acknowledged within 1.5 s",
        consequence=Consequence.RETRYABLE,
        hint="a micro-batch that takes long, or an upload: see the task's wait, sync and async times",
    )


def test_the_hooks_that_did_not_answer_are_named_without_a_hint_about_tasks() -> None:
    """No task has heard of the checkpoint (C27)."""
    story = Story(hooks=("one", "two"), timeout=60.0).running().pending(1)
    [answer] = [command for command in story.at(60.0) if isinstance(command, e.Fail)]
    assert answer.error == ErrorInfo(
        code="checkpoint-expired",
        message="master hook one, two has not answered within 60 s",
        consequence=Consequence.RETRYABLE,
    )


def test_an_id_that_could_not_be_reserved_in_time_points_at_the_storage() -> None:
    """Ids are reserved there (A5)."""
    story = Story(timeout=60.0).running()
    story.tell(e.TriggerRequested(1))
    assert story.at(59.9) == []
    assert story.at(60.0) == [
        e.Fail(
            1,
            None,
            FailureCause.TRIGGER_FAILURE,
            ErrorInfo(
                code="checkpoint-expired",
                message="no checkpoint id could be reserved within 60 s",
                consequence=Consequence.RETRYABLE,
                hint="check that the storage of the checkpoints answers",
            ),
        )
    ]


def test_files_that_nobody_retains_are_named_with_the_task_that_refers_to_them() -> None:
    """Three of them are enough to begin with (F4)."""
    story = Story(tolerable_failed=1).running().completed(1).pending(2)
    lost = tuple(name(9, A2, number) for number in (3, 1, 2, 0))
    commands = story.tell(e.Acknowledged(snapshot(2, B, B1, reuses=(name(1, A1), *lost))))
    [answer] = [command for command in commands if isinstance(command, e.Fail)]
    assert answer.error == ErrorInfo(
        code="checkpoint-file-not-retained",
        message=f"task b refers to {', '.join(sorted(lost)[:3])}, which no retained checkpoint has",
        hint="the task must upload again what it cannot find in a checkpoint that was confirmed to it",
    )


def test_the_task_that_refers_to_lost_files_is_the_one_that_failed() -> None:
    """The user sees whose state it was (C30, F4)."""
    story = reported(tolerable_failed=1)
    story.pending(1)
    [report] = story.tell(e.Acknowledged(snapshot(1, B, B1, reuses=(name(9, A2),))))
    assert isinstance(report, e.Report)
    assert report.record.failed_task == B


def test_all_checkpoints_that_are_overdue_expire_at_once() -> None:
    """Each has its own answer, and its tasks are told of each (C21)."""
    story = Story(max_concurrent=2, timeout=60.0, tolerable_failed=9).running().pending(1).pending(2)
    commands = story.at(60.0)
    told = [command for command in commands if isinstance(command, e.NotifyAborted)]
    assert told == [e.NotifyAborted(attempt, number) for number in (1, 2) for attempt in (A1, B1)]
    assert [command.request for command in commands if isinstance(command, e.Fail)] == [1, 2]


def test_a_job_fails_with_the_checkpoint_and_the_error_that_were_too_much() -> None:
    """No failure is tolerated by default (C23)."""
    story = Story().running().pending(1)
    commands = story.tell(e.Declined(1, A1, ERROR))
    assert e.FailJob(1, FailureCause.DECLINED, ERROR) in commands
    assert e.Fail(1, 1, FailureCause.DECLINED, ERROR) in commands


# --- questions ---------------------------------------------------------------------------------------------------


def test_a_coordinator_begins_with_what_the_store_holds() -> None:
    """Every task owes everything again, and no id is given twice (C22, C25)."""
    store, other = (completed(3), completed(4)), name(9, A1)
    state = coordinator.initial(JOB, CheckpointOptions(), store, last_id=2, sizes={name(4, A1): 50, other: 7})
    assert (state.last_id, state.job_id) == (4, JOB)
    assert state.unconfirmed == {3: {A, B}, 4: {A, B}}
    assert state.sizes == {name(4, A1): 50}, "of files that a checkpoint refers to"
    assert coordinator.initial(JOB, CheckpointOptions(), store, last_id=9).last_id == 9
    assert coordinator.initial(JOB, CheckpointOptions()).last_id == 0
    of_no_task = replace(Story().state, completed=()).unconfirmed
    assert of_no_task == {}
    empty = copy(completed(5), tasks=())
    assert coordinator.initial(JOB, CheckpointOptions(), (empty,)).unconfirmed == {}


def test_the_checkpoints_that_stay_are_the_last_that_are_retained() -> None:
    """What the end of a job leaves is shown to its user (C24)."""
    store = tuple(completed(number) for number in (1, 2, 3))
    for number, kept in ((1, (3,)), (2, (2, 3)), (9, (1, 2, 3))):
        assert retained(Story(store, num_retained=number).state) == kept


def test_the_files_of_retained_checkpoints_are_counted_with_their_bytes() -> None:
    """Bytes of a file that is not known to be larger are those of its segments (F6, F10)."""
    sizes = {name(1, A1): 50}
    state = coordinator.initial(JOB, CheckpointOptions(), (completed(1),), sizes=sizes)
    assert file_figures(state) == FileFigures(physical=2, logical=2, bytes_stored=51, bytes_referenced=2, deleting=0)
    deleting = (frozenset({"x", "y"}), frozenset({"z"}))
    assert file_figures(replace(state, deleting=deleting)).deleting == 3


def story_of_files() -> Story:
    """Return a story in which 1 is complete, 2 is pending with one part, and the metadata of 4 is being deleted."""
    story = Story().running().completed(1).pending(2)
    story.tell(e.Acknowledged(snapshot(2, A, A1, reuses=(name(1, A1),))))
    doomed = (Doomed(frozenset({"was referred to"}), 2, True), Doomed(frozenset({"was never"}), 2, False))
    story.state = replace(story.state, discarding={4: frozenset({"going"})}, doomed=doomed, last_id=4)
    return story


def test_files_are_protected_while_a_checkpoint_or_its_metadata_names_them() -> None:
    """An acknowledgement may also refer to what is doomed, if it is not deleted yet (F4, F5)."""
    state = story_of_files().state
    of_1 = {name(1, A1), name(1, B1)}
    assert protected_files(state) == of_1 | {name(2, A1), "going"}
    assert available_files(state) == of_1 | {"going", "was referred to"}


def test_an_orphan_is_a_file_of_an_ended_checkpoint_that_nothing_refers_to() -> None:
    """A later leader's file is not, nor one of a checkpoint that is under way or to come (F7)."""
    state = story_of_files().state
    epoch = state.options.epoch
    found = {
        "old": (epoch, 3),
        "of an earlier leader": (epoch - 1, 4),
        "of a later leader": (epoch + 1, 3),
        "under way": (epoch, 2),
        "to come": (epoch, 5),
        "going": (epoch, 4),
        "was referred to": (epoch, 1),
        name(1, A1): (epoch, 1),
    }
    assert orphans(state, found) == {"old", "of an earlier leader"}


def test_a_task_is_told_that_its_files_are_taken_as_often_as_it_asks() -> None:
    """The answer to its acknowledgement may be lost. Files that are not taken are its own to delete (F4)."""
    state = story_of_files().state
    assert holds(state, snapshot(2, A, A1))
    assert not holds(state, snapshot(2, A, A2))
    assert not holds(state, snapshot(2, B, B1)), "not acknowledged yet"
    without_files = snapshot(2, B, B1, writes=())
    assert not holds(state, without_files)
    stateless = Story().running().pending(2)
    stateless.tell(e.Acknowledged(without_files))
    assert holds(stateless.state, without_files)
    assert holds(state, snapshot(1, A, A2, writes=())), "the checkpoint is complete"
    assert not holds(state, snapshot(3, A, A1))
    assert holds(state, snapshot(3, A, A1, writes=("other", name(1, B1)))), "a checkpoint refers to one of them"


def test_a_job_is_restored_once_the_latest_checkpoint_is_settled() -> None:
    """Its metadata may exist even if its write failed (C22)."""
    state = Story().running().completed(1).state
    assert may_restore(state)
    assert may_restore(replace(state, discarding={0: frozenset()})), "an older one"
    assert not may_restore(replace(state, discarding={2: frozenset()}))
    assert not may_restore(replace(state, completed=(), discarding={1: frozenset()}))
    assert may_restore(Story().state)
    finalizing = Story().running().pending(1)
    assert may_restore(finalizing.state)
    finalizing.acknowledged(1)
    assert not may_restore(finalizing.state)


def test_a_checkpoint_has_been_confirmed_once_nothing_of_it_is_owed() -> None:
    """One of several is enough to start from (C22)."""
    story = Story((completed(1), completed(2)), num_retained=2)
    assert not has_confirmed(story.state)
    assert not has_confirmed(Story().state)
    story.tell(e.TasksRunning(TASKS), e.TaskNotified(1, A1))
    assert not has_confirmed(story.state)
    story.tell(e.TaskNotified(1, B1))
    assert has_confirmed(story.state)
    assert (owed_to(story.state, A1), owed_to(story.state, A2)) == (2, None)
    assert not all_published(story.state), "nobody has asked for a final checkpoint"


def test_the_next_wake_up_is_the_first_time_at_which_something_is_due() -> None:
    """What is overdue after a step waits for an event, not for the clock (C20)."""
    story = Story(interval=10.0, timeout=4.0, min_pause=3.0).running()
    assert next_wakeup(story.state, 0.0) == 10.0
    story.tell(e.TriggerRequested(1))
    assert next_wakeup(story.state, 0.0) == 4.0, "the set-up"
    story.at(1.0, e.SetUpDone(1, 1, NOON))
    assert next_wakeup(story.state, 1.0) == 5.0, "the checkpoint"
    story.acknowledged(1)
    assert next_wakeup(story.state, 1.0) == 10.0, "a write of metadata has no time limit here"
    story.at(2.0, e.MetadataWritten(1), e.TriggerRequested(2))
    assert next_wakeup(story.state, 2.0) == 5.0, "the pause"
    assert next_wakeup(story.state, 5.0) == 10.0
    story.at(5.0)
    story.at(6.0, e.SetUpFailed(2, ERROR), e.FinalRequested())
    assert story.state.final is not None
    assert next_wakeup(story.state, 6.0) == 10.0


def test_nobody_is_woken_at_the_end_of_a_pause_for_which_nobody_waits() -> None:
    """The next request looks at the time itself (C20)."""
    story = Story(min_pause=3.0).running().completed(1)
    assert next_wakeup(story.state, 0.0) is None
    story.tell(e.TriggerRequested(2))
    assert next_wakeup(story.state, 0.0) == 3.0


def test_too_many_to_clean_are_counted_by_what_is_left_of_them() -> None:
    """Checkpoints beyond the retained ones, metadata and files that are being deleted (C20)."""
    story = Story(num_retained=2).running()
    room = replace(
        story.state,
        completed=tuple(completed(number) for number in range(1, 6)),
        discarding={number: frozenset() for number in range(6, 9)},
        deleting=tuple(frozenset({str(number)}) for number in range(MAX_CLEANING - 7)),
        last_id=9,
    )
    story.state = room
    assert e.SetUp(1) in story.tell(e.TriggerRequested(1))
    story.state = replace(room, deleting=(*room.deleting, frozenset({"one more"})))
    assert not any(isinstance(command, e.SetUp) for command in story.tell(e.TriggerRequested(2)))
