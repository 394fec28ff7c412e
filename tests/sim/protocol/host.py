"""The host that starts and kills TaskManagers. It stands for a TaskManagerLauncher, and is slow and fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minflinkd.resourcemanager.sizes import TaskManagerSize
from minflinkd.runtime.ids import ResourceId
from tests.sim.protocol.profiles import PROFILES
from tests.sim.protocol.task_manager import TaskManagerParty

if TYPE_CHECKING:
    from tests.sim.protocol.resource_manager import ResourceManagerParty
    from tests.sim.protocol.world import World

GRACE = 3.0  # seconds after which a process that was told to exit is killed
NOTICED = 0.05  # seconds until the end of a process is noticed
BACK = 1.0  # seconds until systemd restarts a standalone TaskManager


class Host:
    def __init__(self, world: World) -> None:
        self._world = world
        self._engine = world.universe.engine
        self._starting: dict[ResourceId, TaskManagerSize | None] = {}  # the processes that have not registered yet
        self._standalone = 0  # number of those that have started by themselves
        self._pids = 0

    def living(self) -> tuple[ResourceId, ...]:
        """Return what a driver finds: everything that it started and that has not ended."""
        mine = (tm.resource_id for tm in self._world.task_managers() if not tm.standalone)
        return tuple(sorted({*self._starting, *mine}))

    def start(self, by: ResourceManagerParty, resource_id: ResourceId, size: TaskManagerSize | None) -> None:
        rng, plan = self._world.universe.rng, self._world.plan
        self._starting[resource_id] = size
        if rng.random() >= plan.start_failures:
            self._engine.after(self._world.start_delay(), self._started, resource_id)
            return
        match rng.choice(("refused", "exits", "hangs")):
            case "refused":
                self._starting.pop(resource_id, None)
                by.after(0.01, by.step, self._failed, by, resource_id)
            case "exits":
                self._engine.after(self._world.start_delay(), self._ended_early, resource_id)
            case "hangs":
                self._world.universe.note("{} HANGS and never registers", resource_id)

    def _failed(self, by: ResourceManagerParty, resource_id: ResourceId) -> None:
        by.core.start_failed(resource_id, "the host refuses", self._engine.now)

    def _ended_early(self, resource_id: ResourceId) -> None:
        if resource_id in self._starting:
            self._starting.pop(resource_id)
            self._world.universe.note("{} ended before it registered", resource_id)
            self._tell_exit(resource_id)

    def _started(self, resource_id: ResourceId) -> None:
        if resource_id in self._starting:
            size = self._starting.pop(resource_id)
            local = self._world.universe.rng.random() >= self._world.plan.unkillable
            self._new(resource_id, standalone=False, local=local, size=size)

    def start_standalone(self, profile: str | None = None) -> None:
        """Start one with this profile, or with that of the next one in the plan."""
        if self._world.ending:
            return
        if profile is None:
            profiles = self._world.plan.standalone_profiles
            profile = profiles[self._standalone % len(profiles)]
            self._standalone += 1
        size = TaskManagerSize(self._world.plan.slots_per_tm, PROFILES[profile])
        self._new(self._world.ids.resource(), standalone=True, local=False, size=size)

    def _new(self, resource_id: ResourceId, *, standalone: bool, local: bool, size: TaskManagerSize | None) -> None:
        self._pids += 1
        kind = "STANDALONE" if standalone else "started" if local else "started, cannot be killed"
        self._world.universe.note("{} is there ({})", resource_id, kind)
        tm = self._world.task_manager_class(
            self._world, resource_id, pid=self._pids, standalone=standalone, local=local, size=size
        )
        self._world.add(tm)

    def stop(self, resource_id: ResourceId, *, kill: bool) -> None:
        """Stop a TaskManager for the launcher. Idempotent."""
        self._engine.after(0.01 if kill else GRACE, self._kill, resource_id)

    def _kill(self, resource_id: ResourceId) -> None:
        self._starting.pop(resource_id, None)
        tm = self._world.task_manager(resource_id)
        if tm is not None and tm.local:
            self.ended(tm, "killed by the launcher")

    def ended(self, tm: TaskManagerParty, why: str) -> None:
        """End the process, for whatever reason."""
        if not tm.alive:
            return
        self._world.universe.note("{} ENDS: {}", tm.address, why)
        tm.die()
        self._world.remove(tm)
        if tm.local:
            self._tell_exit(tm.resource_id)
        self._world.connections_failed([tm.address])
        if tm.standalone:
            profile = next(name for name, profile in PROFILES.items() if profile == tm.profile)
            self._engine.after(BACK, self.start_standalone, profile)

    def _tell_exit(self, resource_id: ResourceId) -> None:
        self._engine.after(NOTICED, self._exit_noticed, resource_id)

    def _exit_noticed(self, resource_id: ResourceId) -> None:
        rm = self._world.resource_manager
        if rm is not None:
            rm.gate(rm.step, rm.core.exited, resource_id, "its process ended", self._engine.now)
