"""The coordinator's decisions about savepoints, and about jobs that end with one."""

from __future__ import annotations

from minflinkd.checkpoint.causes import CheckpointKind, FailureCause, Refusal
from minflinkd.checkpoint.machine import events as e
from minflinkd.runtime.errors import ErrorInfo
from tests.unit.checkpoint.builders import A1, B1, ERROR, NOON, TASKS, Story, snapshot

SAVEPOINT = CheckpointKind.SAVEPOINT


def complete(story: Story, request: int, checkpoint_id: int) -> list[e.Command]:
    commands: list[e.Command] = []
    for task, attempt in TASKS.items():
        commands += story.tell(e.Acknowledged(snapshot(checkpoint_id, task, attempt)))
    commands += story.tell(e.MetadataWritten(checkpoint_id))
    return commands


def confirm(story: Story, checkpoint_id: int) -> list[e.Command]:
    return story.tell(*(e.TaskNotified(checkpoint_id, attempt) for attempt in TASKS.values()))


def test_a_savepoints_checkpoint_stays_while_it_is_copied() -> None:
    """Later checkpoints subsume it only when it is unpinned (C24)."""
    story = Story().running()
    story.tell(e.TriggerRequested(1, SAVEPOINT, forced=True), e.SetUpDone(1, 1, NOON))
    complete(story, 1, 1)
    confirm(story, 1)
    story.pending(2)
    complete(story, 2, 2)
    assert confirm(story, 2) == []
    assert story.tell(e.Unpinned(1)) == [e.DiscardMetadata(1)]


def test_a_checkpoint_stays_while_its_state_is_read() -> None:
    """It is subsumed when the last of several readers has ended, whatever savepoints are made of it (E19c)."""
    story = Story().running()
    story.tell(e.TriggerRequested(1, SAVEPOINT, forced=True), e.SetUpDone(1, 1, NOON))
    complete(story, 1, 1)
    confirm(story, 1)
    story.tell(e.ReadBegun(1), e.ReadBegun(1), e.Unpinned(1))
    story.pending(2)
    complete(story, 2, 2)
    assert confirm(story, 2) == []
    assert story.tell(e.ReadEnded(1)) == []
    assert story.tell(e.ReadEnded(1)) == [e.DiscardMetadata(1)]
    assert story.tell(e.ReadBegun(1), e.ReadEnded(1), e.ReadEnded(2)) == [], "what is gone is not kept"
    assert story.state.read == {}


def test_a_savepoint_waits_for_no_other_checkpoint() -> None:
    """A savepoint is forced, so another checkpoint in flight does not delay it (C20, C24)."""
    story = Story().running().pending(1)
    assert story.tell(e.TriggerRequested(2, SAVEPOINT, forced=True)) == [e.SetUp(2)]


def test_a_failed_savepoint_does_not_count() -> None:
    """A failed savepoint does not count towards the tolerated failures (C23)."""
    story = Story(tolerable_failed=0).running()
    story.tell(e.TriggerRequested(1, SAVEPOINT, forced=True), e.SetUpDone(1, 1, NOON))
    commands = story.tell(e.Declined(1, A1, ERROR))
    assert e.Fail(1, 1, FailureCause.DECLINED, ERROR) in commands
    assert not [command for command in commands if isinstance(command, e.FailJob)]
    assert story.state.failures == 0


def test_tasks_that_are_to_stop_are_told_with_the_trigger_and_nothing_is_triggered_behind_it() -> None:
    """In a stop with savepoint, the trigger tells the tasks to stop, and no other checkpoint follows (C24)."""
    story = Story(interval=10.0).running()
    story.tell(e.TriggerRequested(1, SAVEPOINT, forced=True, stop=True))
    assert story.tell(e.SetUpDone(1, 1, NOON)) == [e.SendTrigger(A1, 1, stop=True), e.SendTrigger(B1, 1, stop=True)]
    assert story.tell(e.TriggerRequested(2)) == [e.Refuse(2, Refusal.JOB_STOPS)]
    complete(story, 1, 1)
    assert [c for c in story.at(10.0) if isinstance(c, e.SetUp)] == []


def test_a_full_checkpoint_is_told_to_each_task() -> None:
    """The next one is incremental again (C12)."""
    story = Story().running()
    story.tell(e.TriggerRequested(1, full=True))
    assert story.tell(e.SetUpDone(1, 1, NOON)) == [e.SendTrigger(A1, 1, full=True), e.SendTrigger(B1, 1, full=True)]
    complete(story, 1, 1)
    story.tell(e.TriggerRequested(2))
    assert story.tell(e.SetUpDone(2, 2, NOON)) == [e.SendTrigger(A1, 2), e.SendTrigger(B1, 2)]


def test_a_stop_that_fails_lets_the_job_be_checkpointed_again() -> None:
    """The tasks are told of the abort, and the next periodic checkpoint is taken (C24)."""
    story = Story(interval=10.0).running()
    story.tell(e.TriggerRequested(1, SAVEPOINT, forced=True, stop=True), e.SetUpDone(1, 1, NOON))
    aborted = story.tell(e.Declined(1, A1, ERROR))
    assert {e.NotifyAborted(A1, 1), e.NotifyAborted(B1, 1)} <= set(aborted)
    assert [type(c) for c in story.at(10.0)] == [e.SetUp]


def test_a_stop_that_is_not_set_up_lets_the_job_be_checkpointed_again() -> None:
    """A stop that was not set up has told no task anything, so checkpoints go on (C24)."""
    story = Story().running()
    story.tell(e.TriggerRequested(1, SAVEPOINT, forced=True, stop=True))
    story.tell(e.SetUpFailed(1, ErrorInfo(code="storage", message="away")))
    assert story.tell(e.TriggerRequested(2)) == [e.SetUp(2)]


def test_a_draining_job_takes_the_final_checkpoint_and_no_other() -> None:
    """A cut that contains the end of time must be the last one (C24)."""
    story = Story(interval=10.0).running().pending(1)
    commands = story.tell(e.DrainBegun())
    assert {e.NotifyAborted(A1, 1), e.NotifyAborted(B1, 1)} <= set(commands)
    assert e.Fail(1, 1, FailureCause.JOB_STOPS, None) in commands
    assert story.tell(e.TriggerRequested(2)) == [e.Refuse(2, Refusal.JOB_STOPS)]
    assert [c for c in story.at(20.0) if isinstance(c, e.SetUp)] == []
    assert [type(c) for c in story.tell(e.FinalRequested())] == [e.SetUp]


def test_a_drain_ends_with_the_tasks() -> None:
    """A job that failed meanwhile goes on as if the drain had not been requested (C24)."""
    story = Story().running()
    story.tell(e.DrainBegun(), e.TasksStopped(), e.TasksRunning(TASKS))
    assert story.tell(e.TriggerRequested(2)) == [e.SetUp(2)]
