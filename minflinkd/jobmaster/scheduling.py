"""The scheduler as those parts of a JobMaster see it that wait for what it decides."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from minflinkd.jobmaster import events as ev
from minflinkd.jobmaster.job_state import JobState


@dataclass(frozen=True)
class Scheduling:
    """`feed` raises Crashed."""

    read: Callable[[], JobState]
    feed: Callable[[ev.Event], None]
    crashed: asyncio.Event
    stepped: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def state(self) -> JobState:
        return self.read()

    async def until(self, condition: Callable[[JobState], bool]) -> bool:
        """Whether it came to hold; False where the JobMaster crashed before. Without a limit of its own."""
        while not condition(self.state):
            if self.crashed.is_set():
                return False
            self.stepped.clear()
            await self.stepped.wait()
        return True
