"""The core of a TaskManager, tested with lists of messages and the commands that follow (m7 - m13, R8 - R15)."""

from __future__ import annotations

import pytest

from minflinkd.rpc import messages as m
from minflinkd.rpc.libraries import LibraryConflict
from minflinkd.rpc.network import Fenced, Unreachable
from minflinkd.runtime.errors import Conflict
from minflinkd.taskmanager.child.protocol import SessionLost
from minflinkd.taskmanager.slots.core import Exit, RenewSession, SessionShared, SlotNotBound
from minflinkd.taskmanager.slots.events import ForgetJob, StartTask
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

# --- getting slots -----------------------------------------------------------------------------------------------


def test_slots_are_promised_offered_and_accepted() -> None:
    """m7 - m10."""
    world = CoreWorld()
    answer = world.rm(allocate(A, 1, 2))
    assert answer.allocated
    assert [s.allocation_id for s in answer.report.slots] == [None, A, A, None]
    assert (world.state(A), world.offered()) == (S.ALLOCATED, (A,))
    assert world.rm(allocate(A, 2, 1)).allocated
    world.accept(A)
    assert world.state(A) is S.ACTIVE
    assert world.rm(allocate(A, 1, 2)).allocated
    assert not world.is_asking(m.OfferSlots)


def test_taken_slots_are_told_with_the_truth() -> None:
    """The refusal, `SlotTaken`, carries the report with which the ResourceManager corrects its view (m8)."""
    world = CoreWorld()
    world.active(A, 0)
    for request in (allocate(B, 0, 1), allocate(A, 0, 1), allocate(A, 0, job=OTHER), allocate(B, 9)):
        answer = world.rm(request)
        assert not answer.allocated
        assert answer.report.version == world.core.report().version
    assert world.core.slots.table.of_job(OTHER) == ()


def test_what_is_not_accepted_is_free_and_what_was_accepted_before_is_not_at_stake() -> None:
    """Only heartbeats decide about slots that were accepted before (m10)."""
    world = CoreWorld()
    world.active(A, 0)
    world.rm(allocate(B, 1))
    assert world.offered() == (A, B)
    world.accept()
    assert (world.state(A), world.state(B)) == (S.ACTIVE, S.FREE)


def test_the_answer_to_any_but_the_last_offer_is_dropped() -> None:
    """Only the answer to the last offer counts (R8)."""
    world = CoreWorld()
    world.rm(allocate(A, 0))
    first = world.ask_of(m.OfferSlots)
    world.rm(allocate(B, 1))
    last = world.ask_of(m.OfferSlots)
    assert isinstance(first.request, m.OfferSlots)
    assert isinstance(last.request, m.OfferSlots)
    assert last.request.version > first.request.version
    world.answer(first, m.OffersAccepted(accepted=(A,)))
    assert (world.state(A), world.state(B)) == (S.ALLOCATED, S.ALLOCATED)
    world.answer(last, m.OffersAccepted(accepted=(B,)))
    assert (world.state(A), world.state(B)) == (S.FREE, S.ACTIVE)


def test_an_offer_is_repeated_until_the_reservation_ends() -> None:
    """An offer is repeated for ten seconds, whatever comes back, unless that is an answer (m9, R9)."""
    world = CoreWorld()
    world.rm(allocate(A, 0))
    offers = 0
    while world.state(A) is S.ALLOCATED:
        if world.is_asking(m.OfferSlots):
            offers += 1
            world.outcome(world.ask_of(m.OfferSlots), LOST)
        world.wait(0.1)
    assert 9.9 < world.now < 10.2
    assert 6 <= offers <= 10


def test_a_job_master_that_was_replaced_refuses_an_offer_without_harm_to_the_slots() -> None:
    """The slots wait for its successor (R13)."""
    world = CoreWorld()
    world.rm(allocate(A, 0))
    world.refuse(world.ask_of(m.OfferSlots), Fenced("another leader"))
    assert world.state(A) is S.ALLOCATED
    world.rm(m.JobMasterChanged(job_id=JOB, leader_id=leader(2)))
    assert world.ask_of(m.OfferSlots).fence == leader(2)


def test_a_heartbeat_that_names_slots_is_as_good_as_the_answer_that_was_lost() -> None:
    """A heartbeat is the JobMaster's whole view (R8)."""
    world = CoreWorld()
    world.rm(allocate(A, 0))
    assert world.beat(A).allocations == (A,)
    assert world.state(A) is S.ACTIVE


