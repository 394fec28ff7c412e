"""Looks again and again for what may happen, but must not last: attempts that nobody wants, slots that are gone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from minflinkd.jobmaster.errands import RETRY_PAUSE
from minflinkd.rpc.network import job_master
from minflinkd.runtime.ids import AllocationId, AttemptId, JobId, ResourceId
from minflinkd.taskmanager.slots.table import SlotState
from tests.sim.protocol.journal import Violation
from tests.sim.protocol.rest import is_wanted
from tests.sim.protocol.task_manager import LIVE, TaskManagerParty

if TYPE_CHECKING:
    from tests.sim.protocol.world import World

INTERVAL = 0.5  # seconds between two looks
MARGIN = 1.5  # seconds for messages and for the looks themselves


@dataclass(frozen=True)
class _Held:
    """Slots that wait for their job's next JobMaster."""

    heard: float  # when the TaskManager last heard, or heard of, a JobMaster of the job
    limit: float  # seconds that they may wait; longer if something of the job is on them
    lasted: float = 0.0


class Watch:
    """Counts for how long each of them has lasted. Only time counts in which the parties could have noticed."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._unwanted: dict[AttemptId, float] = {}  # in seconds
        self._beaten: dict[AttemptId, float] = {}  # the same, while their JobMaster has heartbeats with the TaskManager
        self._heard: dict[AttemptId, float] = {}  # when the TaskManager last heard a JobMaster of the job
        self._dead: dict[tuple[JobId, ResourceId], float] = {}
        self._gone: dict[AllocationId, float] = {}
        self._held: dict[AllocationId, _Held] = {}
        self._awaited: set[tuple[ResourceId, JobId]] = set()  # of which something runs there, or has failed
        self._beats = 2 * world.plan.heartbeat_interval + MARGIN
        self._repeat = world.plan.heartbeat_timeout / 2 + RETRY_PAUSE  # until a request without answer is sent again
        self._limit = world.plan.heartbeat_timeout + self._beats
        # Tasks wait for their next JobMaster for so long (A14), or until the ResourceManager tells them better.
        self._orphaned = self._limit + world.plan.orphan_timeout

    def begin(self) -> None:
        self._world.universe.engine.after(INTERVAL, self._look)

    def _look(self) -> None:
        self._look_for_unwanted_attempts()
        self._look_for_dead_task_managers()
        self._look_for_slots_that_are_gone()
        self._look_for_slots_that_are_held()
        self._world.universe.engine.after(INTERVAL, self._look)

    def _look_for_unwanted_attempts(self) -> None:
        """No attempt may run on for long that its JobMaster gave up, or whose JobMaster is gone (R10, R13)."""
        wire = self._world.universe.wire
        unwanted, beaten, heard = dict[AttemptId, float](), dict[AttemptId, float](), dict[AttemptId, float]()
        for tm in self._world.task_managers():
            for attempt_id, attempt in tm.attempts.items():
                if attempt.state not in LIVE or is_wanted(self._world, attempt_id):
                    continue
                job_id = attempt.deployment.job.job_id
                master = self._world.jobs[job_id].master
                fair = not tm.stopped and (
                    master is None or (not master.stopped and wire.is_calm(tm.address, job_master(job_id)))
                )
                beats = master is not None and bool(master.core.state.pool.on(tm.resource_id))
                heard[attempt_id] = tm.core.slots.jobs[job_id].heard
                # A heartbeat that was under way for long makes the TaskManager wait as long again.
                late = not beats and heard[attempt_id] != self._heard.get(attempt_id, heard[attempt_id])
                lasted = 0.0 if late else self._unwanted.get(attempt_id, 0.0)
                unwanted[attempt_id] = lasted = lasted + fair * INTERVAL
                if lasted > self._orphaned:
                    raise Violation(f"{tm.address} runs {attempt_id} for {self._orphaned:g} s for nobody")
                if master is None or not fair or not beats:
                    continue  # counted anew after bad weather
                beaten[attempt_id] = known = self._beaten.get(attempt_id, 0.0) + INTERVAL
                # One cancellation may be lost, if it was sent at all.
                limit = self._beats + (self._repeat if attempt_id in master.cancelled else 0.0)
                if known > limit:
                    raise Violation(f"{tm.address} runs {attempt_id}, and its JobMaster knows it for {limit:g} s")
        self._unwanted, self._beaten, self._heard = unwanted, beaten, heard

    def _look_for_dead_task_managers(self) -> None:
        """A JobMaster must notice soon that a TaskManager with its slots is gone (R10, R11)."""
        dead: dict[tuple[JobId, ResourceId], float] = {}
        for master in self._world.job_masters():
            for resource_id in {held.resource_id for held in master.core.state.pool.held.values()}:
                if self._world.task_manager(resource_id) is None:
                    key = master.job.job_id, resource_id
                    dead[key] = lasted = self._dead.get(key, 0.0) + (not master.stopped) * INTERVAL
                    if lasted > self._limit:
                        raise Violation(
                            f"{master.address} has slots of {resource_id} for {self._limit:g} s, it is gone"
                        )
        self._dead = dead

    def _look_for_slots_that_are_gone(self) -> None:
        """A JobMaster must learn with its next heartbeats that a TaskManager does not hold its slots (R10)."""
        gone: dict[AllocationId, float] = {}
        for master in self._world.job_masters():
            for allocation, held in master.core.state.pool.held.items():
                tm = self._world.task_manager(held.resource_id)
                if tm is None or allocation in tm.core.slots.kept_for(master.job.job_id):
                    continue
                calm = self._world.universe.wire.is_calm(tm.address, master.address)
                if tm.stopped or master.stopped or not calm:
                    continue  # counted anew after bad weather
                gone[allocation] = lasted = self._gone.get(allocation, 0.0) + INTERVAL
                if lasted > self._beats:
                    raise Violation(f"{master.address} has slots for {self._beats:g} s that {tm.address} does not hold")
        self._gone = gone

    def _look_for_slots_that_are_held(self) -> None:
        """Slots wait for the next JobMaster only for a while, and for less time if nothing of the job is on them."""
        held, awaited = dict[AllocationId, _Held](), set[tuple[ResourceId, JobId]]()
        for tm in self._world.task_managers():
            awaited |= {(tm.resource_id, j) for j in tm.core.slots.jobs if tm.core.slots.awaited_by(j)}
            for allocation, binding in tm.core.slots.table.bindings.items():
                if binding.state is not SlotState.HELD:
                    continue
                # What is gone now may have been there when the slots were first held.
                late = (tm.resource_id, binding.job_id) in awaited | self._awaited
                known = self._waits(tm, allocation, binding.job_id, late=late)
                held[allocation] = known = replace(known, lasted=known.lasted + (not tm.stopped) * INTERVAL)
                if known.lasted > known.limit + MARGIN:
                    raise Violation(f"{tm.address} holds slots for {known.limit:g} s, and no JobMaster comes for them")
        self._held, self._awaited = held, awaited

    def _waits(self, tm: TaskManagerParty, allocation: AllocationId, job_id: JobId, *, late: bool) -> _Held:
        """Return for how long the slots have waited, counted anew with each JobMaster that is heard."""
        plan, heard = self._world.plan, tm.core.slots.jobs[job_id].heard
        known = self._held.get(allocation, _Held(heard, plan.hold_timeout))
        limit = max(known.limit, plan.orphan_timeout if late else plan.hold_timeout)
        return _Held(heard, limit, known.lasted if known.heard == heard else 0.0)
