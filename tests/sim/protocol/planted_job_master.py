"""The JobMaster, broken on purpose."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from minflinkd.jobmaster import core as job_master
from minflinkd.jobmaster.core import JobMasterCore
from minflinkd.jobmaster.errands import Errands
from minflinkd.jobmaster.scheduler import failover, reconciling, resizing, running, slot_pool
from minflinkd.jobmaster.scheduler.events import AttemptGone, SlotsGone
from minflinkd.jobmaster.scheduler.slot_pool import SlotPool
from minflinkd.jobmaster.scheduler.step import Step
from tests.sim.planting import Planted, patched


def _an_unanswered_deployment_has_failed() -> Any:
    return patched(failover, "deploy_unanswered", lambda _: failover.attempt_failed)


def _the_job_master_accepts_one_allocation_of_two_task_managers() -> Any:
    def made(_: Any) -> Any:
        return lambda pool, _, offers: tuple(o.allocation_id for o in offers if o.allocation_id in pool.held)

    return patched(SlotPool, "accepted", made)


def _slots_of_a_lost_task_manager_stay_in_the_pool() -> Any:
    return patched(failover, "task_manager_gone", lambda _: lambda *_: None)


def _an_allocation_that_was_given_up_is_taken_again() -> Any:
    def made(offered: Any) -> Any:
        def forgetful(pool: Any, *rest: Any, **named: Any) -> Any:
            return replace(offered(replace(pool, gone=()), *rest, **named), gone=pool.gone)

        return forgetful

    return patched(slot_pool, "offered", made)


def _strays_are_not_cancelled() -> Any:
    return patched(job_master, "strays", lambda _: lambda *_: ())


def _unanswered_commands_are_not_repeated() -> Any:
    return patched(Errands, "settled", lambda _: lambda *_: True)


def _deployments_are_repeated_after_their_cancellation() -> Any:
    return patched(JobMasterCore, "_pointless", lambda _: lambda *_: False)


def _needs_are_declared_once() -> Any:
    def made(declare: Any) -> Any:
        def terse(core: Any, now: float) -> None:
            declare(core, now)
            core._declare_at = math.inf

        return terse

    return patched(JobMasterCore, "_declare", made)


def _contradictions_are_ignored(*events: type) -> Any:
    def made(contradictions: Any) -> Any:
        return lambda *beat: (event for event in contradictions(*beat) if not isinstance(event, events))

    return patched(job_master, "contradictions", made)


def _slots_that_the_task_manager_does_not_know_are_kept() -> Any:
    return _contradictions_are_ignored(SlotsGone)


def _attempts_that_the_task_manager_does_not_know_are_waited_for() -> Any:
    return _contradictions_are_ignored(AttemptGone)


def _attempts_that_were_replaced_are_adopted() -> Any:
    def made(is_current: Any) -> Any:
        def credulous(state: Any, before: Any, found: Any) -> bool:
            attempts = {found.task.status.attempt_id}
            return bool(is_current(state, replace(before, attempts=attempts), found))

        return credulous

    return patched(reconciling, "_is_current", made)


def _old_news_of_failed_attempts_counts() -> Any:
    return patched(reconciling, "_has_ended", lambda _: lambda *_: False)


def tasks_of_another_version_are_adopted() -> Any:
    """Not in FAULTS: a seed hardly ever has all that it takes. `test_scenarios` has it."""

    def made(is_current: Any) -> Any:
        def credulous(state: Any, before: Any, found: Any) -> bool:
            return bool(is_current(state, replace(before, version=found.task.version), found))

        return credulous

    return patched(reconciling, "_is_current", made)


@contextmanager
def _readers_are_adopted_without_their_writers() -> Iterator[None]:
    with (
        patched(reconciling, "_fits", lambda _: lambda *_: True),
        patched(reconciling, "_reads", lambda _: lambda *_: True),
    ):
        yield


def _a_task_runs_on_whatever_it_has_kept() -> Any:
    return patched(failover, "_can_run_on", lambda _: lambda *_: True)


def _what_is_not_adopted_runs_on() -> Any:
    return patched(Step, "dismiss", lambda _: lambda *_: None)


def _tasks_are_not_told_of_their_slots() -> Any:
    return patched(resizing, "tell_tasks", lambda _: lambda *_: None)


def _a_refusal_of_other_slots_is_ignored() -> Any:
    return patched(running, "task_not_resized", lambda _: lambda *_: None)


def _groups_run_on_any_slots() -> Any:
    return patched(SlotPool, "barred", lambda _: lambda *_: {})


FAULTS: Mapping[str, Planted] = {
    "the JM takes an unanswered deployment for a failed one": _an_unanswered_deployment_has_failed,
    "the JM accepts one allocation from two TMs": _the_job_master_accepts_one_allocation_of_two_task_managers,
    "the JM keeps the slots of a lost TM": _slots_of_a_lost_task_manager_stay_in_the_pool,
    "the JM takes an allocation again that it gave up": _an_allocation_that_was_given_up_is_taken_again,
    "the JM does not cancel strays": _strays_are_not_cancelled,
    "the JM does not repeat unanswered commands": _unanswered_commands_are_not_repeated,
    "the JM repeats deployments after their cancellation": _deployments_are_repeated_after_their_cancellation,
    "the JM declares its needs once": _needs_are_declared_once,
    "the JM keeps slots that the TM does not know": _slots_that_the_task_manager_does_not_know_are_kept,
    "the JM adopts attempts that were replaced": _attempts_that_were_replaced_are_adopted,
    "the JM adopts attempts that have failed by old news of them": _old_news_of_failed_attempts_counts,
    "the JM adopts readers without their writers": _readers_are_adopted_without_their_writers,
    "the JM lets a task run on whose output is gone": _a_task_runs_on_whatever_it_has_kept,
    "the JM does not tell tasks of their slots": _tasks_are_not_told_of_their_slots,
    "the JM ignores that a task cannot have other slots": _a_refusal_of_other_slots_is_ignored,
    "the JM lets tasks run on that it does not adopt": _what_is_not_adopted_runs_on,
    "the JM runs groups on slots that have less than they want": _groups_run_on_any_slots,
    "the JM waits for attempts that the TM does not know": _attempts_that_the_task_manager_does_not_know_are_waited_for,
}
