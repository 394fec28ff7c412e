"""Several daemons and ZooKeeper: one leads, and the next one adopts its tasks (A10 - A17)."""

from __future__ import annotations

import asyncio
import json
import random
import re
import signal
from pathlib import Path

import aiohttp
import psutil
import pytest

from tests.beside import beside
from tests.cluster import Cluster, lives
from tests.faults.hot_restarts import drained
from tests.fenced_writes import history
from tests.pair_of_daemons import Pair, role, stands_by
from tests.proxy import Proxy
from tests.servers.zookeeper import Ensemble, ZooKeeper
from tests.servers.zookeeper_log import transactions
from tests.waiting import LOOK, until
from tests.windows_job import WindowsJob, leftovers, result

AHEAD = 30  # event files that are there and not yet read: some ten seconds

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]


class Story:
    """A job that runs while leaders come and go: nothing of it may restart or be missing.

    `recorded`: the ZooKeeper that has the history of what they have written.
    """

    def __init__(self, pair: Pair, windows: WindowsJob, recorded: ZooKeeper) -> None:
        self.pair, self.windows, self.out, self.recorded = pair, windows, windows.base / "out", recorded
        self.job_id = ""
        self.attempts: set[str] = set()

    async def begin(self, at: Cluster, **changes: str) -> None:
        self.job_id = await at.submit(self.windows.write(self.out.name, **{"trigger-interval": "300 ms", **changes}))
        await (await self.pair.leader()).await_checkpoints(self.job_id, 2, timeout=150)
        await until(self.pair.micro_batches, "micro-batches")
        self.attempts = self.pair.attempts()
        assert len(self.attempts) == 1

    async def goes_on(self, leader: Cluster) -> None:
        """Wait until the job has completed a checkpoint with this leader, by the attempts that ran before."""
        completed = (await leader.client.checkpoints(self.job_id)).counts.completed
        processed = self.pair.micro_batches()[-1]
        await leader.await_checkpoints(self.job_id, completed + 1)
        await until(lambda: self.pair.micro_batches()[-1] > processed + 2, "no micro-batches")
        found = self.pair.micro_batches()
        assert found == [*range(found[0], found[-1] + 1)], "no micro-batch is missing"
        assert self.pair.attempts() == self.attempts

    async def feed(self) -> None:
        """Write event files as they are read, until cancelled. The job has `mode: streaming`."""
        while True:
            missing = self.pair.micro_batches()[-1] + AHEAD - self.files
            if missing > 0:
                await asyncio.to_thread(self.windows.write_events, self.files, missing)
            await asyncio.sleep(LOOK)

    @property
    def files(self) -> int:
        return len(list(self.windows.events.glob("[0-9]*")))

    async def end(self, leader: Cluster) -> None:
        """Wait for the job's end. Nothing was restarted, and the output is exactly that of the batch."""
        job = await leader.await_state(self.job_id, "FINISHED", timeout=240)
        counts = (await leader.client.checkpoints(self.job_id)).counts
        assert (counts.restored, job.minflinkd.restarts) == (0, 0)
        files = self.windows.events.glob("[0-9]*")
        assert job.minflinkd.source_records == sum(json.loads(line)["v"] >= 0 for file in files for line in file.open())
        assert result(self.out) == self.windows.expected()
        assert leftovers(self.out) == []

    def verify_history(self, leaders: int) -> None:
        """Check that one daemon led at each write, and that there were so many leaders one after the other."""
        writes = history(self.pair.root, transactions(self.recorded.directory / "data"))
        assert writes.faults == []
        assert len(writes.leaders) >= leaders
        assert writes.written.keys() <= {*writes.leaders}
        assert len(writes.written) > leaders / 2, "most of them have written something"


@pytest.fixture
def windows(tmp_path: Path) -> WindowsJob:
    job = WindowsJob(tmp_path / "windows", files=150)
    job.write_events()
    return job


@pytest.mark.slow  # tests/component/test_elected_daemon.py has the election, test_kill_daemon the adoption
async def test_the_next_leader_adopts_the_tasks_of_one_that_was_killed(
    zookeeper: ZooKeeper, windows: WindowsJob, tmp_path: Path
) -> None:
    """Nothing restarts, micro-batches go on, and the output is exactly that of the batch (A14, A16, A17)."""
    pair = Pair(tmp_path / "cluster", dict.fromkeys("ab", zookeeper.address))
    story = Story(pair, windows, zookeeper)
    async with pair.running() as (a, b):
        assert (await role(a), await role(b)) == ("leading", "standby")
        await story.begin(at=b)  # it redirects
        before = await a.task_manager_of(story.job_id)
        await a.kill()
        assert await pair.leader() is b
        await story.goes_on(b)
        after = await b.task_manager_of(story.job_id)
        assert (after.id, after.minflinkd.pid) == (before.id, before.minflinkd.pid)
        await story.end(b)
        async with aiohttp.request("GET", f"{b.url}/metrics", headers=b.headers) as answer:
            assert re.search(r"^minflinkd_adopted_tasks_total [1-9]", await answer.text(), re.MULTILINE)
        assert lives(psutil.Process(before.minflinkd.pid))
    story.verify_history(leaders=2)


