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
import random
import sys
from functools import partial
from pathlib import Path
from typing import cast

import structlog
from msgspec.structs import replace as copy

from minflinkd.blob.offloading import MessageBlobs, OffloadingNetwork
from minflinkd.rpc import messages as m
from minflinkd.rpc.local import LocalNetwork
from minflinkd.rpc.network import job_master, task_manager
from minflinkd.rpc.tcp import RpcUplink
from minflinkd.runtime.errors import MinflinkError
from minflinkd.runtime.ids import AttemptId, JobId, ResourceId
from minflinkd.taskmanager.slots.core import Exit
from minflinkd.taskmanager.slots.core_driver import OwnCommand
from minflinkd.taskmanager.slots.events import EndTasks, StartTask
from tests.beside import beside
from tests.task_manager import BareTaskManager

BATCH = 1.0  # seconds between two progress messages of a task
RETRY = 0.5
ANSWER = 5.0
METRICS = {f"process.{kind}.{what}": 1e9 for kind in ("supervisor", "session", "jvm") for what in ("rss", "cpu", "fds")}


class Player(BareTaskManager):
    """One TaskManager: carries out what its core decides."""

    def __init__(self, resource_id: ResourceId, *, slots: int, secret: bytes, port: int) -> None:
        self._local = LocalNetwork()
        self._uplink = RpcUplink(
            self._local, address=task_manager(resource_id), secret=secret, daemon=("127.0.0.1", port)
        )
        # An analysis comes in an envelope of its own, whatever its size. No message here is large enough for a blob.
        self._offloading = OffloadingNetwork(self._local, cast(MessageBlobs, None), minsize=sys.maxsize)
        self._running: dict[AttemptId, m.DeployTask] = {}
        super().__init__(resource_id, self._offloading, slots=slots, standalone=True)
        self.mailbox.on(m.AnalyzeJob, self._analyze)
        self.mailbox.on_accepted(m.HeartbeatFromJobMaster, self._beat)

    async def _start(self) -> None:
        await self._uplink.start()
        await self._uplink.connected.wait()
        await super()._start()
        self.tasks.loop("progress", self._progress)

    async def _stop(self) -> None:
        await super()._stop()
        await self._offloading.aclose()
        await self._uplink.aclose()
        await self._local.aclose()

    async def _analyze(self, _: m.AnalyzeJob) -> m.Analysis:
        return m.Analysis()

    async def _beat(self, request: m.HeartbeatFromJobMaster) -> m.JobHeartbeatAnswer:
        kept = self.core.slots.kept_for(request.job_id)
        return m.JobHeartbeatAnswer(allocations=kept, tasks=self._statuses(request.job_id))

    def commanded_to(self, command: OwnCommand) -> None:
        match command:
            case StartTask(deployment):
                self._running[deployment.attempt_id] = deployment
                self._say(deployment, m.TaskState.RUNNING)
            case EndTasks(attempts):
                asyncio.get_running_loop().call_soon(self._end, attempts)
            case Exit():
                self.tasks.job("exit", self._uplink.aclose())
            case _:
                pass  # there are no files to delete and no session to renew

    def complete(self, request: m.Request[object]) -> m.Request[object]:
        if isinstance(request, m.RegisterTaskManager | m.HeartbeatFromTaskManager):
            return copy(request, report=copy(request.report, metrics=METRICS))
        return request

    # --- tasks ---------------------------------------------------------------------------------------------------

    def _end(self, attempts: tuple[AttemptId, ...]) -> None:
        for attempt in attempts:
            if (deployment := self._running.pop(attempt, None)) is not None:
                self._say(deployment, m.TaskState.CANCELED)
            self.inform(partial(self.core.attempt_ended, attempt))

    def _statuses(self, job_id: JobId) -> tuple[m.TaskStatus, ...]:
        mine = [d for d in self._running.values() if d.job.job_id == job_id]
        return tuple(m.TaskStatus(attempt_id=d.attempt_id, task_id=d.task.id, state=m.TaskState.RUNNING) for d in mine)

    def _say(self, deployment: m.DeployTask, state: m.TaskState) -> None:
        status = m.TaskStatus(attempt_id=deployment.attempt_id, task_id=deployment.task.id, state=state)
        self.tasks.job(f"{state} of {deployment.attempt_id}", self._until_told(deployment, status))

    async def _until_told(self, deployment: m.DeployTask, status: m.TaskStatus) -> None:
        """Send the status until it is answered. A refusal is an answer; a replaced JobMaster never answers."""
        request = m.TaskStateChanged(resource_id=self.resource_id, status=status)
        target = job_master(deployment.job.job_id)
        for _ in range(20):
            try:
                await self._local.ask(target, request, timeout=ANSWER, fence=deployment.job_leader_id)
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
                self._local.tell(job_master(deployment.job.job_id), notice, fence=deployment.job_leader_id)
            await asyncio.sleep(BATCH)


async def play(count: int, *, slots: int, secret: bytes, port: int, offset: int) -> None:
    loop = asyncio.get_running_loop()
    stdin = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
    ids = [ResourceId(f"tm-{offset + n:012x}") for n in range(count)]
    players = [Player(resource_id, slots=slots, secret=secret, port=port) for resource_id in ids]
    print("ready", flush=True)
    await stdin.readline()

    async def come() -> None:
        async with asyncio.TaskGroup() as group:
            for player in players:
                group.create_task(player.start())

    async with beside("the TaskManagers come", come()):
        await stdin.read()  # to its end
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
