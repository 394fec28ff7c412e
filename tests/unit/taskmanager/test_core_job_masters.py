"""The core of a TaskManager and its JobMasters: heartbeats, silence, and the next leader (R10 - R15)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from minflinkd.rpc import messages as m
from minflinkd.rpc.network import Fenced
from minflinkd.taskmanager.slots import machine as slot_machine
from minflinkd.taskmanager.slots.core import Exit, SlotNotBound
from minflinkd.taskmanager.slots.events import Adopted, ForgetJob, StartTask, Tick
from minflinkd.taskmanager.slots.state import Slots
from tests.unit.taskmanager.core_world import (
    JOB,
    LOST,
    OTHER,
    A,
    B,
    C,
    CoreWorld,
    S,
    allocate,
    attempt,
    deploy,
    ends,
    leader,
    registered,
    running,
)

# --- heartbeats of JobMasters ------------------------------------------------------------------------------------


def test_slots_that_the_job_master_does_not_know_are_freed_unless_they_are_too_young() -> None:
    """The heartbeat may have been sent before the offer was answered (R10)."""
    world = running()
    world.active(B, 2)
    for _ in range(10):
        world.beat(B)
        world.wait(1.0)
    assert (world.state(A), ends(world)) == (S.ACTIVE, [])
    world.wait(0.5)
    assert world.beat(B).allocations == (B,)
    assert (world.state(A), world.state(B), ends(world)) == (S.RELEASING, S.ACTIVE, [(attempt(0),)])


def test_tasks_of_a_silent_job_master_run_on_and_end_after_the_orphan_timeout() -> None:
    """The slots are held for the next JobMaster as long as the tasks run (A14). They fall free after the tasks."""
    world = running()
    world.wait(5.1)
    assert (world.state(A), world.is_asking(m.OfferSlots)) == (S.HELD, False)
    world.wait(599.0)
    assert (ends(world), world.state(A)) == ([], S.HELD)
    world.wait(1.0)
    assert (ends(world), world.state(A)) == ([(attempt(0),)], S.RELEASING)
    world.ended(0)
    assert world.state(A) is S.FREE


def test_slots_without_tasks_are_held_for_a_short_while() -> None:
    """`jobmanager.slot-hold-timeout`: nobody loses anything if they go to another job (R13)."""
    world = CoreWorld()
    world.active(A, 0)
    world.wait(5.1)
    assert world.state(A) is S.HELD
    world.wait(29.5)
    assert world.state(A) is S.HELD
    world.wait(1.0)
    assert world.state(A) is S.FREE


def test_slots_of_a_job_whose_tasks_run_elsewhere_on_the_taskmanager_are_held_as_long_as_they() -> None:
    """The next JobMaster wants all of them."""
    world = running()
    world.active(B, 2)
    world.wait(5.1 + 60.0)
    assert (world.state(A), world.state(B)) == (S.HELD, S.HELD)


def test_slots_are_held_for_the_orphan_timeout_for_a_failure_that_no_jobmaster_knows() -> None:
    """A leader dies, and the task fails before its silence is noticed. The next leader may be long in coming (A14a)."""
    world = running()
    world.wait(2.0)
    world.failed(0)
    world.wait(3.1)
    assert world.state(A) is S.HELD
    world.wait(599.0)
    assert (world.state(A), world.core.slots.unheard.keys(), world.take(ForgetJob)) == (S.HELD, {attempt(0)}, [])
    world.wait(1.0)
    assert (world.state(A), world.core.slots.unheard) == (S.FREE, {})


def test_a_taskmanager_stays_for_a_failure_that_nobody_knows_as_long_as_for_a_task() -> None:
    """Without it, it would give up its ResourceManager with the failure in hand, and take it along (A14a, R15)."""
    world = running(registration_timeout=60.0)
    world.failed(0)
    world.wait(500.0, rm=False)
    assert world.take(Exit) == []
    world.wait(200.0, rm=False)
    assert [exit.failed for exit in world.take(Exit)] == [True]


@pytest.mark.parametrize(
    "hears",
    [
        lambda world: world.core.failure_taken(attempt(0), world.now),
        lambda world: world.jm(m.CancelTask(job_id=JOB, attempt_id=attempt(0))),
        lambda world: world.jm(deploy(A, 1)),
    ],
    ids=["it has answered", "it cancels the attempt", "it deploys the next one"],
)
def test_a_failure_that_a_jobmaster_knows_is_not_kept_for_the_next_one(hears: Callable[[CoreWorld], object]) -> None:
    """It counts once. The slots are held as slots without tasks are (R13, A14a)."""
    world = running()
    world.failed(0)
    hears(world)
    world.ended(1)
    assert world.core.slots.unheard == {}
    world.wait(5.1 + 30.0)
    assert world.state(A) is S.FREE


def test_the_end_of_a_task_that_was_told_to_end_is_no_failure_to_be_kept() -> None:
    """Whatever it said at the end: whoever told it expects no more of it (A14a)."""
    world = running()
    world.jm(m.CancelTask(job_id=JOB, attempt_id=attempt(0)))
    world.failed(0)
    assert world.core.slots.unheard == {}


def test_a_failure_goes_with_the_slots_that_a_jobmaster_gives_back() -> None:
    """It could not be offered any more (A14a)."""
    world = running()
    world.failed(0)
    world.jm(m.FreeSlots(job_id=JOB, allocations=(A,)))
    assert (world.state(A), world.core.slots.unheard) == (S.FREE, {})


def test_slots_that_are_held_are_held_for_the_full_time_for_each_jobmaster() -> None:
    """Otherwise the time that one leader takes to fail would be the next one's loss (A14, R13)."""
    world = running()
    world.jm(m.CancelTask(job_id=JOB, attempt_id=attempt(0)))
    for number, now in ((2, 3.0), (3, 20.0)):
        world.wait(now - world.now)
        world.rm(m.JobMasterChanged(job_id=JOB, leader_id=leader(number)))
        binding = world.core.slots.table.bindings[A]
        assert (binding.state, binding.since, binding.until) == (S.HELD, 3.0, now + 30.0)
    world.wait(30.0)
    binding = world.core.slots.table.bindings[A]
    assert (binding.state, binding.since, binding.until) == (S.RELEASING, 50.0, None)


