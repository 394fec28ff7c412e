"""The core of a TaskManager: what it sends to whom, and what it says when it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec.structs import replace as copy

from minflinkd.rpc import messages as m
from minflinkd.rpc.libraries import LibraryConflict
from minflinkd.rpc.network import RESOURCE_MANAGER, Fenced, Unreachable, job_master, task_manager
from minflinkd.rpc.party import Ask, Tell
from minflinkd.runtime.errors import Conflict, MinflinkError
from minflinkd.runtime.ids import JobId
from minflinkd.runtime.machine import InvariantViolated
from minflinkd.taskmanager.child.protocol import SessionLost
from minflinkd.taskmanager.slots import machine as slot_machine
from minflinkd.taskmanager.slots import registration as rg
from minflinkd.taskmanager.slots.core import OFFER_TIMEOUT, SessionShared, SlotNotBound
from minflinkd.taskmanager.slots.events import Adopted, EndTasks, ForgetJob, OfferAnswered, OfferFailed
from minflinkd.taskmanager.slots.state import Job
from minflinkd.taskmanager.slots.table import Binding
from tests.unit.taskmanager.core_world import (
    HELLO,
    JOB,
    LOST,
    NO_WAY,
    OTHER,
    TM,
    A,
    B,
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

# --- what it sends ---------------------------------------------------------------------------------------------------


def test_a_registration_tells_all_about_the_taskmanager() -> None:
    """Its report is the present one (m4)."""
    world = CoreWorld(ready=False)
    world.core.session_changed(m.SessionPhase.LOST, 3, aged=True, now=0.0, error="no Java")
    world.wait(0.0)
    report = m.TaskManagerReport(
        resource_id=TM,
        slots=tuple(m.SlotStatus(index=i) for i in range(4)),
        session=m.SessionPhase.LOST,
        session_generation=3,
        session_error="no Java",
        session_aged=True,
        version=world.core.report().version,
    )
    assert world.core.report() == report
    ask = world.ask_of(m.RegisterTaskManager)
    assert (ask.target, ask.timeout, ask.fence) == (RESOURCE_MANAGER, rg.TRY_TIMEOUT, None)
    assert ask.request == m.RegisterTaskManager(
        address=HELLO.address,
        pid=HELLO.pid,
        hardware=HELLO.hardware,
        log_directory=HELLO.log_directory,
        report=report,
    )


def test_a_heartbeat_has_the_whole_report_for_the_leader_that_it_is_registered_with() -> None:
    """R8, R10."""
    world = CoreWorld()
    world.now = 1.0
    world.core.tick(1.0)
    (ask,) = [command for command in world.core.take_commands() if isinstance(command, Ask)]
    assert ask.request == m.HeartbeatFromTaskManager(instance_id=registered().instance_id, report=world.core.report())
    assert (ask.target, ask.timeout, ask.fence) == (RESOURCE_MANAGER, 2.0, leader(1))


def test_an_offer_says_where_the_slots_are() -> None:
    """m9."""
    world = CoreWorld()
    world.rm(allocate(A, 0, 2))
    ask = world.ask_of(m.OfferSlots)
    assert (ask.target, ask.timeout, ask.fence) == (job_master(JOB), OFFER_TIMEOUT, leader(1))
    offers = (m.SlotOffer(allocation_id=A, slots=(0, 2)),)
    assert ask.request == m.OfferSlots(resource_id=TM, address=task_manager(TM), offers=offers, version=1, job_id=JOB)


def test_news_go_to_the_leader_that_it_is_registered_with() -> None:
    """With its token, so that another one refuses them (R1, m11)."""
    world = CoreWorld()
    world.core.session_changed(m.SessionPhase.LOST, 1, aged=False, now=0.0)
    world.ended()
    news = m.SlotsFree(report=world.core.report(), instance_id=registered().instance_id)
    assert world.take(Tell) == [Tell(RESOURCE_MANAGER, news, leader(1))]
    assert news.report.session_error == ""


def test_the_answer_to_a_heartbeat_names_the_slots_that_the_job_can_rely_on() -> None:
    """R10."""
    world = running()
    world.rm(allocate(B, 3))
    assert world.beat(A) == m.JobHeartbeatAnswer(allocations=(A, B), tasks=())


def test_a_part_of_an_allocation_can_be_given_back() -> None:
    """The tasks go on on the rest (H4)."""
    world = running()
    world.jm(m.FreeSlots(job_id=JOB, allocations=(), surplus={A: (1,)}))
    assert world.core.slots.table.bindings[A].slots == (0,)
    assert ends(world) == []


# --- what comes back -------------------------------------------------------------------------------------------------


def test_a_refused_heartbeat_ends_the_registration_and_says_why() -> None:
    """Another one is tried at once (R10)."""
    world = CoreWorld()
    while not world.is_asking(m.HeartbeatFromTaskManager):
        world.now += 1.0
        world.core.tick(world.now)
        world.ended()
    world.refuse(world.ask_of(m.HeartbeatFromTaskManager), Fenced("another leader"))
    assert (world.core.registration.registered, world.core.registration.why) == (None, "another leader")
    world.wait(0.0)
    world.outcome(world.ask_of(m.RegisterTaskManager), LOST)
    assert world.core.registration.why == "no answer"


@pytest.mark.parametrize(("outcome", "why"), [(NO_WAY, "no connection"), (LOST, "")])
def test_two_heartbeats_that_reach_nobody_end_the_registration_and_two_without_answer_do_not(
    outcome: object, why: str
) -> None:
    """A connection that cannot be made shows sooner than silence that the ResourceManager is gone (R10)."""
    world = CoreWorld()
    for _ in range(2):
        world.now += 1.0
        world.core.tick(world.now)
        world.ended()
        world.outcome(world.ask_of(m.HeartbeatFromTaskManager), outcome)  # type: ignore[arg-type]
    assert (world.core.registration.registered is None, world.core.registration.why) == (outcome is NO_WAY, why)


def test_answers_to_heartbeats_keep_the_registration() -> None:
    """R10."""
    world = CoreWorld()
    world.wait(30.0)
    assert world.core.registration.registered == registered()
    assert world.core.registration.heard == pytest.approx(30.0, abs=1.1)


MESSAGES = {
    "a deployment": deploy(A, 9, task="u"),
    "a repeated deployment": deploy(A),
    "a heartbeat": m.HeartbeatFromJobMaster(job_id=JOB, leader_id=leader(1), allocations=(A,)),
    "slots given back": m.FreeSlots(job_id=JOB, allocations=()),
    "a cancellation": m.CancelTask(job_id=JOB, attempt_id=attempt(9)),
    "a checkpoint": m.TriggerCheckpoint(job_id=JOB, attempt_id=attempt(0), checkpoint_id=1, epoch=1),
}


@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES)
def test_every_message_of_a_jobmaster_is_a_sign_of_life(message: m.Message) -> None:
    """R10."""
    world = running()
    world.wait(4.0)
    world.jm(message)
    world.wait(4.9)
    assert world.state(A) is S.ACTIVE
    world.wait(0.2)
    assert world.state(A) is S.HELD


@pytest.mark.parametrize("message", [one for name, one in MESSAGES.items() if "deployment" not in name])
def test_every_message_of_a_later_jobmaster_says_that_it_leads(message: m.Message) -> None:
    """R13."""
    world = running()
    world.jm(message, 2)
    assert world.core.slots.jobs[JOB].leader == leader(2)
    # A heartbeat names the slots that the JobMaster has accepted already.
    assert world.take(Adopted) or world.ask_of(m.OfferSlots).fence == leader(2)


def test_the_answer_to_an_offer_is_a_sign_of_life() -> None:
    """Slots that are held because the JobMaster was silent are offered to it again (R13)."""
    world = running()
    world.wait(4.0)
    world.rm(allocate(B, 2))
    offer = world.ask_of(m.OfferSlots)
    world.wait(2.0)
    assert world.state(A) is S.HELD
    world.answer(offer, m.OffersAccepted(accepted=(B,)))
    assert (world.state(A), world.state(B), world.offered()) == (S.ALLOCATED, S.ACTIVE, (A, B))
    world.accept(A, B)
    world.wait(4.9)
    assert world.state(A) is S.ACTIVE
    world.wait(0.2)
    assert world.state(A) is S.HELD


def why_ended(world: CoreWorld) -> list[str]:
    return [command.reason for command in world.take(EndTasks)]


def test_tasks_that_end_are_told_why() -> None:
    """The attempt's log shows it."""
    world = running()
    world.jm(m.CancelTask(job_id=JOB, attempt_id=attempt(0)))
    assert why_ended(world) == ["its JobMaster cancels it"]
    world = running()
    world.jm(m.FreeSlots(job_id=JOB, allocations=(A,)))
    assert why_ended(world) == ["its JobMaster gave the slots back"]
    world = running()
    world.wait(606.0)
    assert why_ended(world) == ["no JobMaster has come for it"]
    world = running()
    for _ in range(3):
        world.wait(5.0)
        world.rm(m.JobMasterChanged(job_id=JOB, leader_id=leader(1)))
    assert why_ended(world) == ["its JobMaster lives, and has not talked to this TaskManager for 15 s"]
    world = running()
    for _ in range(3):
        world.wait(4.0)
        world.beat(*(() if world.now > 10 else (A,)))
    assert why_ended(world) == ["its JobMaster does not know the slots"]


