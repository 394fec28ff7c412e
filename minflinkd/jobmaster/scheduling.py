"""The scheduler, as seen by parts of a JobMaster that wait for its decisions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from minflinkd.jobmaster.scheduler import events as ev
from minflinkd.jobmaster.scheduler.state import JobState
from minflinkd.runtime.machine_driver import StateWatch


@dataclass(frozen=True)
class Scheduling:
    """Reads the scheduler's state and feeds it events. `feed` raises Crashed."""

    watch: StateWatch[JobState]
    feed: Callable[[ev.Event], None]
    crashed: asyncio.Event

    @property
    def state(self) -> JobState:
        return self.watch.read()

    async def until(self, condition: Callable[[JobState], bool]) -> bool:
        """Wait until `condition` holds, without a time limit. Return False if the JobMaster crashed first."""
        await self.watch.until(lambda state: condition(state) or self.crashed.is_set())
        return condition(self.state)