def test_slots_that_are_offered_again_wait_for_an_answer_however_late_it_is() -> None:
    """The hold may be nearly over when the tasks that were to end have ended (R9, R13)."""
    world = running()
    world.jm(m.CancelTask(job_id=JOB, attempt_id=attempt(0)))
    world.rm(m.JobMasterChanged(job_id=JOB, leader_id=leader(2)))
    world.wait(28.0)
    world.beat(jm=2)
    world.ended(0)
    binding = world.core.slots.table.bindings[A]
    assert (binding.state, binding.since, binding.until) == (S.ALLOCATED, 28.0, 38.0)


def test_slots_with_a_task_that_was_told_to_end_wait_for_its_end() -> None:
    """It is not offered, and nothing is deployed beside it. Another job's slots do not wait (R13)."""
    world = running()
    world.jm(m.CancelTask(job_id=JOB, attempt_id=attempt(0)))
    world.active(B, 2, job=OTHER)
    for job in (JOB, OTHER):
        world.rm(m.JobMasterChanged(job_id=job, leader_id=leader(2)))
    assert (world.state(A), world.state(B)) == (S.HELD, S.ALLOCATED)
    world.ended(0)
    assert world.state(A) is S.ALLOCATED


def test_a_jobmaster_that_has_accepted_nothing_is_not_silent() -> None:
    """It is not expected to send heartbeats yet. The reservation ends by itself (R9, R10)."""
    world = CoreWorld()
    world.rm(allocate(A, 0))
    world.wait(9.0)
    assert (world.state(A), world.core.slots.jobs[JOB].silent) == (S.ALLOCATED, False)


def test_slots_whose_tasks_do_not_end_are_not_free_after_the_hold() -> None:
    """Slots are not free while a task may still run on them (R13)."""
    world = running()
    world.jm(m.CancelTask(job_id=JOB, attempt_id=attempt(0)))
    world.wait(60.0)
    assert world.state(A) is S.RELEASING
    world.ended(0)
    assert world.state(A) is S.FREE