def test_slots_are_given_on_a_ready_session_only() -> None:
    """Slots given before stay, and a repeated request for them is answered with yes (m7)."""
    world = CoreWorld()
    world.active(A, 0)
    world.core.session_changed(m.SessionPhase.LOST, 1, aged=False, now=0.0)
    assert not world.rm(allocate(B, 1)).allocated
    assert world.rm(allocate(A, 0)).allocated
    world.jm(m.CancelTask(job_id=JOB, attempt_id=attempt(9)))
    with pytest.raises(SessionLost):
        world.jm(deploy(A))


def test_a_taskmanager_of_one_job() -> None:
    """An exclusive job gets a TaskManager without other jobs, which then takes no other job (R24)."""
    world = CoreWorld()
    world.active(A, 0, job=OTHER)
    assert not world.rm(allocate(B, 1, exclusive=True)).allocated
    world.jm(m.FreeSlots(job_id=OTHER, allocations=(A,)))
    answer = world.rm(allocate(B, 1, exclusive=True))
    assert (answer.allocated, answer.report.dedicated_to) == (True, JOB)
    assert not world.rm(allocate(A, 0, job=OTHER)).allocated
    world.accept()
    assert (world.state(B), world.core.report().dedicated_to) == (S.FREE, JOB)


# --- tasks -------------------------------------------------------------------------------------------------------


def test_a_task_needs_slots_that_are_bound_to_its_job() -> None:
    """m12."""
    world = CoreWorld()
    with pytest.raises(SlotNotBound, match="not bound"):
        world.jm(deploy(A))
    world.rm(allocate(A, 0))
    world.accept(A)
    with pytest.raises(SlotNotBound, match="not bound"):
        world.jm(deploy(A, job=OTHER))
    world.jm(deploy(A, 2))
    assert len(world.take(StartTask)) == 1


def test_a_deployment_that_overtakes_the_answer_to_the_offer_accepts_the_slots() -> None:
    """Both are under way at once, and a JobMaster deploys only on slots that it has accepted (m10, m12)."""
    world = CoreWorld()
    world.rm(allocate(A, 0))
    world.jm(deploy(A, 1))
    assert len(world.take(StartTask)) == 1
    assert world.state(A) is S.ACTIVE
    world.accept(A)
    assert world.state(A) is S.ACTIVE


def test_a_deployment_is_carried_out_once_and_a_late_one_not_at_all() -> None:
    """A deployment may be repeated while its attempt runs; a copy may arrive after its end or cancellation (m12)."""
    world = running()
    world.jm(deploy(A))
    world.jm(m.CancelTask(job_id=JOB, attempt_id=attempt(0)))
    world.jm(m.CancelTask(job_id=JOB, attempt_id=attempt(0)))
    assert ends(world) == [(attempt(0),)]
    world.ended(0)
    world.jm(deploy(A))
    world.jm(m.CancelTask(job_id=JOB, attempt_id=attempt(1)))
    with pytest.raises(SlotNotBound, match="cancelled before"):
        world.jm(deploy(A, 1))
    assert world.take(StartTask) == []
    world.jm(deploy(A, 2))
    with pytest.raises(SlotNotBound, match="later attempt"):
        world.jm(deploy(A, 1))
    assert len(world.take(StartTask)) == 1


def test_no_attempt_of_a_task_runs_beside_an_earlier_one() -> None:
    """The next attempt waits even if the JobMaster no longer waits for the earlier attempt to end (m12)."""
    world = running()
    world.jm(m.CancelTask(job_id=JOB, attempt_id=attempt(0)))
    world.active(B, 2)
    for number, key in ((1, A), (2, B)):
        with pytest.raises(SlotNotBound, match="attempt attempt-0 of task t has not ended yet"):
            world.jm(deploy(key, number))
    world.jm(deploy(B, 3, task="u"))
    world.ended(0)
    world.jm(deploy(A, 4))
    assert [c.deployment.attempt_id for c in world.take(StartTask)] == [attempt(3), attempt(4)]


def test_slots_given_back_are_free_when_their_tasks_have_ended() -> None:
    """m12, m11."""
    world = running()
    world.jm(m.FreeSlots(job_id=JOB, allocations=(A,)))
    assert (world.state(A), ends(world), world.told()) == (S.RELEASING, [(attempt(0),)], [])
    assert world.beat().allocations == ()
    assert not world.rm(allocate(A, 0, 1)).allocated
    world.ended(0)
    assert world.state(A) is S.FREE
    (notice,) = world.told()
    assert isinstance(notice, m.SlotsFree)
    assert notice.instance_id == registered().instance_id
    assert all(s.allocation_id is None for s in notice.report.slots)


