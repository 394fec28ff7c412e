"""The ResourceManager and the TaskManagers' cores in their asyncio drivers, on a network and a host that fail.

tests/sim/protocol shows how the slot protocol itself behaves under faults. Here the drivers are tested. A JobMaster is
imitated in a few lines.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from minflinkd.jobmaster.scheduler import slot_pool
from minflinkd.jobmaster.scheduler.placement import Bounds, place
from minflinkd.jobmaster.scheduler.slot_pool import Session, SlotPool, Want
from minflinkd.resourcemanager.launcher import Launched, StartFailed
from minflinkd.resourcemanager.options import ResourceManagerOptions
from minflinkd.resourcemanager.resource_manager import ResourceManager
from minflinkd.resourcemanager.sizes import TaskManagerSize
from minflinkd.rpc import messages as m
from minflinkd.rpc.faulty import FaultyNetwork, FaultyWire
from minflinkd.rpc.network import RESOURCE_MANAGER, Address, Mailbox, job_master, task_manager
from minflinkd.runtime.clock import SystemClock
from minflinkd.runtime.errors import MinflinkError
from minflinkd.runtime.ids import AllocationId, IdSource, JobId, LeaderId, ResourceId
from minflinkd.runtime.supervision import TaskOwner
from minflinkd.taskmanager.slots.core import Exit, TaskManagerOptions
from minflinkd.taskmanager.slots.core_driver import OwnCommand
from minflinkd.taskmanager.slots.state import SlotOptions
from tests.task_manager import BareTaskManager
from tests.waiting import WaitedInVain, until

SLOTS = 4
SILENT = 5.0  # in seconds
HOLD = 10.0

R = TypeVar("R")
clock = SystemClock()


async def asked(network: FaultyNetwork, target: str, request: m.Request[R], fence: LeaderId | None) -> R | None:
    try:
        return await network.ask(Address(target), request, timeout=1.0, fence=fence)
    except MinflinkError:
        return None


class TaskManager(BareTaskManager):
    """One of this world. Its session takes a while to start, and it has no tasks."""

    def __init__(self, world: World, resource_id: ResourceId) -> None:
        self._world = world
        super().__init__(
            resource_id,
            world.wire.party(task_manager(resource_id)),
            slots=SLOTS,
            session=m.SessionPhase.STARTING,
            options=TaskManagerOptions(SlotOptions(hold_timeout=HOLD)),
        )

    def commanded_to(self, command: OwnCommand) -> None:
        if isinstance(command, Exit):
            self._world.launcher.end(self.resource_id, command.reason)

    async def start(self) -> None:
        await super().start()
        self.tasks.job("session", self.new_session())

    async def new_session(self) -> None:
        self.enter(m.SessionPhase.STARTING)
        await asyncio.sleep(self._world.rng.uniform(1, 8))
        self.enter(m.SessionPhase.READY)


class Launcher:
    """Starts TaskManagers of this world. Some of them never become ready."""

    def __init__(self, world: World) -> None:
        self.living: dict[ResourceId, TaskManager] = {}
        self.started = 0
        self.failing = 0.0  # probability of a failed start
        self.most = 0  # most processes at a time
        self._world = world

    async def start(self, resource_id: ResourceId, size: TaskManagerSize | None = None) -> None:
        await asyncio.sleep(0.1)
        self.started += 1
        if self._world.rng.random() < self.failing:
            raise StartFailed("out of memory")
        tm = self.living[resource_id] = TaskManager(self._world, resource_id)
        self.most = max(self.most, len(self.living))
        await tm.start()

    async def stop(self, resource_id: ResourceId, *, kill: bool = False) -> None:
        self.end(resource_id, "killed" if kill else "told to exit")

    async def adopt(self) -> tuple[Launched, ...]:
        return tuple(Launched(resource_id, pid=1) for resource_id in self.living)

    async def aclose(self) -> None: ...

    def end(self, resource_id: ResourceId, reason: str) -> None:
        tm = self.living.pop(resource_id, None)
        if tm is not None:
            self._world.background(tm.aclose())
            self._world.resource_manager.task_manager_exited(resource_id, reason)


class Job:
    """A JobMaster that asks for slots and does nothing with them."""

    def __init__(self, world: World, job_id: JobId, groups: dict[str, int]) -> None:
        self.job_id = job_id
        self.leader_id = world.ids.leader()
        self.pool = SlotPool({group: Bounds(slots, slots) for group, slots in groups.items()})
        self._heard: dict[ResourceId, float] = {}
        self._accepted: dict[AllocationId, float] = {}
        self._world = world
        self._tasks = TaskOwner(job_id)
        self._network = world.wire.party(job_master(job_id))
        self._mailbox = Mailbox(job_master(job_id), fence=self.leader_id)
        self._mailbox.on(m.OfferSlots, self._offered)
        self._mailbox.on_notice(m.TaskManagerLost, self._lost)
        self._become(self.pool)

    @property
    def complete(self) -> bool:
        """Whether it holds all slots that it wants."""
        return not self.pool.needs

    async def start(self) -> None:
        self._network.attach(self._mailbox)
        self._tasks.loop("needs", self._declare)
        self._tasks.loop("heartbeats", self._beat)

    async def crash(self) -> None:
        self._network.detach(self._mailbox)
        await self._tasks.aclose()

    async def end(self) -> None:
        """Give everything back, and repeat the messages until they are answered."""
        await self.crash()
        for resource_id in {held.resource_id for held in self.pool.held.values()}:
            request = m.FreeSlots(job_id=self.job_id, allocations=self.pool.on(resource_id), job_ended=True)
            while resource_id in self._world.launcher.living:
                if await asked(self._network, task_manager(resource_id), request, self.leader_id) is not None:
                    break
        ended = m.JobMasterEnded(job_id=self.job_id, leader_id=self.leader_id)
        while await asked(self._network, RESOURCE_MANAGER, ended, None) is None:
            pass

    def _become(self, pool: SlotPool) -> None:
        slot_pool.check_invariants(pool)
        served = place(pool.groups, pool.holdings, present={}, divide=False)
        missing = {
            group: Want(bounds.desired, bounds.desired)
            for group, bounds in pool.groups.items()
            if group not in served or served[group].parallelism < bounds.desired
        }
        self.pool = slot_pool.ask(pool, missing, self._world.ids)

    async def _declare(self) -> None:
        while True:
            request = m.DeclareNeeds(
                job_id=self.job_id,
                leader_id=self.leader_id,
                address=job_master(self.job_id),
                version=self.pool.version,
                needs=self.pool.declaration(),
                held=tuple(self.pool.held),
            )
            self._tasks.job("declare", self._say(RESOURCE_MANAGER, request, None))
            await asyncio.sleep(1)

    async def _say(self, target: str, request: m.Request[Any], fence: LeaderId | None) -> None:
        await asked(self._network, target, request, fence)

    async def _offered(self, request: m.OfferSlots) -> m.OffersAccepted:
        pool = slot_pool.offered(self.pool, Session(request.resource_id, request.address), request.offers)
        accepted = pool.accepted(request.resource_id, request.offers)
        for key in accepted:
            self._accepted.setdefault(key, clock.monotonic())
        self._heard[request.resource_id] = clock.monotonic()
        self._become(pool)
        return m.OffersAccepted(accepted=accepted)

    async def _lost(self, notice: m.TaskManagerLost) -> None:
        self._become(slot_pool.dropped(self.pool, self.pool.on(notice.resource_id)))

    async def _beat(self) -> None:
        while True:
            now = clock.monotonic()
            for resource_id in {held.resource_id for held in self.pool.held.values()}:
                if now - self._heard[resource_id] > SILENT:
                    self._become(slot_pool.dropped(self.pool, self.pool.on(resource_id)))
                else:
                    self._tasks.job(f"beat {resource_id}", self._beat_once(resource_id))
            await asyncio.sleep(1)

    async def _beat_once(self, resource_id: ResourceId) -> None:
        sent = clock.monotonic()
        mine = self.pool.on(resource_id)
        beat = m.HeartbeatFromJobMaster(job_id=self.job_id, leader_id=self.leader_id, allocations=mine)
        answer = await asked(self._network, task_manager(resource_id), beat, self.leader_id)
        if answer is not None:
            self._heard[resource_id] = clock.monotonic()
            gone = tuple(key for key in mine if key not in answer.allocations and self._accepted[key] < sent)
            self._become(slot_pool.dropped(self.pool, gone))


class World:
    def __init__(self, seed: int, **options: Any) -> None:
        self.rng = random.Random(seed)
        self.ids = IdSource(self.rng)
        self.wire = FaultyWire(self.rng)
        self.tasks = TaskOwner("world")
        self.options = ResourceManagerOptions(
            **{"slots_per_tm": SLOTS, "max": 6, "standby": 1, "taskmanager_timeout": 20.0, "start_timeout": 30.0}
            | options
        )
        self.launcher = Launcher(self)
        self.jobs: dict[JobId, Job] = {}
        self.resource_manager = self._new_resource_manager()

    def _new_resource_manager(self) -> ResourceManager:
        return ResourceManager(
            network=self.wire.party(RESOURCE_MANAGER),
            launcher=self.launcher,
            clock=clock,
            ids=self.ids,
            options=self.options,
        )

    def background(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self.tasks.job("background", coroutine)

    async def __aenter__(self) -> World:
        await self.resource_manager.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for job in self.jobs.values():
            await job.crash()
        await self.resource_manager.aclose()
        for tm in list(self.launcher.living.values()):
            await tm.aclose()
        await self.wire.aclose()
        await self.tasks.aclose()

    async def submit(self, **groups: int) -> Job:
        job = Job(self, self.ids.job(), groups)
        self.jobs[job.job_id] = job
        await job.start()
        return job

    async def restart_resource_manager(self) -> None:
        """Start a new ResourceManager that knows nothing (R12)."""
        await self.resource_manager.aclose()
        self.resource_manager = self._new_resource_manager()
        await self.resource_manager.start()

    def free_slots(self) -> int:
        return sum(1 for tm in self.launcher.living.values() for slot in tm.table.report() if slot.job_id is None)

    def served(self) -> bool:
        """Whether every job holds what it wants, and the TaskManagers agree."""
        return all(
            job.complete
            and all(
                held.resource_id in self.launcher.living
                and key in self.launcher.living[held.resource_id].table.bindings
                for key, held in job.pool.held.items()
            )
            for job in self.jobs.values()
        )

    def agreed(self) -> bool:
        """Whether the ResourceManager's view equals the slot tables, and no slot is held that no job holds (R12)."""
        shown = self.resource_manager.snapshot().resources.task_managers
        registered = {key for key, tm in shown.items() if tm.registered}
        if registered != set(self.launcher.living):
            return False
        wanted = {key for job in self.jobs.values() for key in job.pool.held}
        for resource_id, tm in self.launcher.living.items():
            view = [slot.allocation_id for slot in shown[resource_id].slots]
            truth = [slot.allocation_id for slot in tm.table.report()]
            if view != truth or not {key for key in truth if key is not None} <= wanted:
                return False
        return True

    def story(self) -> list[str]:
        """Describe the state of all parties, with the last messages."""
        shown = self.resource_manager.snapshot().resources
        return [
            *(f"{job.job_id} needs {dict(job.pool.needs)}, holds {dict(job.pool.held)}" for job in self.jobs.values()),
            *(f"{key} {tm.phase}: {dict(tm.table.bindings)}" for key, tm in self.launcher.living.items()),
            *(f"{key} seen as {tm.state} {tm.slots}" for key, tm in shown.task_managers.items()),
            *self.wire.journal[-50:],
        ]

    async def within(self, seconds: float, condition: Callable[[], bool]) -> float:
        """Wait for the condition. Return how many seconds it took."""
        began = clock.monotonic()
        try:
            await until(condition, timeout=seconds, pause=0.1, patience=1.0)
        except WaitedInVain as error:
            error.add_note("\n".join(self.story()))
            raise
        return clock.monotonic() - began
