"""What a JobMaster's core remembers, and when it sends messages."""

from __future__ import annotations

import random

from minflinkd.jobgraph.model import Checkpointing, RestartStrategy, RuntimeMode
from minflinkd.jobmaster.core import JobMasterCore
from minflinkd.jobmaster.options import JobMasterOptions
from minflinkd.jobmaster.scheduler import events as ev
from minflinkd.rpc import messages as m
from minflinkd.rpc.party import Ask
from minflinkd.runtime.ids import Chance, IdSource, JobId, TaskId
from tests.unit.jobmaster.wide_job import BOOM, TM1, task

JOB = JobId("1" * 32)


def new_core() -> JobMasterCore:
    """Return the core of a job with one task."""
    rng = random.Random(7)
    ids = IdSource(rng)
    context = m.JobContext(
        job_id=JOB,
        name="copy",
        params={},
        mode=RuntimeMode.STREAMING,
        checkpointing=Checkpointing(),
        checkpoint_root="file:///nowhere",
    )
    return JobMasterCore(
        job_id=JOB,
        leader_id=ids.leader(),
        tasks=(task("a", 1, "a"),),
        context=context,
        options=JobMasterOptions(restart_strategy=RestartStrategy(jitter_factor=0.0)),
        chance=Chance(ids, rng),
    )


def test_the_phases_of_attempts_that_others_have_followed_are_forgotten() -> None:
    """A job that restarts for years needs no more memory for it."""
    core = new_core()
    core.feed(ev.Started(), 0.0)
    (need,) = core.state.pool.needs
    core.feed(ev.SlotsOffered(TM1, "taskmanager/tm-1", (m.SlotOffer(allocation_id=need, slots=(0,)),)), 0.0)
    for now in (100.0, 200.0, 300.0):
        core.feed(ev.RestorePointFound(core.state.round, None, {}), now)
        attempt = core.state.executions[TaskId("a")].attempt_id
        assert attempt is not None
        for state, error in ((m.TaskState.RUNNING, None), (m.TaskState.FAILED, BOOM)):
            status = m.TaskStatus(
                attempt_id=attempt, task_id=TaskId("a"), state=state, error=error, phases={"build": now}
            )
            core.receive(m.TaskStateChanged(resource_id=TM1, status=status), core.leader_id, now)
            assert core.task_phases == {attempt: {"build": now}}
        core.feed(ev.Tick(), now + 50)


def test_what_changes_in_the_needs_is_declared_at_once() -> None:
    """A ResourceManager that still believes in a served need would give the slots a second time (m1, m13)."""
    core = new_core()

    def declared() -> list[m.DeclareNeeds]:
        asks = (command for command in core.take_commands() if isinstance(command, Ask))
        return [ask.request for ask in asks if isinstance(ask.request, m.DeclareNeeds)]

    core.feed(ev.Started(), 0.0)
    (first,) = declared()
    (need,) = first.needs
    offer = m.SlotOffer(allocation_id=need.allocation_id, slots=(0,))
    core.receive(m.OfferSlots(resource_id=TM1, address="taskmanager/tm-1", offers=(offer,)), core.leader_id, 0.1)
    (second,) = declared()
    assert (second.needs, second.held) == ((), (need.allocation_id,))
    assert second.version > first.version
    core.feed(ev.Tick(), 0.2)
    assert declared() == []
