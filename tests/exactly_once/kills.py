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
from tests.faults.in_process import InProcess
from tests.waiting import until

PARTS = ("taskmanager", "session", "jvm")  # the supervisor with all its processes, its session child, its JVM
DAEMONS = ("daemon", "handover")  # killed, or told to hand over; then another one starts
COMPONENTS = ("jobmaster", "resourcemanager")  # each crashes alone, in a daemon that runs within the test
ADOPTED = (*DAEMONS, *COMPONENTS)  # what costs no task
SETTLED = 0.75  # of the kills come after all jobs have completed a checkpoint since the last one; the others sooner
LONGEST = 4.0  # seconds from then to the kill
SEED = "KILL_SEED"  # an environment variable that repeats the kills of a long trial


def drawn_seed() -> int:
    """The seed of a trial whose kills differ from run to run; the trial prints it."""
    return int(os.environ.get(SEED) or random.randrange(10**6))


class Kills(Trial):
    """End something that the jobs run on, `kills` times: one of `parts` after the other, in an order that is drawn.

    `longest`: seconds until the next one, at most. If nothing but what is ADOPTED ends, no task may notice.
    """

    def __init__(
        self,
        base: Path,
        names: Sequence[str],
        *,
        seed: int,
        kills: int,
        parts: Sequence[str] = PARTS,
        longest: float = LONGEST,
        **others: Any,
    ) -> None:
        super().__init__(base, names, **others)
        self._seed = seed
        self._kills = kills
        self._parts = parts
        self._longest = longest

    async def strike(self) -> None:
        self.tell(f"{self._kills} kills, seed {self._seed}")
        rng = random.Random(self._seed)
        order = [part for _ in range(self._kills) for part in rng.sample(self._parts, len(self._parts))]
        for number, part in enumerate(order[: self._kills]):
            await self.await_running(self.hit)
            if number == 0:
                await self.process()  # a job that has done nothing yet would only start afresh
            if settled := rng.random() < SETTLED:
                await self.settle()
            pids = await self._pids(part)
            await asyncio.sleep(instant := rng.uniform(0.0, self._longest))  # not a synchronisation
            struck = self.note_strike(jobs := await self.jobs())
            since = "had a checkpoint" if settled else "were running"
            latest = max((job.vertices[0].minflinkd.batch_id for job in jobs.values()), default=-1)
            where = f"{len(jobs)} jobs, at micro-batch {latest} at most"
            self.tell(f"end of the {part} of {where}, {instant:.2f} s after all {since}")
            before = self.micro_batches(struck)
            await self._end_of(part, pids)
            if part in ADOPTED:
                await self.await_adopted(set(struck))
                await self._await_micro_batches(before)
                self.hit = frozenset()

    def verify_undisturbed(self, name: str) -> None:
        """Check what `verify` does, and that no task was restarted."""
        self.verify(name)
        outcome = self.outcomes[name]
        assert (outcome.info.minflinkd.restarts, outcome.restored) == (0, None), self.told
        assert all(vertex.minflinkd.attempt_number == 0 for vertex in outcome.info.vertices), self.told

    async def _await_micro_batches(self, before: dict[str, list[int]]) -> None:
        """Wait until each of these attempts has finished another micro-batch. None may be missing in between."""

        async def gone_on() -> bool:
            now, tasks = (
                self.micro_batches(before),
                [task for job in (await self.jobs()).values() for task in job.vertices],
            )
            running = {str(task.minflinkd.attempt_id) for task in tasks if task.status == "RUNNING"}
            return all(now[attempt][-1:] > before[attempt][-1:] for attempt in running & set(before))

        await until(gone_on, "every task has finished another micro-batch", timeout=120, pause=0.1)
        for attempt, numbers in self.micro_batches(before).items():
            missing = sorted({*range(numbers[0], numbers[-1])} - {*numbers}) if numbers else []
            assert not missing, f"{attempt} lacks micro-batches {missing}\n{self.told}"

    async def _pids(self, part: str) -> list[int]:
        """Return the pids of the processes of this kind on which the jobs run."""
        if part in ADOPTED:
            return []
        used = {v.minflinkd.taskmanager_id for job in (await self.jobs()).values() for v in job.vertices} - {None}
        if part == "taskmanager":
            return [tm.minflinkd.pid for tm in await self.cluster.task_managers(ready=False) if tm.id in used]
        return [int((await self.cluster.measured(str(tm))).minflinkd.metrics[f"{part}.pid"]) for tm in used]

    async def _end_of(self, part: str, pids: list[int]) -> None:
        if part == "daemon":
            await self.cluster.kill()
        elif part == "handover":
            await self.cluster.hand_over()
        if part in DAEMONS:
            await self.cluster.start_again()
        elif part in COMPONENTS:
            await self._crash(part)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)

    async def _crash(self, part: str) -> None:
        assert isinstance(self.cluster, InProcess), f"the {part} of another process cannot be reached"
        if part == "resourcemanager":
            await self.cluster.crash_resource_manager()
            return
        running = (await self.jobs()).values()
        await asyncio.gather(*(self.cluster.crash_job_master(job.jid) for job in running))
