"""The core of a TaskManager under messages of earlier and later leaders in any order. Some answers are lost."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from minflinkd.rpc import messages as m
from minflinkd.rpc.network import Fenced
from minflinkd.rpc.party import Answered, Ask, Refused
from minflinkd.runtime.errors import MinflinkError
from minflinkd.runtime.ids import AllocationId, AttemptId, JobId, LeaderId
from minflinkd.taskmanager.slots import machine as slot_machine
from minflinkd.taskmanager.slots import registration
from minflinkd.taskmanager.slots.core import FromResourceManager
from minflinkd.taskmanager.slots.events import Adopted, EndTasks, StartTask, Tick
from minflinkd.taskmanager.slots.state import SlotOptions, Slots
from minflinkd.taskmanager.slots.table import SlotState
from tests.shortened import examples
from tests.unit.taskmanager.core_world import (
    JOB,
    LOST,
    NO_WAY,
    OTHER,
    SLOTS,
    CoreWorld,
    allocate,
    attempt,
    deploy,
    leader,
    registered,
)

KEYS = [AllocationId(name) for name in "abcdef"]
SOME = st.lists(st.sampled_from(KEYS), max_size=3, unique=True).map(tuple)
FATES = st.sampled_from(["answered", "answered", "answered", "lost", "cut", "no"])
JOBS = st.sampled_from([JOB, OTHER])
SECONDS = st.sampled_from([0.0, 0.1, 0.1, 0.1, 1.0, 1.0, 1.0, 4.0, 6.0, 11.0, 40.0])


class AnyOrder(RuleBasedStateMachine):
    """Rules for slots and leaders under any order of messages (R30).

    No slot is given twice. No task runs on slots that do not belong to its job, or that another JobMaster has accepted
    without adopting the task. A message of a lower leader changes nothing.

    `known` records which JobMaster knows of which slots. It is built from messages alone, apart from the code under
    test. A JobMaster knows slots that the ResourceManager promised it, that it was offered, or that it named in a
    heartbeat. A deployment adds nothing to `known`, because deployments are judged by it. Slots that a JobMaster gave
    back, or that the TaskManager reports as free, are known to nobody.
    """

    def __init__(self) -> None:
        super().__init__()
        self.world = CoreWorld(slots=SlotOptions(orphan_timeout=60.0))
        self.known: dict[AllocationId, tuple[JobId, LeaderId]] = {}
        self.fenced = False  # the last message was refused: another leader is followed
        self.running: dict[AttemptId, m.DeployTask] = {}  # their processes live
        self.ending: set[AttemptId] = set()
        self.leaders: dict[AttemptId, LeaderId] = {}  # who deployed each attempt, or has adopted it since
        self.attempts = 0  # number of attempts deployed so far
        self.last_offers: dict[JobId, int] = {}
        self.seen = self.world.core.report()

    # --- what happens ------------------------------------------------------------------------------------------------

    def send(self, message: m.Message, fence: LeaderId, followed: LeaderId | None) -> Any:
        before = self.world.core.slots, self.world.core.report(), self.world.core.registration
        self.fenced = False
        try:
            answer = self.world.rm(message, int(fence))
        except Fenced:
            self.fenced = True
            assert fence != followed
            assert (self.world.core.slots, self.world.core.report(), self.world.core.registration) == before
            return None
        except MinflinkError:
            answer = None
        assert followed is None or fence >= followed
        assert fence == followed or not isinstance(message, FromResourceManager)
        self.carry_out()
        return answer

    def from_rm(self, message: m.Message, number: int) -> Any:
        return self.send(message, leader(number), self.world.core.registration.leader)

    def from_jm(self, job: JobId, message: m.Message, number: int) -> Any:
        known = self.world.core.slots.jobs.get(job)
        return self.send(message, leader(number), known.leader if known is not None else None)

    def carry_out(self) -> None:
        for command in self.world.take(object):
            if isinstance(command, StartTask):
                deployment = command.deployment
                by = (deployment.job.job_id, deployment.job_leader_id)
                assert self.known.get(deployment.allocation_id) == by, "a task starts on slots that are not its own"
                assert deployment.attempt_id not in self.running
                task = (deployment.job.job_id, deployment.task.id)
                running = {(d.job.job_id, d.task.id) for d in self.running.values()}
                assert task not in running, "a task starts while an earlier attempt of it runs"
                self.running[deployment.attempt_id] = deployment
                self.leaders[deployment.attempt_id] = deployment.job_leader_id
            elif isinstance(command, Adopted):
                assert set(command.attempts) <= self.running.keys() - self.ending
                assert all(self.leaders[attempt_id] < command.leader for attempt_id in command.attempts)
                self.leaders |= dict.fromkeys(command.attempts, command.leader)
            elif isinstance(command, Ask) and isinstance(command.request, m.OfferSlots):
                job = JOB if command.target.endswith(JOB) else OTHER
                assert command.request.version > self.last_offers.get(job, 0)
                self.last_offers[job] = command.request.version
                assert command.fence is not None
                self.known |= dict.fromkeys((o.allocation_id for o in command.request.offers), (job, command.fence))
            elif isinstance(command, EndTasks):
                assert not self.ending & set(command.attempts)
                assert set(command.attempts) <= self.running.keys()
                self.ending |= set(command.attempts)
        held = {slot.allocation_id for slot in self.world.core.report().slots}
        self.known = {key: by for key, by in self.known.items() if key in held}

    # Messages mostly come from the present leader and concern existing slots. Otherwise little would ever happen.

    def some_rm(self, data: st.DataObject) -> int:
        return self.around(data, self.world.core.registration.leader)

    def some_jm(self, data: st.DataObject, job: JobId) -> int:
        known = self.world.core.slots.jobs.get(job)
        return self.around(data, known.leader if known is not None else None)

    def around(self, data: st.DataObject, present: LeaderId | None) -> int:
        number = int(present or 1)
        return data.draw(st.sampled_from([number] * 8 + [max(number - 1, 1), number + 1]))

    def some_key(self, data: st.DataObject, job: JobId) -> AllocationId:
        return data.draw(st.sampled_from([*self.world.core.slots.table.of_job(job) * 4, *KEYS]))

    @rule(data=st.data(), job=JOBS, own=st.sampled_from([False] * 9 + [True]))
    def allocate(self, data: st.DataObject, job: JobId, own: bool) -> None:
        free = [s.index for s in self.world.core.report().slots if s.allocation_id is None]
        slots = data.draw(st.sets(st.sampled_from([*free * 4, -1, *range(SLOTS + 1)]), max_size=2))
        request = allocate(self.some_key(data, job), *slots, job=job, jm=self.some_jm(data, job), exclusive=own)
        answer = self.from_rm(request, self.some_rm(data))
        if answer is not None and answer.allocated:
            mine = {s.index for s in answer.report.slots if s.allocation_id == request.allocation_id}
            assert mine == slots
            assert answer.report.dedicated_to in (None, job)
            self.known[request.allocation_id] = (job, request.job_leader_id)

    @rule(job=JOBS, beats=st.integers(0, 2))
    def get_slots_and_run(self, job: JobId, beats: int) -> None:
        """The usual course of events, so that there is something to lose."""
        core = self.world.core
        free = [s.index for s in core.report().slots if s.allocation_id is None]
        unused = [key for key in KEYS if key not in core.slots.table.bindings]
        known = core.slots.jobs.get(job)
        jm = int(known.leader) if known is not None and known.leader else 1
        if free and unused and core.registration.leader:
            self.from_rm(allocate(unused[0], free[0], job=job, jm=jm), int(core.registration.leader))
        for _ in range(beats):
            keys = core.slots.table.of_job(job)
            self.known |= dict.fromkeys(keys, (job, leader(jm)))
            self.from_jm(job, m.HeartbeatFromJobMaster(job_id=job, leader_id=leader(jm), allocations=keys), jm)
        for key in core.slots.table.of_job(job, SlotState.ACTIVE):
            self.attempts += 1
            self.from_jm(job, deploy(key, self.attempts, job=job, jm=jm, task=key), jm)

    @rule(data=st.data(), job=JOBS)
    def announce(self, data: st.DataObject, job: JobId) -> None:
        self.from_rm(m.JobMasterChanged(job_id=job, leader_id=leader(self.some_jm(data, job))), self.some_rm(data))

    @rule(data=st.data(), job=JOBS, knows=st.sampled_from(["all", "all", "all", "some"]))
    def beat(self, data: st.DataObject, job: JobId, knows: str) -> None:
        keys = self.world.core.slots.table.of_job(job) if knows == "all" else data.draw(SOME)
        jm = self.some_jm(data, job)
        known = self.world.core.slots.jobs.get(job)
        if known is None or leader(jm) >= known.leader:  # otherwise it is fenced, and its message has no effect
            mine = self.world.core.slots.table.of_job(job)  # it cannot name another job's slots
            self.known |= {key: (job, leader(jm)) for key in keys if key in mine}
        self.from_jm(job, m.HeartbeatFromJobMaster(job_id=job, leader_id=leader(jm), allocations=keys), jm)

    @rule(data=st.data(), job=JOBS, older=st.sampled_from([0, 0, 0, 1]), task=st.sampled_from("tu"))
    def deploy(self, data: st.DataObject, job: JobId, older: int, task: str) -> None:
        """The attempt is new, or one that was deployed before. The slots may be another job's, or nobody's."""
        self.attempts += 1 - older
        jm, key = self.some_jm(data, job), self.some_key(data, job)
        self.from_jm(job, deploy(key, self.attempts, job=job, jm=jm, task=task), jm)

    @rule(data=st.data(), job=JOBS)
    def deploy_before_the_offer(self, data: st.DataObject, job: JobId) -> None:
        """A new JobMaster deploys at once on its predecessor's slots, although it was not offered them."""
        jm = self.some_jm(data, job) + 1
        rm = int(self.world.core.registration.leader or 1)
        self.attempts += 1
        key = self.some_key(data, job)
        self.from_rm(m.JobMasterChanged(job_id=job, leader_id=leader(jm)), rm)
        self.from_jm(job, deploy(key, self.attempts, job=job, jm=jm, task=key), jm)

    @rule(data=st.data(), job=JOBS)
    def cancel(self, data: st.DataObject, job: JobId) -> None:
        number = data.draw(st.integers(max(self.attempts - 4, 0), self.attempts + 1))
        jm = self.some_jm(data, job)
        self.from_jm(job, m.CancelTask(job_id=job, attempt_id=attempt(number)), jm)

    @rule(data=st.data(), job=JOBS, ended=st.sampled_from([False] * 5 + [True]))
    def free(self, data: st.DataObject, job: JobId, ended: bool) -> None:
        """Slots that were given back get no new task, even if their tasks have not ended yet."""
        request = m.FreeSlots(job_id=job, allocations=(self.some_key(data, job),), job_ended=ended)
        self.from_jm(job, request, self.some_jm(data, job))
        if not self.fenced:
            given = {key for key, (owner, _) in self.known.items() if owner == job}
            given &= given if ended else set(request.allocations)
            self.known = {key: by for key, by in self.known.items() if key not in given}

    @precondition(lambda self: self.world.asks)
    @rule(data=st.data(), whole=st.sampled_from([True, True, True, False]), fate=FATES)
    def answer(self, data: st.DataObject, whole: bool, fate: str) -> None:
        """Answer any request that has no outcome yet, however old it is."""
        ask: Ask = data.draw(st.sampled_from(self.world.asks))
        before = self.world.core.registration.leader or ""
        match ask.request:
            case m.OfferSlots(offers=offers):
                keys = tuple(o.allocation_id for o in offers) if whole else data.draw(SOME)
                value: object = m.OffersAccepted(accepted=keys)
            case m.RegisterTaskManager():
                masters = {JOB: leader(self.some_jm(data, JOB))}
                value = registered(self.some_rm(data), job_masters=masters)
            case _:
                value = m.HeartbeatAnswer(job_masters={OTHER: leader(self.some_jm(data, OTHER))})
        outcomes = {"answered": Answered(value), "lost": LOST, "cut": NO_WAY, "no": Refused(Fenced("no"))}
        self.world.outcome(ask, outcomes[fate])
        assert (self.world.core.registration.leader or "") >= before
        self.carry_out()

    @precondition(lambda self: self.world.is_asking(m.OfferSlots))
    @rule()
    def accept(self) -> None:
        """Accept the last offer as a whole."""
        ask, keys = self.world.ask_of(m.OfferSlots), self.world.offered()
        self.world.answer(ask, m.OffersAccepted(accepted=keys))
        self.carry_out()

    @precondition(lambda self: self.running)
    @rule(data=st.data(), failed=st.booleans())
    def attempt_ends(self, data: st.DataObject, failed: bool) -> None:
        """An attempt ends on command or by itself."""
        ended = data.draw(st.sampled_from(sorted(self.running)))
        del self.running[ended]
        self.ending.discard(ended)
        self.world.core.attempt_ended(ended, self.world.now, failed=failed)
        self.world.ended()
        self.carry_out()

    @precondition(lambda self: self.world.core.slots.unheard)
    @rule(data=st.data())
    def failure_is_taken(self, data: st.DataObject) -> None:
        taken = data.draw(st.sampled_from(sorted(self.world.core.slots.unheard)))
        self.world.core.failure_taken(taken, self.world.now)
        self.carry_out()

    @rule(seconds=SECONDS)
    def time_passes(self, seconds: float) -> None:
        """Time may pass unnoticed, as for a stopped process."""
        self.world.now += seconds
        self.world.core.tick(self.world.now)
        self.world.ended()
        self.carry_out()

    @rule(phase=st.sampled_from([m.SessionPhase.READY] * 5 + [m.SessionPhase.LOST]))
    def session_changes(self, phase: m.SessionPhase) -> None:
        self.world.core.session_changed(phase, 1, aged=False, now=self.world.now)
        self.carry_out()

    # --- what holds --------------------------------------------------------------------------------------------------

    @invariant()
    def slots_that_run_something_are_not_free_and_not_anothers(self) -> None:
        table = self.world.core.slots.table
        for deployment in self.running.values():
            assert table.bindings[deployment.allocation_id].job_id == deployment.job.job_id
        held = [s for b in table.bindings.values() for s in b.slots]
        assert len(held) == len(set(held))

    @invariant()
    def what_may_go_on_belongs_to_the_present_jobmaster_or_waits_for_the_next_one(self) -> None:
        slots = self.world.core.slots
        for key in self.running.keys() - self.ending:
            deployment = self.running[key]
            state = slots.table.bindings[deployment.allocation_id].state
            assert state is not SlotState.RELEASING
            assert state is not SlotState.ACTIVE or slots.jobs[deployment.job.job_id].leader == self.leaders[key]

    @invariant()
    def reports_tell_by_their_version_which_is_later(self) -> None:
        """R8."""
        report = self.world.core.report()
        assert (report.version > self.seen.version) == (report != self.seen)
        self.seen = report

    @invariant()
    def time_alone_changes_slots_at_the_time_that_was_named_and_not_before(self) -> None:
        """An earlier wake-up would be for nothing, perhaps again and again; a later one, too late (R13)."""
        slots, now = self.world.core.slots, self.world.now
        due = slot_machine.next_wakeup(slots)
        if due is None or due > now:
            before = now + 1e6 if due is None else math.nextafter(due, 0.0)
            assert slot_machine.step(slots, Tick(), before) == (slots, ())
        if due is not None:
            later, _ = slot_machine.step(slots, Tick(), max(due, now))
            assert later != slots
            assert slot_machine.step(later, Tick(), max(due, now)) == (later, ())

    @invariant()
    def time_alone_changes_the_registration_at_the_time_that_was_named_and_not_before(self) -> None:
        """R10."""
        state = self.world.core.registration
        due = registration.next_wakeup(state)
        assert due is not None
        if due > self.world.now:
            assert registration.step(state, registration.Tick(), math.nextafter(due, 0.0)) == (state, ())
        assert registration.step(state, registration.Tick(), max(due, self.world.now))[0] != state

    def teardown(self) -> None:
        """Without any messages, it has no slot taken and knows no job after a bounded time (R15)."""
        for _ in range(20):
            self.world.wait(10.0, rm=False)
            for ask in list(self.world.asks):
                self.world.outcome(ask, LOST)
            self.carry_out()
            for ended in sorted(self.ending):
                del self.running[ended]
                self.world.core.attempt_ended(ended, self.world.now)
            self.ending.clear()
        slots = self.world.core.slots
        assert not slots.table.bindings
        assert not slots.attempts
        assert not slots.jobs


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(
    max_examples=examples(100), stateful_step_count=60, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


class WithoutTheEnd(AnyOrder):
    """Leaves out the check at the end.

    A planted fault would break it too, and would be reported in place of the rule.
    """

    def teardown(self) -> None: ...


def on_anothers_slots(slots: Slots, request: m.DeployTask) -> str:
    """A planted fault: whoever knows an allocation may deploy on it."""
    binding = slots.table.bindings.get(request.allocation_id)
    mine = binding is not None and binding.job_id == request.job.job_id
    return "" if binding is not None and not mine and request.job.job_id in slots.jobs else FAULT_OF(slots, request)


def on_slots_given_back(slots: Slots, request: m.DeployTask) -> str:
    """A planted fault: until an earlier task has ended on them, slots that were given back count as the job's."""
    fault = FAULT_OF(slots, request)
    return "" if "is RELEASING" in fault else fault


def under_another_jobmaster(slots: Slots, request: m.DeployTask) -> str:
    """A planted fault: a later JobMaster may use an earlier one's slots without an offer."""
    fault = FAULT_OF(slots, request)
    return "" if "is HELD" in fault or "under another JobMaster" in fault else fault


FAULT_OF = Slots.fault_of


@pytest.mark.parametrize("planted", [on_anothers_slots, on_slots_given_back, under_another_jobmaster])
def test_the_rule_finds_a_taskmanager_that_starts_tasks_on_slots_of_others(
    planted: Callable[[Slots, m.DeployTask], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record kept here finds it. The core's own check of its invariants is switched off."""
    monkeypatch.setattr(Slots, "fault_of", planted)
    monkeypatch.setattr("minflinkd.taskmanager.slots.core.check_invariants", lambda _: None)
    longer = settings(
        TestAnyOrder.settings, max_examples=1000, derandomize=True, database=None, phases=[Phase.generate]
    )
    with pytest.raises(AssertionError, match=r"a task starts (on slots that are not its own|while an earlier attempt)"):
        run_state_machine_as_test(WithoutTheEnd, settings=longer)