# --- allocations and offers ------------------------------------------------------------------------------------------


def test_slots_are_bound_as_they_were_asked_for() -> None:
    """They wait ten seconds for their JobMaster (R9), and their tasks load the job's libraries (B31)."""
    world = CoreWorld()
    world.now = 100.0
    libraries = (m.Library("java:com/acme", "1"),)
    assert world.rm(copy(allocate(A, 2, 0), libraries=libraries)).allocated
    bound = Binding(JOB, (0, 2), S.ALLOCATED, since=100.0, until=110.0, libraries=libraries)
    assert world.core.slots.table.bindings == {A: bound}
    other = copy(allocate(B, 1, job=OTHER), libraries=(m.Library("java:com/acme", "2"),))
    assert not world.rm(other).allocated


def test_a_job_of_its_own_taskmanager_gets_more_slots_of_it() -> None:
    """R24."""
    world = CoreWorld()
    for key, slot in ((A, 0), (B, 1)):
        assert world.rm(allocate(key, slot, exclusive=True)).allocated


def test_offers_go_to_the_address_that_was_named_last() -> None:
    """The JobMaster may be in another process after a restart, and its successor is where the job is (R13)."""
    world = CoreWorld()
    world.active(A, 0)
    world.rm(copy(allocate(B, 1), job_master="jobmaster/elsewhere"))
    assert world.ask_of(m.OfferSlots).target == "jobmaster/elsewhere"
    world.rm(m.JobMasterChanged(job_id=JOB, leader_id=leader(2)))
    ask = world.ask_of(m.OfferSlots)
    assert (ask.target, ask.fence) == ("jobmaster/elsewhere", leader(2))


