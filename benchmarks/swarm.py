"""A process that plays many TaskManagers, for `benchmarks.scale`: real connections, real decisions, no Spark.

Each has a connection of its own with the cluster's secret, the real core (`taskmanager.core`: registration, heartbeats,
slot table, fencing), and tasks that are RUNNING as soon as they are deployed and tell of a micro-batch every second.
It finds no fault in any job that it is to analyse. `go` on stdin makes all of them come at once; the end of stdin ends
the process.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import random
import sys
from pathlib import Path

import structlog
from msgspec.structs import replace as copy

from minflinkd.rpc import messages as m
from minflinkd.rpc.local import LocalNetwork
from minflinkd.rpc.network import Mailbox, job_master, task_manager
from minflinkd.rpc.party import Answered, Ask, Tell, outcome_of
from minflinkd.rpc.tcp import RpcUplink
from minflinkd.runtime.errors import MinflinkError
from minflinkd.runtime.ids import AttemptId, JobId, LeaderId, ResourceId
from minflinkd.runtime.supervision import TaskOwner
from minflinkd.taskmanager.slots import core as tm
from minflinkd.taskmanager.slots.events import EndTasks, StartTask

BATCH = 1.0  # seconds between two progress messages of a task
RETRY = 0.5
ANSWER = 5.0
METRICS = {f"process.{kind}.{what}": 1e9 for kind in ("supervisor", "session", "jvm") for what in ("rss", "cpu", "fds")}


class Player(Mailbox):
    """One TaskManager: carries out what its core decides."""

    def __init__(self, resource_id: ResourceId, *, slots: int, secret: bytes, port: int) -> None:
        address = task_manager(resource_id)
        super().__init__(address)
        self._loop = asyncio.get_running_loop()
        self._tasks = TaskOwner(address)
        self._network = LocalNetwork()
        self._network.attach(self)
        self._uplink = RpcUplink(self._network, address=address, secret=secret, host="127.0.0.1", port=port)
        self._running: dict[AttemptId, m.DeployTask] = {}
        self._timer: asyncio.TimerHandle | None = None
        report = m.TaskManagerReport(resource_id=resource_id, slots=(), session=m.SessionPhase.READY)
        hello = m.RegisterTaskManager(
            address=address,
            pid=os.getpid(),
            hardware=m.Hardware(cpu_cores=slots, memory_bytes=1 << 34),
            log_directory="/",
            report=report,
            standalone=True,
        )
        self._core = tm.TaskManagerCore(hello, slots=slots, options=tm.TaskManagerOptions(), now=self._loop.time())
        self._core.session_changed(m.SessionPhase.READY, 1, False, self._loop.time())

    async def start(self) -> None:
        await self._uplink.start()
        await self._uplink.connected.wait()
        self._tasks.loop("progress", self._progress)
        self._tick()

    async def aclose(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._tasks.aclose()
        await self._uplink.aclose()
        await self._network.aclose()

    async def deliver(self, message: m.Message, fence: LeaderId | None) -> object:
        if isinstance(message, m.AnalyzeJob):
            return m.Analysis()
        try:
            answer = self._core.receive(message, fence, self._loop.time())
        finally:
            self._carry_out()
        if isinstance(answer, m.JobHeartbeatAnswer) and isinstance(message, m.HeartbeatFromJobMaster):
            return copy(answer, tasks=self._statuses(message.job_id))
        return answer

    def _tick(self) -> None:
        self._core.tick(self._loop.time())
        self._carry_out()

    def _carry_out(self) -> None:
        for command in self._core.take_commands():
            match command:
                case Ask():
                    self._tasks.job(type(command.request).__name__, self._ask(command))
                case Tell():
                    self._network.tell(command.target, command.notice, fence=command.fence)
                case StartTask(deployment):
                    self._running[deployment.attempt_id] = deployment
                    self._say(deployment, m.TaskState.RUNNING)
                case EndTasks(attempts):
                    self._loop.call_soon(self._end, attempts)
                case tm.Exit():
                    self._tasks.job("exit", self._uplink.aclose())
                case _:
                    pass  # there are no files to delete and no session to renew
        if self._timer is not None:
            self._timer.cancel()
        if (due := self._core.next_wakeup()) is not None:
            self._timer = self._loop.call_at(due, self._tick)

    async def _ask(self, command: Ask) -> None:
        if command.after:
            await asyncio.sleep(command.after)
        request = command.request
        if isinstance(request, m.RegisterTaskManager | m.HeartbeatFromTaskManager):
            request = copy(request, report=copy(request.report, metrics=METRICS))
        try:
            answer = await self._network.ask(command.target, request, timeout=command.timeout, fence=command.fence)
        except MinflinkError as error:
            self._core.answered(command.about, outcome_of(error), self._loop.time())
        else:
            self._core.answered(command.about, Answered(answer), self._loop.time())
        self._carry_out()

    # --- tasks ---------------------------------------------------------------------------------------------------

    def _end(self, attempts: tuple[AttemptId, ...]) -> None:
        for attempt in attempts:
            if (deployment := self._running.pop(attempt, None)) is not None:
                self._say(deployment, m.TaskState.CANCELED)
            self._core.attempt_ended(attempt, self._loop.time())
        self._carry_out()

    def _statuses(self, job_id: JobId) -> tuple[m.TaskStatus, ...]:
        mine = [d for d in self._running.values() if d.job.job_id == job_id]
        return tuple(m.TaskStatus(attempt_id=d.attempt_id, task_id=d.task.id, state=m.TaskState.RUNNING) for d in mine)

    def _say(self, deployment: m.DeployTask, state: m.TaskState) -> None:
        status = m.TaskStatus(attempt_id=deployment.attempt_id, task_id=deployment.task.id, state=state)
        self._tasks.job(f"{state} of {deployment.attempt_id}", self._until_told(deployment, status))

    async def _until_told(self, deployment: m.DeployTask, status: m.TaskStatus) -> None:
        """Send the status until it is answered. A refusal is an answer; a replaced JobMaster never answers."""
        request = m.TaskStateChanged(resource_id=self._core.resource_id, status=status)
        target = job_master(deployment.job.job_id)
        for _ in range(20):
            try:
                await self._network.ask(target, request, timeout=ANSWER, fence=deployment.job_leader_id)
                return
            except MinflinkError as error:
                if error.info().code not in ("unreachable", "rpc-timeout"):
                    return
            await asyncio.sleep(RETRY)

    async def _progress(self) -> None:
        await asyncio.sleep(random.uniform(0, BATCH))
        batches = 0
        while True:
            batches += 1
            for attempt, deployment in self._running.items():
                metrics = m.TaskMetrics(batch_id=batches, batches=batches, rows_in=100 * batches, batch_ms=300.0)
                notice = m.TaskProgress(attempt_id=attempt, metrics=metrics)
                self._network.tell(job_master(deployment.job.job_id), notice, fence=deployment.job_leader_id)
            await asyncio.sleep(BATCH)


async def play(count: int, *, slots: int, secret: bytes, port: int, offset: int) -> None:
    loop = asyncio.get_running_loop()
    stdin = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
    ids = [ResourceId(f"tm-{offset + n:012x}") for n in range(count)]
    players = [Player(resource_id, slots=slots, secret=secret, port=port) for resource_id in ids]
    print("ready", flush=True)
    await stdin.readline()
    starting = [asyncio.ensure_future(player.start()) for player in players]
    await stdin.read()  # to its end
    for start in starting:
        start.cancel()
    await asyncio.gather(*starting, return_exceptions=True)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(20):
            await asyncio.gather(*(player.aclose() for player in players))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--secret-file", type=Path, required=True)
    parser.add_argument("--offset", type=int, default=0, help="of the ids, where several processes play")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    secret = options.secret_file.read_bytes().strip()
    asyncio.run(play(options.count, slots=options.slots, secret=secret, port=options.port, offset=options.offset))


if __name__ == "__main__":
    main()
