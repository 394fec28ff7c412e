"""All jobs of a trial are hit at the same time, at instants that a seed draws."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.exactly_once.trial import Trial

PARTS = ("taskmanager", "session", "jvm")  # the supervisor with all its processes, its session child, its JVM
SETTLED = 0.75  # of the kills come after all jobs have completed a checkpoint since the last one; the others sooner
LONGEST = 4.0  # seconds from then to the kill


class Kills(Trial):
    """Send SIGKILL, `kills` times, to one kind of process of whatever runs the jobs."""

    def __init__(
        self, base: Path, names: Sequence[str], *, seed: int, kills: int, parts: Sequence[str] = PARTS, **others: Any
    ) -> None:
        super().__init__(base, names, **others)
        self._seed = seed
        self._kills = kills
        self._parts = parts

    async def strike(self) -> None:
        self.tell(f"{self._kills} kills, seed {self._seed}")
        rng = random.Random(self._seed)
        order = [part for _ in range(self._kills) for part in rng.sample(self._parts, len(self._parts))]
        struck: frozenset[str] = frozenset()
        for number, part in enumerate(order[: self._kills]):
            await self.await_running(struck)
            if number == 0:
                await self.process()  # a job that has done nothing yet would only start afresh
            if settled := rng.random() < SETTLED:
                await self.settle()
            pids = await self._pids(part)
            await asyncio.sleep(instant := rng.uniform(0.0, LONGEST))  # not a synchronisation
            struck = self.note_strike(jobs := await self.jobs())
            since = "had a checkpoint" if settled else "were running"
            latest = max((job.vertices[0].minflinkd.batch_id for job in jobs.values()), default=-1)
            where = f"{len(jobs)} jobs, at micro-batch {latest} at most"
            self.tell(f"kill of the {part} of {where}, {instant:.2f} s after all {since}")
            await self._kill(part, pids)

    async def _pids(self, part: str) -> list[int]:
        """Return the pids of the processes of this kind on which the jobs run."""
        used = {v.minflinkd.taskmanager_id for job in (await self.jobs()).values() for v in job.vertices} - {None}
        if part == "daemon":
            return []
        if part == "taskmanager":
            return [tm.minflinkd.pid for tm in await self.cluster.task_managers(ready=False) if tm.id in used]
        return [int((await self.cluster.measured(str(tm))).minflinkd.metrics[f"{part}.pid"]) for tm in used]

    async def _kill(self, part: str, pids: list[int]) -> None:
        if part == "daemon":
            await self.cluster.kill()
            await self.cluster.start_again()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
