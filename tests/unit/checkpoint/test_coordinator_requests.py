"""When a checkpoint begins: requests, pauses, the queue and its limits."""

from __future__ import annotations

import pytest

from minflinkd.checkpoint.causes import CheckpointKind, FailureCause, Refusal
from minflinkd.checkpoint.machine import events as e
from minflinkd.checkpoint.machine.state import MAX_CLEANING, next_wakeup
from tests.unit.checkpoint.builders import A1, A2, B1, ERROR, NOON, TASKS, Story


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
    commands = story.tell(e.TriggerFailed(1, A1, ERROR))
    assert e.NotifyAborted(B1, 1) in commands
    assert e.Fail(2, 1, FailureCause.TRIGGER_FAILURE, ERROR) in commands
    assert (story.state.trigger_failures, story.state.failures) == (2, 0)
    story.pending(2, request=3).tell(e.TriggerTaken(2, A1))
    assert story.state.trigger_failures == 2
    story.tell(e.TriggerTaken(2, B1))
    assert story.state.trigger_failures == 0


def test_only_attempts_that_take_part_count_as_triggered() -> None:
    """A message about another attempt or another checkpoint says nothing (C23)."""
    story = Story().running()
    story.tell(e.TriggerRequested(1), e.SetUpFailed(1, ERROR))
    story.pending(1, request=2).tell(e.TriggerTaken(9, A1), e.TriggerTaken(1, A1), e.TriggerTaken(1, A2))
    assert story.state.trigger_failures == 1
    story.tell(e.TriggerTaken(1, B1))
    assert story.state.trigger_failures == 0


def test_a_request_begins_before_the_periodic_checkpoint_that_is_due_with_it() -> None:
    """That one waits for its turn (C20)."""
    story = Story(interval=10.0).running()
    assert story.at(10.0, e.TriggerRequested(1)) == [e.SetUp(1)]
    assert [request.kind for request in story.state.queued] == [CheckpointKind.PERIODIC]


def test_a_set_up_without_an_end_expires() -> None:
    """The wait for an id has a timeout (A5)."""
    story = Story(timeout=60.0).running()
    story.tell(e.TriggerRequested(1))
    assert next_wakeup(story.state, 0.0) == 60.0
    [failed] = story.at(60.0)
    assert isinstance(failed, e.Fail)
    assert (failed.request, failed.checkpoint_id, failed.cause) == (1, None, FailureCause.TRIGGER_FAILURE)
    assert "no checkpoint id could be reserved within 60 s" in str(failed.error)


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