def test_a_silence_is_noticed_at_the_time_that_it_was_said_to_end() -> None:
    """The deadline counts, whatever the clock shows. Otherwise the timer would be due again and again (R13)."""
    world = running()
    for tenths in range(100):
        world.now += 0.1 + tenths / 7
        world.beat(A)
        due = world.core.slots.jobs[JOB].heard + world.core.slots.options.heartbeat_timeout
        assert ticked(world.core.slots, due).jobs[JOB].silent


def ticked(slots: Slots, now: float) -> Slots:
    return slot_machine.step(slots, Tick(), now)[0]


def test_a_silent_job_master_that_comes_back_has_its_slots_again() -> None:
    """The JobMaster says that it has the slots. For their tasks, nothing has happened (A14, R15)."""
    world = running()
    world.wait(6.0)
    assert world.state(A) is S.HELD
    assert world.beat(A).allocations == (A,)
    assert (world.state(A), ends(world), world.take(Adopted)) == (S.ACTIVE, [], [])
    with pytest.raises(SlotNotBound, match="has not ended yet"):
        world.jm(deploy(A, 1))


def test_tasks_end_that_a_living_job_master_has_given_up() -> None:
    """The ResourceManager names it long after it was heard here: it has replaced them elsewhere (A14, R15)."""
    world = running()
    for _ in range(14):
        world.wait(1.0)
        learn_that_it_lives(world)
    assert (ends(world), world.state(A)) == ([], S.HELD)
    world.wait(1.0)
    learn_that_it_lives(world)
    assert (ends(world), world.state(A)) == ([(attempt(0),)], S.RELEASING)


def test_a_daemon_that_was_stopped_for_long_has_its_tasks_when_it_goes_on() -> None:
    """Its ResourceManager may be heard a moment before its JobMasters (A14)."""
    world = running()
    world.wait(6.0)
    learn_that_it_lives(world)
    world.wait(60.0)
    for _ in range(3):
        learn_that_it_lives(world)
        world.wait(1.0)
    assert (ends(world), world.state(A)) == ([], S.HELD)
    world.beat(A)
    assert world.state(A) is S.ACTIVE
    assert world.core.slots.jobs[JOB].named is None


def learn_that_it_lives(world: CoreWorld) -> None:
    world.rm(m.JobMasterChanged(job_id=JOB, leader_id=leader(1)))


def test_tasks_end_whose_job_has_ended_while_its_job_master_was_not_heard() -> None:
    """Otherwise they would process for nobody until the orphan timeout (A14)."""
    world = running()
    learn_that_it_has_ended(world)
    assert (ends(world), world.state(A)) == ([], S.ACTIVE)  # its JobMaster still talks, and frees the slots itself
    world.wait(5.0)
    learn_that_it_has_ended(world)
    assert (ends(world), world.state(A)) == ([(attempt(0),)], S.RELEASING)
    world.ended(0)
    assert len(world.take(ForgetJob)) == 1


def learn_that_it_has_ended(world: CoreWorld) -> None:
    while not world.is_asking(m.HeartbeatFromTaskManager):
        world.now += 0.1
        world.core.tick(world.now)
        world.ended()
    world.answer(world.ask_of(m.HeartbeatFromTaskManager), m.HeartbeatAnswer(ended_jobs=(OTHER, JOB)))


# --- a new JobMaster ---------------------------------------------------------------------------------------------


def learn_by_notice(world: CoreWorld) -> None:
    world.rm(m.JobMasterChanged(job_id=JOB, leader_id=leader(2)))


def learn_by_heartbeat_answer(world: CoreWorld) -> None:
    while not world.is_asking(m.HeartbeatFromTaskManager):
        world.now += 0.1
        world.core.tick(world.now)
        world.ended()
    beat = world.ask_of(m.HeartbeatFromTaskManager)
    world.answer(beat, m.HeartbeatAnswer(job_masters={OTHER: leader(9), JOB: leader(2)}))


def learn_by_registration(world: CoreWorld) -> None:
    world.wait(4.0)
    world.beat(A)
    world.wait(4.0, rm=False)
    world.beat(A)
    while not world.is_asking(m.RegisterTaskManager):
        world.wait(1.0, rm=False)
        world.beat(A)
    world.answer(world.ask_of(m.RegisterTaskManager), registered(2, job_masters={JOB: leader(2)}))


