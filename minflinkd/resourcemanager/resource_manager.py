"""The ResourceManager as a component: the driver of its core, which starts and stops TaskManagers for it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import structlog

from minflinkd.resourcemanager import events as ev
from minflinkd.resourcemanager.core import ResourceManagerCore
from minflinkd.resourcemanager.launcher import TaskManagerLauncher
from minflinkd.resourcemanager.options import ResourceManagerOptions
from minflinkd.resourcemanager.sizes import TaskManagerSize
from minflinkd.resourcemanager.state import Resources
from minflinkd.rpc.core_driver import CoreDriver
from minflinkd.rpc.network import RESOURCE_MANAGER, Network
from minflinkd.runtime.clock import Clock
from minflinkd.runtime.component import Crashed
from minflinkd.runtime.ids import IdSource, LeaderId, ResourceId

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class ResourceManagerSnapshot:
    """For inspection: immutable, and true for the instant at which it was taken."""

    leader_id: LeaderId
    resources: Resources


class ResourceManager(CoreDriver[ResourceManagerCore]):
    """The only ResourceManager of a cluster. A new one knows nothing; it learns from reports and declarations (R12).

    It asks the Dispatcher, which starts after it, which jobs have not ended.

    The caller keeps `launcher`, and closes it after this. Its `on_exit` must be `task_manager_exited`. `blob_url` is
    called when this starts.
    """

    def __init__(
        self,
        *,
        network: Network,
        launcher: TaskManagerLauncher,
        clock: Clock,
        ids: IdSource,
        options: ResourceManagerOptions,
        blob_url: Callable[[], str] = lambda: "",
        blob_store: str = "",
        check: bool = False,
    ) -> None:
        core = ResourceManagerCore(ids=ids, options=options, wall_ms=self._wall_ms, blob_store=blob_store, check=check)
        super().__init__("resourcemanager", core, address=RESOURCE_MANAGER, network=network, clock=clock)
        self._launcher = launcher
        self._blob_url = blob_url

    @property
    def leader_id(self) -> LeaderId:
        return self._core.leader_id

    def reconfigure(self, options: ResourceManagerOptions) -> None:
        """Use other options from now on. The next tick acts on them."""
        self._core.reconfigure(options)

    def snapshot(self) -> ResourceManagerSnapshot:
        return ResourceManagerSnapshot(self.leader_id, self._core.state)

    def task_manager_exited(self, resource_id: ResourceId, reason: str) -> None:
        """The launcher saw the process end. Does nothing if that was already known."""
        self._happened(lambda now: self._core.exited(resource_id, reason, now))

    def task_manager_waits(self, resource_id: ResourceId, why: str) -> None:
        """The launcher says why a TaskManager that it starts does not run yet; empty: nothing keeps it any more."""
        self._happened(lambda now: self._core.start_waits(resource_id, why, now))

    def task_manager_found(self, resource_id: ResourceId) -> None:
        """The launcher found a TaskManager of an earlier daemon, after this ResourceManager had begun."""
        self._happened(lambda now: self._core.found((resource_id,), now))

    def task_manager_disconnected(self, resource_id: ResourceId) -> None:
        """The TaskManager's connection ended (R10)."""
        self._happened(lambda now: self._core.disconnected(resource_id, now))

    # --- lifecycle -----------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        living = await self._launcher.adopt()  # before a need can ask for a start
        self._core.blob_url = self._blob_url()
        self.inform(lambda now: self._core.found(tuple(launched.resource_id for launched in living), now))
        for launched in living:
            self.inform(partial(self._core.start_waits, launched.resource_id, launched.waiting))
        await super()._start()

    # --- the core and the world ----------------------------------------------------------------------------------

    def _happened(self, what: Callable[[float], None]) -> None:
        """For callers that have no use for an error: the supervisor handles a crash."""
        if self.running:
            with contextlib.suppress(Crashed):
                self.inform(what)

    def _carry_out_own(self, command: object) -> None:
        match command:
            case ev.StartTaskManager(resource_id, size):
                self.tasks.job(f"start {resource_id}", self._start_task_manager(resource_id, size))
            case ev.StopTaskManager(resource_id, _, kill):
                self.tasks.job(f"stop {resource_id}", self._launcher.stop(resource_id, kill=kill))
            case _:
                super()._carry_out_own(command)

    async def _start_task_manager(self, resource_id: ResourceId, size: TaskManagerSize | None) -> None:
        try:
            await self._launcher.start(resource_id, size)
        except Exception as error:
            log.exception("a TaskManager could not be started", resource=resource_id)
            reason = str(error)
            self._happened(lambda now: self._core.start_failed(resource_id, reason, now))

    def _wall_ms(self, at: float) -> int:
        return round(self._clock.epoch_ms() - (self._clock.monotonic() - at) * 1000)