@pytest.mark.slow  # tests/sim/election has it without Spark
async def test_leaders_that_are_paused_or_cut_off_are_replaced_and_know_it(
    zookeeper: ZooKeeper, windows: WindowsJob, tmp_path: Path
) -> None:
    """One that wakes up finds that it does not lead, before it acts. No task notices (A11, A17)."""
    host, port = "127.0.0.1", zookeeper.port
    async with Proxy(host, port) as to_a, Proxy(host, port) as to_b:
        ways = {"a": to_a, "b": to_b}
        pair = Pair(tmp_path / "cluster", {name: f"{host}:{way.port}" for name, way in ways.items()})
        story = Story(pair, windows, zookeeper)
        async with pair.running() as (a, b):
            await story.begin(at=a)

            a.process.send_signal(signal.SIGSTOP)
            try:
                assert await pair.leader(other_than=a) is b
            finally:
                a.process.send_signal(signal.SIGCONT)
            await stands_by(a)
            await story.goes_on(b)

            to_b.swallow()
            assert await pair.leader(other_than=b) is a
            assert await role(b) != "leading"
            await story.goes_on(a)
            to_b.pass_on()
            await stands_by(b)

            await a.hand_over()
            assert await pair.leader(other_than=a) is b
            await a.start_again()
            await story.goes_on(b)
            await story.end(b)
    story.verify_history(leaders=4)


@pytest.mark.slow  # tests/sim/election has it without Spark
async def test_without_a_quorum_nobody_leads_and_tasks_go_on(
    ensemble: Ensemble, windows: WindowsJob, tmp_path: Path
) -> None:
    """A server that is lost costs nothing. Without a majority the leader stops in time, and tasks go on (A17)."""
    pair = Pair(tmp_path / "cluster", dict.fromkeys("ab", ensemble.address))
    story = Story(pair, windows, ensemble.servers[0])
    async with pair.running() as (a, b):
        await story.begin(at=a)
        await (await ensemble.leader()).kill()
        await story.goes_on(await pair.leader())

        lost = [server for server in ensemble.servers if server.runs][:1]
        await lost[0].kill()
        (story.recorded,) = [server for server in ensemble.servers if server.runs]
        for daemon in (a, b):
            await stands_by(daemon)
        processed = story.pair.micro_batches()[-1]
        await until(lambda: pair.micro_batches()[-1] > processed + 3, "no micro-batches without a leader")
        await asyncio.gather(*(server.restart() for server in ensemble.servers if not server.runs))
        leader = await pair.leader()
        await story.goes_on(leader)
        await story.end(leader)
    story.verify_history(leaders=2)


@pytest.mark.slow
async def test_thirty_leaders_in_a_row_lose_nothing(zookeeper: ZooKeeper, windows: WindowsJob, tmp_path: Path) -> None:
    """Killed, paused, or told to hand over, in an order drawn from a seed (A17)."""
    pair = Pair(tmp_path / "cluster", dict.fromkeys("ab", zookeeper.address))
    story = Story(pair, windows, zookeeper)
    async with pair.running() as (a, _):
        await story.begin(at=a, mode="streaming")
        leader = a
        async with beside("feeder", story.feed()):
            leader = await _thirty_leaders(story, leader)
        await drained(leader, story.job_id, tmp_path / "savepoints", source="events", files=story.files)
        await story.end(leader)
    story.verify_history(leaders=30)


async def _thirty_leaders(story: Story, leader: Cluster) -> Cluster:
    """Let one leader follow the other. Return the last one."""
    rng, pair = random.Random(17), story.pair
    for _ in range(30):
        match rng.choice(("kill", "pause", "hand over")):
            case "kill":
                await leader.kill()
                following = await pair.leader(other_than=leader)
                await leader.start_again()
            case "pause":
                leader.process.send_signal(signal.SIGSTOP)
                try:
                    following = await pair.leader(other_than=leader)
                finally:
                    leader.process.send_signal(signal.SIGCONT)
                await stands_by(leader)
            case _:
                await leader.hand_over()
                following = await pair.leader(other_than=leader)
                await leader.start_again()
        await story.goes_on(following)
        leader = following
    return leader