def learn_by_allocation(world: CoreWorld) -> None:
    assert world.rm(allocate(C, 3, jm=2)).allocated


def learn_by_any_message(world: CoreWorld) -> None:
    world.jm(m.TriggerCheckpoint(job_id=JOB, attempt_id=attempt(0), checkpoint_id=1, epoch=1), 2)


@pytest.mark.parametrize(
    "learn",
    [
        learn_by_notice,
        learn_by_heartbeat_answer,
        learn_by_registration,
        learn_by_allocation,
        learn_by_any_message,
    ],
)
def test_however_it_learns_of_a_new_job_master_it_offers_it_the_slots_with_the_tasks_that_run_on(
    learn: Callable[[CoreWorld], None],
) -> None:
    """R13, A14a."""
    world = running()
    world.rm(allocate(B, 2))
    stale = world.ask_of(m.OfferSlots)
    learn(world)
    assert (world.state(A), world.state(B)) == (S.ALLOCATED, S.ALLOCATED)
    world.answer(stale, m.OffersAccepted(accepted=(A, B)))
    assert (world.state(A), world.state(B)) == (S.ALLOCATED, S.ALLOCATED)
    offer = world.ask_of(m.OfferSlots)
    assert (offer.fence, set(world.offered()) >= {A, B}) == (leader(2), True)
    assert world.take(Adopted) == []
    world.accept(A)
    assert (world.state(A), world.state(B)) == (S.ACTIVE, S.FREE)
    assert world.take(Adopted) == [Adopted((attempt(0),), leader(2))]
    assert ends(world) == []


def test_tasks_whose_slots_the_new_job_master_refuses_end() -> None:
    """It has no use for them, and nobody else has (R13)."""
    world = running()
    learn_by_notice(world)
    world.accept()
    assert (ends(world), world.state(A)) == ([(attempt(0),)], S.RELEASING)


def test_a_task_that_the_new_job_master_does_not_adopt_ends_as_it_says() -> None:
    """It has the slot, and cancels what is on it. Then it may deploy there (A14a)."""
    world = running()
    learn_by_notice(world)
    world.accept(A)
    world.jm(m.CancelTask(job_id=JOB, attempt_id=attempt(0)), 2)
    assert ends(world) == [(attempt(0),)]
    world.ended(0)
    world.jm(deploy(A, 1, jm=2), 2)
    assert len(world.take(StartTask)) == 1


def test_slots_without_tasks_are_offered_to_a_new_job_master_at_once_and_wait_for_it() -> None:
    """The slots wait for the hold time, even if the new JobMaster does not answer (R13)."""
    world = CoreWorld()
    world.active(A, 0)
    learn_by_notice(world)
    for _ in range(29):
        assert world.state(A) is S.ALLOCATED
        if world.is_asking(m.OfferSlots):
            world.outcome(world.ask_of(m.OfferSlots), LOST)
        world.wait(1.0)
    world.wait(1.5)
    assert world.state(A) is S.FREE


@pytest.mark.parametrize(
    "message",
    [
        deploy(A, 1),
        m.HeartbeatFromJobMaster(job_id=JOB, leader_id=leader(1), allocations=()),
        m.FreeSlots(job_id=JOB, allocations=(A,), job_ended=True),
        m.CancelTask(job_id=JOB, attempt_id=attempt(0)),
        m.TriggerCheckpoint(job_id=JOB, attempt_id=attempt(0), checkpoint_id=1, epoch=1),
        m.NotifyCheckpointComplete(job_id=JOB, attempt_id=attempt(0), checkpoint_id=1),
        m.NotifyCheckpointAborted(job_id=JOB, attempt_id=attempt(0), checkpoint_id=1),
    ],
)
def test_an_earlier_job_master_changes_nothing(message: m.Message) -> None:
    """Messages of an earlier JobMaster are fenced (R1)."""
    world = running(jm=2)
    before = world.core.slots
    with pytest.raises(Fenced):
        world.jm(message, 1)
    assert world.core.slots == before
    assert not world.rm(allocate(B, 3, jm=1)).allocated
    world.rm(m.JobMasterChanged(job_id=JOB, leader_id=leader(1)))
    assert world.core.slots == before