def test_the_end_of_a_job_frees_all_of_it_and_then_forgets_it_once() -> None:
    """The end of a job also frees slots that its JobMaster never heard of (R26)."""
    world = running()
    world.active(B, 2)
    ended = m.FreeSlots(job_id=JOB, allocations=(A,), job_ended=True)
    world.jm(ended)
    world.jm(ended)
    assert (world.state(A), world.state(B), world.take(ForgetJob)) == (S.RELEASING, S.FREE, [])
    world.ended(0)
    world.jm(ended)
    assert world.take(ForgetJob) == [ForgetJob(JOB)]
    assert not world.rm(allocate(C, 3)).allocated
    world.wait(60.0)
    assert world.take(ForgetJob) == []
    assert world.core.slots.jobs == {}


def test_a_job_that_went_elsewhere_or_was_only_analysed_here_is_forgotten_after_a_while() -> None:
    """Nobody tells this TaskManager that such a job has ended."""
    world = CoreWorld()
    world.core.analysed(OTHER, 0.0)
    world.active(A, 0)
    world.jm(m.FreeSlots(job_id=JOB, allocations=(A,)))
    world.wait(34.0)
    assert world.take(ForgetJob) == []
    world.wait(2.0)
    assert world.take(ForgetJob) == [ForgetJob(JOB), ForgetJob(OTHER)]


# --- the ResourceManager -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        allocate(A, 0),
        m.JobMasterChanged(job_id=JOB, leader_id=leader(2)),
        m.RenewSession(reason="aged"),
        m.ExitTaskManager(reason="idle"),
    ],
)
@pytest.mark.parametrize("number", [1, 3])
def test_only_the_resourcemanager_that_registered_it_is_obeyed(message: m.Message, number: int) -> None:
    """An earlier one is refused, and so is a later one until it has registered this TaskManager (R1)."""
    world = CoreWorld(ready=False)
    with pytest.raises(Fenced):
        world.rm(message, number)
    world.core.session_changed(m.SessionPhase.READY, 1, aged=False, now=0.0)
    world.wait(0.0)
    world.answer(world.ask_of(m.RegisterTaskManager), registered(2))
    with pytest.raises(Fenced):
        world.rm(message, number)
    world.rm(message, 2)


def test_a_session_is_renewed_when_no_slot_is_taken() -> None:
    """From then on the TaskManager gives no slots until the session is another one (R6a)."""
    world = CoreWorld()
    renew = m.RenewSession(reason="aged")
    world.active(A, 0)
    with pytest.raises(Conflict):
        world.rm(renew)
    world.jm(m.FreeSlots(job_id=JOB, allocations=(A,)))
    world.rm(renew)
    world.rm(renew)
    assert world.take(RenewSession) == [RenewSession("aged")]
    assert world.core.report().session is m.SessionPhase.STARTING
    assert not world.rm(allocate(B, 0)).allocated
    world.core.session_changed(m.SessionPhase.READY, 2, aged=False, now=0.0)
    assert world.rm(allocate(B, 0)).allocated


def test_a_session_is_not_renewed_while_it_analyses_a_job() -> None:
    """An analysis takes no slot, but it would fail with the session (R6a)."""
    world = CoreWorld()
    for job in (JOB, OTHER, JOB):
        world.core.analysing(job, world.now)
    for job in (OTHER, JOB, JOB):
        with pytest.raises(Conflict, match="while it analyses"):
            world.rm(m.RenewSession(reason="aged"))
        world.core.analysed(job, world.now)
    world.rm(m.RenewSession(reason="aged"))
    assert world.take(RenewSession) == [RenewSession("aged")]


def test_an_analysis_brings_libraries_and_is_refused_where_they_clash() -> None:
    """The session is to be replaced once every job that brought the held libraries is gone (B31)."""
    world = CoreWorld()
    one, two = (m.Library("java:com/acme", "1"),), (m.Library("java:com/acme", "2"),)
    world.core.analysing(JOB, world.now, one)
    assert (world.core.report().libraries, world.core.report().session_aged) == (one, False)
    with pytest.raises(LibraryConflict, match="java:com/acme"):
        world.core.analysing(OTHER, world.now, two)
    before = world.core.report().version
    world.core.analysed(JOB, world.now)
    assert world.core.report().session_aged
    assert world.core.report().version > before
    world.core.session_changed(m.SessionPhase.READY, 2, aged=False, now=world.now)
    assert (world.core.report().libraries, world.core.report().session_aged) == ((), False)
    world.core.analysing(OTHER, world.now, two)


