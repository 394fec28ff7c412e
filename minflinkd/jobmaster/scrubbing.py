"""Reads a job's retained checkpoints again and again, so that damage is known before they are needed (C29).

It reads one piece at a time, at a limited rate, and for one job of the daemon at a time. A segment that checkpoints
share is read once a round. Nothing follows from damage but that users are told: the tasks may still have whole copies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from minflinkd.checkpoint.coordinator import CheckpointCoordinator
from minflinkd.checkpoint.damage import CheckpointDamaged, Damage, listed
from minflinkd.checkpoint.verification import LimitedPace
from minflinkd.rpc.snapshot import StateHandle
from minflinkd.runtime.clock import Clock
from minflinkd.runtime.errors import Consequence, ErrorInfo, Kind, MinflinkError
from minflinkd.runtime.ids import JobId

log = structlog.get_logger(__name__)


class Scrubbing:
    """`turn`: shared by all jobs of the daemon. `on_damage` is called once for each damaged file."""

    def __init__(
        self,
        job_id: JobId,
        *,
        coordinator: CheckpointCoordinator,
        turn: asyncio.Lock,
        clock: Clock,
        on_damage: Callable[[ErrorInfo], None],
    ) -> None:
        self._coordinator = coordinator
        self._turn = turn
        self._clock = clock
        self._on_damage = on_damage
        self._log = log.bind(job=job_id)
        self._told = set[str]()  # damaged files

    async def run(self) -> None:
        """Scrub in a loop. The job's options say how often; the caller does not call this if they say never."""
        while True:
            await self._clock.sleep(self._coordinator.options.scrub_interval)
            async with self._turn:
                await self.scrub()

    async def scrub(self) -> None:
        """Read all retained checkpoints once, the latest first. Ends early if the storage does not answer."""
        integrity = self._coordinator.integrity
        pace = LimitedPace(self._coordinator.options.scrub_rate, self._clock)
        whole = set[StateHandle]()
        damaged: dict[int, tuple[Damage, ...]] = {}
        for checkpoint in integrity.restorable():
            number = checkpoint.checkpoint_id
            if not integrity.keeps(number):
                continue
            try:
                found = await integrity.examine(checkpoint, whole, pace)
            except MinflinkError as error:
                self._log.warning("a checkpoint could not be verified", checkpoint=number, error=str(error))
                return
            if found and integrity.keeps(number):  # otherwise its files were being deleted
                damaged[number] = found
                integrity.found(number, found)
                self._tell(number, found)
        self._told &= {one.file for found in damaged.values() for one in found}
        integrity.verified(set(damaged))
        self._log.debug("checkpoints verified", segments=len(whole), damaged=sorted(damaged))

    def _tell(self, number: int, found: tuple[Damage, ...]) -> None:
        new = [one for one in found if one.file not in self._told]
        if not new:
            return
        self._told.update(one.file for one in new)
        self._log.error("a checkpoint is damaged", checkpoint=number, damage=listed(new))
        self._on_damage(
            ErrorInfo(
                code=CheckpointDamaged.code,
                message=f"checkpoint {number} is damaged ({listed(new)}). The job runs on",
                consequence=Consequence.RETRYABLE,
                kind=Kind.DAMAGED,
                hint=(
                    "find out what damaged the files, and put them back from a copy if there is one; as long as later "
                    "checkpoints share them, only the copies on the job's TaskManagers are whole"
                ),
            )
        )
