"""The scheduler, as seen by parts of a JobMaster that wait for its decisions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from minflinkd.jobmaster import events as ev
from minflinkd.jobmaster.job_state import JobState


@dataclass(frozen=True)
class Scheduling:
    """Reads the scheduler's state and feeds it events. `feed` raises Crashed."""

    read: Callable[[], JobState]
    feed: Callable[[ev.Event], None]
    crashed: asyncio.Event
    stepped: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def state(self) -> JobState:
        return self.read()

    async def until(self, condition: Callable[[JobState], bool]) -> bool:
        """Wait until `condition` holds, without a time limit. Return False if the JobMaster crashed first."""
        while not condition(self.state):
            if self.crashed.is_set():
                return False
            self.stepped.clear()
            await self.stepped.wait()
        return True