def test_the_same_leader_told_again_changes_nothing() -> None:
    """R13."""
    world = running()
    before = world.core.slots
    world.rm(m.JobMasterChanged(job_id=JOB, leader_id=leader(1)))
    assert world.core.slots == before


def test_slots_that_a_heartbeat_does_not_name_are_kept_while_they_are_too_new_for_it() -> None:
    """The heartbeat may have been sent before its JobMaster accepted them (R9, R10)."""
    world = CoreWorld()
    world.active(A, 0)
    for seconds, held in ((4.0, (A,)), (4.0, (A,)), (2.0, ())):
        world.wait(seconds)
        world.beat(*held)
    assert (world.now, world.state(A)) == (10.0, S.ACTIVE)
    world.wait(0.5)
    world.beat()
    assert world.state(A) is S.FREE


def test_a_heartbeat_does_not_decide_about_slots_that_are_only_offered() -> None:
    """The answer to the offer does, however long ago they were allocated (R10, R13)."""
    world = running()
    world.rm(m.JobMasterChanged(job_id=JOB, leader_id=leader(2)))
    world.ended(0)
    for _ in range(15):
        world.wait(1.0)
        world.beat(jm=2)
    assert world.state(A) is S.ALLOCATED


def test_pauses_between_offers_double_up_to_two_seconds() -> None:
    """m9."""
    world = CoreWorld()
    world.active(A, 0)
    world.rm(m.JobMasterChanged(job_id=JOB, leader_id=leader(2)))
    pauses = []
    for _ in range(7):
        world.outcome(world.ask_of(m.OfferSlots), LOST)
        offer = world.core.slots.jobs[JOB].offer
        assert offer is not None
        assert offer.repeat_at is not None
        pauses.append(offer.repeat_at - world.now)
        world.now = offer.repeat_at
        world.core.tick(world.now)
        world.ended()
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0])


