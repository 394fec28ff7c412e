"""TaskManagers that somebody else starts, by hand or through systemd, on any host (R7)."""

from __future__ import annotations

from minflinkd.resourcemanager.launcher import Launched, StartFailed
from minflinkd.resourcemanager.sizes import TaskManagerSize
from minflinkd.runtime.ids import ResourceId


class StandaloneLauncher:
    """A TaskManagerLauncher that starts, ends and finds nothing: TaskManagers register by themselves.

    A TaskManager that the ResourceManager tells to exit ends by itself, too.
    """

    async def start(self, resource_id: ResourceId, size: TaskManagerSize | None = None) -> None:
        raise StartFailed(
            f"{resource_id} is not started: the daemon starts no TaskManagers (resourcemanager.driver: standalone)",
            hint="start one with `minflinkd taskmanager --config FILE`",
        )

    async def stop(self, resource_id: ResourceId, *, kill: bool = False) -> None:
        """Nothing to do: it was not started here."""

    async def adopt(self) -> tuple[Launched, ...]:
        return ()

    async def stop_all(self, *, adopted: bool = True) -> None:
        """TaskManagers outlive the daemon, and register with the next one."""

    async def reap_leftovers(self) -> None:
        """There are none."""

    async def aclose(self) -> None:
        """Nothing to close."""
