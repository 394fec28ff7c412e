"""The JobMasters that a TaskManager works for: offers, statuses that must arrive, and their silence (R8 - R13)."""

from __future__ import annotations

import structlog

from minflinkd.rpc.messages import Done, OffersAccepted, OfferSlots, Request, SlotOffer
from minflinkd.rpc.network import Address, Fenced, Network, RpcTimeout, Unreachable
from minflinkd.runtime.clock import Clock
from minflinkd.runtime.errors import RemoteError
from minflinkd.runtime.ids import JobId, LeaderId, ResourceId

log = structlog.get_logger(__name__)

ANSWER_TIMEOUT = 5.0  # seconds
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 2.0


class JobMasterSilent(Exception):
    """No answer within the time that the caller gives."""


class JobMasters:
    """Sends until it is answered: at-least-once, so everything sent is idempotent by its ids."""

    def __init__(self, network: Network, clock: Clock, *, resource_id: ResourceId, address: Address) -> None:
        self._network = network
        self._clock = clock
        self._resource_id = resource_id
        self._address = address
        self.heard: dict[JobId, float] = {}  # last heartbeat or answer, seconds

    def hear(self, job_id: JobId) -> None:
        self.heard[job_id] = self._clock.monotonic()

    def silent_for(self, seconds: float) -> tuple[JobId, ...]:
        now = self._clock.monotonic()
        return tuple(job_id for job_id, heard in self.heard.items() if now - heard > seconds)

    async def deliver(self, target: Address, request: Request[Done], fence: LeaderId, patience: float) -> None:
        """Raises RemoteError and Fenced where it is refused, JobMasterSilent after `patience` seconds of silence."""
        deadline = self._clock.monotonic() + patience
        pause = FIRST_PAUSE
        while True:
            try:
                await self._network.ask(target, request, timeout=ANSWER_TIMEOUT, fence=fence)
                return
            except (Unreachable, RpcTimeout) as error:
                if self._clock.monotonic() + pause >= deadline:
                    raise JobMasterSilent(str(error)) from error
            await self._clock.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def offer(
        self, target: Address, offers: tuple[SlotOffer, ...], fence: LeaderId, patience: float
    ) -> OffersAccepted:
        """m9. Nothing is accepted by a JobMaster that refuses, or stays silent."""
        deadline = self._clock.monotonic() + patience
        request = OfferSlots(resource_id=self._resource_id, address=self._address, offers=offers)
        pause = FIRST_PAUSE
        while True:
            try:
                return await self._network.ask(target, request, timeout=ANSWER_TIMEOUT, fence=fence)
            except (RemoteError, Fenced) as error:
                log.info("an offer of slots was refused", job_master=target, error=str(error))
                return OffersAccepted(accepted=())
            except (Unreachable, RpcTimeout) as error:
                if self._clock.monotonic() + pause >= deadline:
                    log.warning("an offer of slots was not answered", job_master=target, error=str(error))
                    return OffersAccepted(accepted=())
            await self._clock.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