@pytest.mark.parametrize("outcome", [OfferFailed(JOB, 1), OfferAnswered(JOB, 1, ())])
def test_the_outcome_of_an_offer_that_no_longer_counts_changes_nothing(outcome: OfferFailed | OfferAnswered) -> None:
    """Its job may be forgotten, its offer answered, or a later one made (R8)."""
    world = CoreWorld()
    forgotten = world.core.slots
    world.rm(allocate(A, 0))
    world.rm(allocate(B, 1))
    overtaken = world.core.slots
    world.accept(A, B)
    for slots in (forgotten, overtaken, world.core.slots):
        assert slot_machine.step(slots, outcome, 0.0) == (slots, ())


# --- jobs ------------------------------------------------------------------------------------------------------------


def test_the_end_of_a_job_that_is_not_known_deletes_what_may_be_left_of_it() -> None:
    """It may have had slots here before a restart. Messages of its earlier JobMasters are refused from then on (R1)."""
    world = CoreWorld()
    world.now = 7.0
    world.jm(m.FreeSlots(job_id=JOB, allocations=(), job_ended=True), 3)
    assert world.take(ForgetJob) == [ForgetJob(JOB)]
    assert world.core.slots.jobs == {JOB: Job(leader(3), job_master(JOB), heard=7.0, ended=True, forgotten=True)}


def test_a_job_that_is_analysed_is_known_from_then_on_without_a_leader() -> None:
    """It is kept for as long as one that has gone elsewhere, and its first JobMaster is accepted, whoever it is."""
    world = CoreWorld()
    world.now = 7.0
    world.core.analysing(JOB, 7.0)
    assert world.core.slots.jobs == {JOB: Job(slot_machine.NOBODY, job_master(JOB), heard=7.0)}
    world.now = 9.0
    world.core.analysed(JOB, 9.0)
    assert world.core.slots.jobs[JOB].heard == 9.0


def test_a_job_that_has_ended_and_is_analysed_again_gets_slots_again() -> None:
    """It was submitted anew with the same id (R26)."""
    world = CoreWorld()
    world.jm(m.FreeSlots(job_id=JOB, allocations=(), job_ended=True))
    world.take(ForgetJob)
    assert not world.rm(allocate(A, 0)).allocated
    world.core.analysing(JOB, world.now)
    job = world.core.slots.jobs[JOB]
    assert (job.leader, job.ended, job.forgotten) == (leader(1), False, False)
    assert world.rm(allocate(A, 0)).allocated


def test_an_analysis_is_no_sign_of_life_of_a_jobmaster() -> None:
    """R10."""
    world = running()
    world.wait(4.0)
    before = world.core.slots.jobs[JOB]
    world.core.analysing(JOB, world.now)
    assert world.core.slots.jobs[JOB] == before


@pytest.mark.parametrize("about", ["session", "analysis", "cancel", "refused deployment"])
def test_whatever_happens_an_offer_without_an_answer_is_repeated(about: str) -> None:
    """The time of the next try has come, whoever is the first to notice it (m9)."""
    world = CoreWorld()
    world.rm(allocate(A, 0))
    world.outcome(world.ask_of(m.OfferSlots), LOST)
    assert not world.is_asking(m.OfferSlots)
    world.now += 0.5
    if about == "session":
        world.core.session_changed(m.SessionPhase.READY, 2, aged=False, now=world.now)
    elif about == "analysis":
        world.core.analysing(OTHER, world.now)
    elif about == "cancel":
        world.jm(m.CancelTask(job_id=JOB, attempt_id=attempt(9)))
    else:
        with pytest.raises(SlotNotBound):
            world.jm(deploy(B))
    world.ended()
    assert world.is_asking(m.OfferSlots)


# --- sessions --------------------------------------------------------------------------------------------------------


def test_a_job_is_analysed_until_each_of_its_analyses_has_ended() -> None:
    world = CoreWorld()
    for _ in range(2):
        world.core.analysing(JOB, 0.0)
    assert (world.core.keeps(JOB), world.core.keeps(OTHER)) == (True, False)
    world.core.analysed(JOB, 0.0)
    assert world.core.keeps(JOB)
    world.core.analysed(JOB, 0.0)
    assert not world.core.keeps(JOB)


def test_a_standby_keeps_what_was_fetched_and_reserves_nothing() -> None:
    """Whoever needs the TaskManager gets it, and its session is renewed as ever (R32)."""
    world = CoreWorld()
    before = world.core.report()
    world.core.stand_by(JOB)
    assert (world.core.keeps(JOB), world.core.report()) == (True, before)
    world.core.analysing(OTHER, 0.0, exclusive=True)
    with pytest.raises(SessionShared):
        world.core.stand_by(JobId("3" * 32))
    world.core.stood_by(JOB, 0.0)
    assert not world.core.keeps(JOB)


