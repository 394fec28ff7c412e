"""A TaskManager's registration with the ResourceManager: register, beat, register again (m4 - m6, R10)."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from minflinkd.rpc.messages import (
    HeartbeatFromTaskManager,
    Registered,
    RegisterTaskManager,
    SlotsFree,
    TaskManagerReport,
)
from minflinkd.rpc.network import RESOURCE_MANAGER, Fenced, Network, RpcTimeout, Unreachable
from minflinkd.runtime.clock import Clock
from minflinkd.runtime.component import Component
from minflinkd.runtime.errors import RemoteError
from minflinkd.runtime.ids import LeaderId

log = structlog.get_logger(__name__)

REGISTRATION_TIMEOUT = 5.0  # seconds, of one try
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 2.0


class Registration(Component):
    """Registered whenever it can be. `leader` is the ResourceManager that it follows now, if any."""

    def __init__(
        self,
        network: Network,
        *,
        clock: Clock,
        hello: Callable[[], RegisterTaskManager],
        report: Callable[[], TaskManagerReport],
        start_phases: Callable[[], dict[str, float]],
        give_up_after: float,
        on_give_up: Callable[[str], None],
    ) -> None:
        super().__init__("registration")
        self.leader: LeaderId | None = None
        self._network = network
        self._clock = clock
        self._hello = hello
        self._report = report
        self._start_phases = start_phases
        self._give_up_after = give_up_after
        self._on_give_up = on_give_up
        self._registered: Registered | None = None

    def report_now(self) -> None:
        """m11: tell the whole view at once; the next heartbeat would tell it anyway."""
        if self._registered is not None:
            self._network.tell(RESOURCE_MANAGER, SlotsFree(report=self._report()), fence=self._registered.leader_id)

    async def _start(self) -> None:
        self.tasks.loop("stay registered", self._stay_registered)

    async def _stay_registered(self) -> None:
        since = self._clock.monotonic()
        pause = FIRST_PAUSE
        while True:
            try:
                registered = await self._network.ask(RESOURCE_MANAGER, self._hello(), timeout=REGISTRATION_TIMEOUT)
            except (RemoteError, Fenced, Unreachable, RpcTimeout) as error:
                waited = self._clock.monotonic() - since
                if 0 < self._give_up_after <= waited:
                    self._on_give_up(f"no ResourceManager took the registration for {waited:.0f} s: {error}")
                await self._clock.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
                continue
            self._registered, self.leader = registered, registered.leader_id
            log.info("registered", leader=registered.leader_id, instance=registered.instance_id)
            why = await self._beat(registered)
            self._registered = self.leader = None
            log.warning("no longer registered", reason=why)
            since, pause = self._clock.monotonic(), FIRST_PAUSE

    async def _beat(self, registered: Registered) -> str:
        """Beat until the registration is worth nothing; why."""
        heard = self._clock.monotonic()
        unreachable = 0
        while True:
            await self._clock.sleep(registered.heartbeat_interval)
            beat = HeartbeatFromTaskManager(
                instance_id=registered.instance_id, report=self._report(), start_phases=self._start_phases()
            )
            try:
                await self._network.ask(
                    RESOURCE_MANAGER, beat, timeout=registered.heartbeat_interval * 2, fence=registered.leader_id
                )
                heard, unreachable = self._clock.monotonic(), 0
            except (RemoteError, Fenced) as error:
                return str(error)
            except (Unreachable, RpcTimeout) as error:
                unreachable = unreachable + 1 if isinstance(error, Unreachable) else 0
                silent = self._clock.monotonic() - heard
                if unreachable >= 2 or silent > registered.heartbeat_timeout:  # R10
                    return f"the ResourceManager is silent for {silent:.1f} s: {error}"
