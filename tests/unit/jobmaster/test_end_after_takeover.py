"""A job that is to end under a new JobMaster, while attempts of its predecessor may still run (R13, R26)."""

from __future__ import annotations

import random

import pytest

from minflinkd.jobmaster.options import JobMasterOptions
from minflinkd.jobmaster.scheduler import events as ev
from minflinkd.jobmaster.scheduler.machine import next_wakeup, step
from minflinkd.jobmaster.scheduler.state import check_invariants, new_job
from minflinkd.rpc.messages import SlotOffer
from minflinkd.runtime.ids import AllocationId, Chance, IdSource, ResourceId
from tests.unit.jobmaster.wide_job import TM1, TM2, of_kind, task


class Heir:
    """A JobMaster with heartbeat.timeout 5 s and task.cancellation.timeout 30 s that starts at 100 s."""

    def __init__(self, *, recovered: bool, cancelled: bool) -> None:
        rng = random.Random(7)
        self.chance, self.now = Chance(IdSource(rng), rng), 100.0
        options = JobMasterOptions(heartbeat_timeout=5, cancellation_timeout=30)
        self.state = new_job((task("a", 2, "a"), task("b", 1, "b")), options)
        self.began = self.feed(ev.Started(recovered=recovered, cancelled=cancelled))

    def feed(self, event: ev.Event) -> list[ev.Command]:
        self.state, commands = step(self.chance, self.state, event, self.now)
        check_invariants(self.state)
        return list(commands)

    def offer(self, resource: ResourceId, slots: int) -> list[ev.Command]:
        """Offer slots of an earlier JobMaster's allocation. The TaskManager has ended what ran there."""
        offers = (SlotOffer(allocation_id=AllocationId(f"of-{resource}"), slots=tuple(range(slots))),)
        return self.feed(ev.SlotsOffered(resource, f"taskmanager/{resource}", offers))

    def settles(self) -> tuple[float, list[ev.Command]]:
        """Wait until the sinks are settled. Return the time and the commands."""
        due = next_wakeup(self.state, self.now)
        assert due is not None
        self.now = due
        commands = self.feed(ev.Tick())
        assert of_kind(ev.SettleSinks, commands)
        return due, commands


def test_the_slots_of_a_cancelled_job_are_taken_to_be_given_back_for_good_before_its_sinks_are_settled() -> None:
    heir = Heir(recovered=True, cancelled=True)
    assert of_kind(ev.SettleSinks, heir.began) == []
    assert heir.state.pool.needs == {}
    heir.now = 110.0
    assert heir.offer(TM1, 2) == []
    heir.now = 112.0
    assert heir.offer(TM2, 1) == []
    at, commands = heir.settles()
    assert at == 117.0
    assert of_kind(ev.FreeAllocations, commands) == [
        ev.FreeAllocations(f"taskmanager/{tm}", (AllocationId(f"of-{tm}"),), job_ended=True) for tm in (TM1, TM2)
    ]


def test_a_job_that_is_cancelled_soon_after_its_jobmaster_came_is_no_different() -> None:
    heir = Heir(recovered=True, cancelled=False)
    heir.now = 101.0
    assert of_kind(ev.SettleSinks, heir.feed(ev.CancelRequested())) == []
    assert heir.offer(TM1, 2) == []
    assert heir.settles()[0] == 106.0


@pytest.mark.parametrize(("recovered", "at"), [(True, 135.0), (False, 105.0)])
def test_taskmanagers_that_never_come_are_not_waited_for_for_ever(recovered: bool, at: float) -> None:
    """Absent TaskManagers may still run something.

    Without a checkpoint nothing that an old attempt left is ever used (A5).
    """
    heir = Heir(recovered=recovered, cancelled=True)
    assert heir.settles()[0] == at
    assert heir.offer(TM1, 2) == []
    assert heir.state.pool.held == {}


def test_a_first_jobmaster_waits_for_nobody() -> None:
    heir = Heir(recovered=False, cancelled=False)
    assert of_kind(ev.SettleSinks, heir.feed(ev.CancelRequested()))