def test_a_taskmanager_that_analyses_a_job_of_its_own_belongs_to_it_from_then_on() -> None:
    """Whether or not the job gets slots: its code may have left anything in the session (R24)."""
    world = CoreWorld()
    before = world.core.report().version
    world.core.analysing(JOB, world.now, exclusive=True)
    assert world.core.report().dedicated_to == JOB
    assert world.core.report().version > before
    with pytest.raises(SessionShared, match="job of its own"):
        world.core.analysing(OTHER, world.now)
    world.core.analysing(JOB, world.now, exclusive=True)
    for _ in range(2):
        world.core.analysed(JOB, world.now)
    assert world.core.report().dedicated_to == JOB
    with pytest.raises(SessionShared):
        world.core.analysing(OTHER, world.now)


def test_a_job_of_its_own_is_not_analysed_beside_another_job() -> None:
    """Neither beside its tasks nor beside its analysis. The ResourceManager may not know of these yet (R24)."""
    world = CoreWorld()
    world.core.analysing(OTHER, world.now)
    with pytest.raises(SessionShared):
        world.core.analysing(JOB, world.now, exclusive=True)
    world.core.analysed(OTHER, world.now)
    assert world.rm(allocate(B, 0, job=OTHER)).allocated
    with pytest.raises(SessionShared):
        world.core.analysing(JOB, world.now, exclusive=True)
    assert world.core.report().dedicated_to is None


def test_it_exits_when_it_is_told_to_or_nobody_registers_it_in_time() -> None:
    """R6, R15."""
    world = CoreWorld()
    world.rm(m.ExitTaskManager(reason="idle"))
    assert world.take(Exit) == [Exit("idle")]
    alone = CoreWorld(ready=False, registration_timeout=30.0)
    while alone.core.next_wakeup() is not None:
        alone.wait(1.0)
        if alone.is_asking(m.RegisterTaskManager):
            alone.outcome(alone.ask_of(m.RegisterTaskManager), LOST)
    (given_up,) = alone.take(Exit)
    assert given_up.failed
    assert given_up.reason.startswith("no ResourceManager took the registration for 3")
    assert 30.0 <= alone.now < 34.0


def test_one_that_reaches_nobody_keeps_its_session_and_tries_again() -> None:
    """The tasks stop and the slots fall free at their own timeouts (R15, A14)."""
    world = running()
    for _ in range(640):
        world.wait(1.0, rm=False)
        if world.is_asking(m.RegisterTaskManager):
            world.outcome(world.ask_of(m.RegisterTaskManager), LOST)
        if ends(world):
            world.ended(0)
    assert world.core.slots.table.bindings == {}
    assert world.core.report().session is m.SessionPhase.READY
    assert world.take(Exit) == []
    world.wait(2.0)
    world.answer(world.ask_of(m.RegisterTaskManager), registered(2))
    assert world.rm(allocate(B, 0), 2).allocated


def test_every_change_of_the_report_is_told_at_once() -> None:
    """The report has a greater version. What an answer has told already is not told again (m11, R6a)."""
    world = CoreWorld()
    world.core.session_changed(m.SessionPhase.READY, 1, aged=True, now=0.0)
    world.ended()
    world.rm(allocate(A, 0))
    world.accept()
    reports = [notice.report for notice in world.told() if isinstance(notice, m.SlotsFree)]
    assert [(r.session_aged, r.slots[0].allocation_id) for r in reports] == [(True, None), (True, None)]
    assert reports[1].version > reports[0].version


def test_a_message_for_another_party_is_not_taken() -> None:
    with pytest.raises(Unreachable):
        CoreWorld().rm(m.ListTaskManagers())


# --- being drained -----------------------------------------------------------------------------------------------


def test_a_drained_taskmanager_gives_no_slots_but_keeps_those_that_it_gave() -> None:
    """Its report says so, with a later version, and so do its offers and heartbeats to JobMasters (A15b)."""
    world = CoreWorld()
    world.active(A, 0)
    before = world.core.report().version
    report = world.rm(m.SetDraining(draining=True, number=1))
    assert report.draining
    assert report.version > before
    assert not world.rm(allocate(B, 1)).allocated
    assert world.rm(allocate(A, 0)).allocated
    assert world.beat(A).draining
    assert not world.rm(m.SetDraining(draining=False, number=2)).draining
    assert world.rm(allocate(B, 1)).allocated


def test_an_earlier_request_to_drain_it_changes_nothing() -> None:
    """One that was delayed does not undo what came after it, but one of a later leader counts (A15b, R1)."""
    world = CoreWorld()
    world.rm(m.SetDraining(draining=True, number=1))
    world.rm(m.SetDraining(draining=False, number=2))
    assert not world.rm(m.SetDraining(draining=True, number=1)).draining
