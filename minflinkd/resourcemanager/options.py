"""The settings of the ResourceManager."""

from __future__ import annotations

from dataclasses import dataclass

from minflinkd.resourcemanager.sizes import TaskManagerSize
from minflinkd.runtime.resource_profile import NO_PROFILE, ResourceProfile


@dataclass(frozen=True, kw_only=True)
class ResourceManagerOptions:
    """How many TaskManagers there should be, and for how long. Times in seconds."""

    slots_per_tm: int  # of a TaskManager that the launcher starts
    profile: ResourceProfile = NO_PROFILE  # of a slot of such a TaskManager; nothing: not known (R40)
    largest: ResourceProfile | None = None  # what a whole TaskManager may have; None: no limit
    can_start: bool = True  # whether the launcher starts any
    min: int = 0  # at this number, no idle TaskManager is stopped; none is started for it (R6)
    standby: int = 1  # wholly free, ready TaskManagers, beyond those in use (R6)
    max: int = 1_000
    taskmanager_timeout: float = 300.0  # an idle one beyond the above is stopped after this time
    start_timeout: float = 120.0  # from start to registration, and from there to a ready session
    heartbeat_interval: float = 1.0
    heartbeat_timeout: float = 5.0
    max_concurrent_starts: int = 1  # starts that have not taken half of `start_timeout` yet

    @property
    def size(self) -> TaskManagerSize:
        """The default size of a TaskManager that the launcher starts."""
        return TaskManagerSize(self.slots_per_tm, self.profile)
