"""Which failures of checkpoints count, and what is told to whom."""

from __future__ import annotations

import pytest

from minflinkd.checkpoint.causes import CheckpointKind, FailureCause
from minflinkd.checkpoint.machine import events as e
from minflinkd.runtime.ids import AttemptId
from minflinkd.storage.interface import StorageFull
from minflinkd.taskmanager.child.protocol import SessionLost
from tests.unit.checkpoint.builders import A1, A2, B1, ERROR, NOON, A, Story, name, snapshot


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