def test_a_session_that_is_to_be_renewed_is_reported_in_a_later_report() -> None:
    """It is not ready for anybody from then on (R6a, R8)."""
    world = CoreWorld()
    world.core.session_changed(m.SessionPhase.READY, 1, aged=True, now=0.0)
    before = world.core.report()
    world.rm(m.RenewSession(reason="its session has aged"))
    after = world.core.report()
    assert (before.session, after.session) == (m.SessionPhase.READY, m.SessionPhase.STARTING)
    assert after.version > before.version


# --- refusals --------------------------------------------------------------------------------------------------------


def refused(world: CoreWorld, message: m.Message, number: int = 1) -> tuple[type[MinflinkError], str, str | None]:
    with pytest.raises(MinflinkError) as error:
        world.rm(message, number)
    return type(error.value), error.value.message, error.value.hint


def test_a_refusal_says_what_is_refused_and_why() -> None:
    """It names who refuses, and what would help."""
    me = task_manager(TM)
    token = "the sender must register with the present leader"
    world = running(jm=2)
    exit_now, cancel = m.ExitTaskManager(reason=""), m.CancelTask(job_id=JOB, attempt_id=attempt(0))
    why = f"{me} refuses ExitTaskManager: its token {leader(9)} is not the present leader's"
    assert refused(world, exit_now, 9) == (Fenced, why, token)
    why = f"{me} refuses CancelTask: its token {leader(1)} is not the present leader's"
    assert refused(world, cancel, 1) == (Fenced, why, token)
    assert refused(world, m.ListTaskManagers())[:2] == (Unreachable, f"{me} does not take ListTaskManagers")
    why = f"{TM}: allocation {B} is not bound to job {JOB}"
    assert refused(world, deploy(B, 5, jm=2), 2) == (SlotNotBound, why, "the job asks for slots again")
    world.core.session_changed(m.SessionPhase.LOST, 1, aged=False, now=0.0)
    why = "the session is not ready"
    assert refused(world, deploy(A, 9, jm=2), 2) == (SessionLost, why, "the TaskManager is starting a new one")


def test_a_session_is_not_renewed_while_anybody_needs_it_and_they_are_named() -> None:
    """R6a."""
    world = CoreWorld()
    renew = m.RenewSession(reason="")
    for job in (OTHER, JOB):
        world.core.analysing(job, 0.0)
    why = f"the session of {TM} is not replaced while it analyses {JOB}, {OTHER}"
    assert refused(world, renew) == (Conflict, why, "ask again when that has ended")
    for key, slot, job in ((A, 0, OTHER), (B, 1, JOB)):
        world.rm(allocate(key, slot, job=job))
    why = f"the session of {TM} is not replaced while slots are taken, by {JOB}, {OTHER}"
    assert refused(world, renew) == (Conflict, why, "ask again when all slots are free")


def test_an_analysis_whose_libraries_do_not_fit_is_refused_with_the_first_of_them() -> None:
    """B31."""
    world = CoreWorld()
    one, two = (tuple(m.Library(f"java:{i}", digest) for i in range(7)) for digest in ("1", "2"))
    world.core.analysing(JOB, 0.0, one)
    with pytest.raises(LibraryConflict) as error:
        world.core.analysing(OTHER, 0.0, two)
    units = "java:0, java:1, java:2, java:3, java:4"
    assert error.value.message == f"the session of {TM} holds another version of {units}"
    assert error.value.hint == "another TaskManager can analyse the job"
    assert not world.core.keeps(OTHER)


def test_a_contradiction_in_the_state_stops_the_core() -> None:
    """It names the machine."""
    world = running()
    world.core._slots.state = replace(world.core.slots, jobs={})
    with pytest.raises(InvariantViolated, match=f"slots of {task_manager(TM)}: allocation {A} of an unknown job"):
        world.jm(m.CancelTask(job_id=OTHER, attempt_id=attempt(9)))
    world = CoreWorld()
    world.core._registration.state = replace(world.core.registration, leader=leader(9))
    with pytest.raises(InvariantViolated, match=f"registration of {task_manager(TM)}: registered with {leader(1)}"):
        world.core.tick(0.5)
    assert world.state(A) is S.FREE
