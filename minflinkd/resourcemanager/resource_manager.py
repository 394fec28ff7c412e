"""The ResourceManager as a component: gives its core messages and time, and carries out the core's commands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import structlog

from minflinkd.resourcemanager import events as ev
from minflinkd.resourcemanager.core import Command, ResourceManagerCore
from minflinkd.resourcemanager.launcher import TaskManagerLauncher
from minflinkd.resourcemanager.options import ResourceManagerOptions
from minflinkd.resourcemanager.state import Resources
from minflinkd.rpc.asking import outcome_of_asking
from minflinkd.rpc.network import RESOURCE_MANAGER, Network
from minflinkd.rpc.party import Ask, Door, Tell
from minflinkd.runtime.clock import Clock
from minflinkd.runtime.component import Component
from minflinkd.runtime.errors import MinflinkError
from minflinkd.runtime.ids import IdSource, LeaderId, ResourceId

log = structlog.get_logger(__name__)

T = TypeVar("T")
SHORTEST_SLEEP = 0.001  # seconds; a clock may wake up early by less than it can measure


@dataclass(frozen=True)
class ResourceManagerSnapshot:
    """For inspection: immutable, and true for the instant at which it was taken."""

    leader_id: LeaderId
    resources: Resources


class ResourceManager(Component):
    """The only ResourceManager of a cluster. A new one knows nothing; it learns from reports and declarations (R12).

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
        super().__init__("resourcemanager")
        self._network = network
        self._launcher = launcher
        self._clock = clock
        self._blob_url = blob_url
        self._core = ResourceManagerCore(
            ids=ids, options=options, wall_ms=self._wall_ms, blob_store=blob_store, check=check
        )
        self._door = Door(
            RESOURCE_MANAGER,
            lambda message, fence: self._decide(lambda now: self._core.receive(message, fence, now)),
        )

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
        if self.running:
            self._tell_core(lambda now: self._core.exited(resource_id, reason, now))

    def task_manager_disconnected(self, resource_id: ResourceId) -> None:
        """The TaskManager's connection ended (R10)."""
        if self.running:
            self._tell_core(lambda now: self._core.disconnected(resource_id, now))

    # --- lifecycle -----------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        living = await self._launcher.adopt()  # before a need can ask for a start
        self._core.blob_url = self._blob_url()
        self._decide(lambda now: self._core.found(tuple(launched.resource_id for launched in living), now))
        self._network.attach(self._door)
        self.tasks.loop("timer", self._timer)

    async def _before_stop(self) -> None:
        self._network.detach(self._door)  # what comes later could not be carried out

    async def _stop(self) -> None:
        self._network.detach(self._door)

    def _on_crash(self) -> None:
        self._network.detach(self._door)

    async def _timer(self) -> None:
        while True:
            self._decide(self._core.tick)
            await self._clock.sleep(max(SHORTEST_SLEEP, self._core.next_wakeup() - self._clock.monotonic()))

    # --- the core and the world ----------------------------------------------------------------------------------

    def _decide(self, decision: Callable[[float], T]) -> T:
        """Let the core decide, then carry out its commands. Raises the core's refusals, and Crashed."""
        try:
            return self.deciding(lambda: decision(self._clock.monotonic()))
        finally:  # a refusal may leave commands, too
            if not self.crashed.is_set():
                self._carry_out()

    def _tell_core(self, decision: Callable[[float], None]) -> None:
        """For callers that have no use for an error: the supervisor handles a crash."""
        try:
            self._decide(decision)
        except MinflinkError as error:
            log.info("not taken", component=self.name, error=str(error))

    def _carry_out(self) -> None:
        try:
            for command in self._core.take_commands():
                self._carry(command)
        except Exception as error:
            raise self.crash(error) from error

    def _carry(self, command: Command) -> None:
        match command:
            case Ask(target, request):
                self.tasks.job(f"{type(request).__name__} to {target}", self._ask(command))
            case Tell(target, notice, fence):
                self._network.tell(target, notice, fence=fence)
            case ev.StartTaskManager(resource_id):
                self.tasks.job(f"start {resource_id}", self._start_task_manager(resource_id))
            case ev.StopTaskManager(resource_id, _, kill):
                self.tasks.job(f"stop {resource_id}", self._launcher.stop(resource_id, kill=kill))

    async def _ask(self, ask: Ask) -> None:
        outcome = await outcome_of_asking(self._network, self._clock, ask)
        self._tell_core(lambda now: self._core.answered(ask.about, outcome, now))

    async def _start_task_manager(self, resource_id: ResourceId) -> None:
        try:
            await self._launcher.start(resource_id)
        except Exception as error:
            log.exception("a TaskManager could not be started", resource=resource_id)
            reason = str(error)
            self._tell_core(lambda now: self._core.start_failed(resource_id, reason, now))

    def _wall_ms(self, at: float) -> int:
        return round(self._clock.epoch_ms() - (self._clock.monotonic() - at) * 1000)
