"""Plays the shop: starts Kafka, PostgreSQL and a daemon, runs both jobs, kills their processes, and compares.

    python -m examples.shop.play [--kills 8] [--seconds 60] [--seed 1] [--directory DIRECTORY]

Two hours of clicks and purchases are sent within `--seconds`, or more slowly if the kills take longer. Meanwhile a
TaskManager, its session, its JVM or the daemon is killed, `--kills` times. Then all that is in the tables and in the
topic is compared, row by row, with what plain Python computes from the same events. Exit code 1 if a row is missing,
wrong, or, but for alerts, there twice.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Any

from examples.clicks.generate import events
from examples.shop.compare import Rows, differences, in_alerts, in_iceberg, in_postgresql, wanted
from minflinkd.runtime.errors import MinflinkError
from tests.cluster import Cluster, free_port, running_cluster
from tests.servers.apache_kafka import ApacheKafka, Record
from tests.servers.postgres import USER, Postgres
from tests.servers.process import HOST, Server
from tests.waiting import until

HERE = Path(__file__).resolve().parent
LIMIT = 180  # a purchase of this amount or more is an alert
PARTITIONS = 2
TOPICS = {"shop": ("clicks", "purchases"), "alerts": ("purchases",)}  # that a job reads
PARTS = ("taskmanager", "session", "jvm", "daemon")  # the supervisor with all its processes, its child, its JVM
PAUSE = 0.5  # seconds between two packets of events
LONGEST = 3.0  # seconds from a checkpoint of both jobs to the next kill, at most


class Shop:
    """The servers, the daemon, and both jobs, in one directory."""

    def __init__(self, base: Path, kills: int, seconds: float, seed: int) -> None:
        self._base = base
        self._kills = kills
        self._seconds = seconds
        self._seed = seed
        self._kafka = ApacheKafka(base / "kafka")
        self._postgres = Postgres(base / "postgresql")
        self._catalog = f"sqlite:///{base / 'catalog.db'}"
        self._warehouse = f"file://{base / 'warehouse'}"
        self._jobs: dict[str, str] = {}  # ids, by name
        self._began = time.monotonic()
        self.killed = Counter[str]()

    async def play(self) -> list[str]:
        """Return what is wrong, a line for each sink."""
        async with contextlib.AsyncExitStack() as stack:
            for server in (self._kafka, self._postgres):
                await self._start(server, stack)
            for topic in ("clicks", "purchases", "alerts"):
                await self._kafka.create_topic(topic, PARTITIONS)
            settings: dict[str, Any] = {
                "rest.port": free_port(),  # the next daemon has the same
                "resourcemanager.standby-taskmanagers": 1,
                "resourcemanager.max-taskmanagers": 2,
                "taskmanager.numberOfTaskSlots": 6,
                "taskmanager.spark.conf": {"spark.jars": f"{self._kafka.jars},{self._postgres.jar}"},
            }
            self._tell("starting the daemon and its first TaskManager")
            cluster = await stack.enter_async_context(running_cluster(self._base / "daemon", **settings))
            await cluster.await_ready(1)
            await self._submit(cluster)
            sent = await self._send_and_kill(cluster)
            await self._end(cluster, sent)
            found, right = await asyncio.to_thread(self._found), wanted(sent["clicks"], sent["purchases"], LIMIT)
        self._summarize(found, right)
        return differences(found, right)

    async def _start(self, server: Server, stack: contextlib.AsyncExitStack) -> None:
        if reason := server.missing():
            raise SystemExit(reason)
        self._tell(f"starting {server.name}")
        stack.push_async_callback(server.kill)
        await server.start()

    async def _submit(self, cluster: Cluster) -> None:
        targets = {"database": self._postgres.url, "catalog": self._catalog, "warehouse": self._warehouse}
        params: dict[str, dict[str, Any]] = {"shop": targets, "alerts": {"limit": LIMIT}}
        for name, own in params.items():
            self._jobs[name] = await cluster.submit(HERE / f"{name}.yaml", broker=self._kafka.address, **own)
        for job_id in self._jobs.values():
            await cluster.await_state(job_id, "RUNNING")
        self._tell("both jobs run")

    # --- events come, processes go ---

    async def _send_and_kill(self, cluster: Cluster) -> dict[str, list[dict[str, Any]]]:
        """Send all events, and kill meanwhile. Return the events by topic."""
        drawn = events(files=12, seed=self._seed)
        rng = random.Random(self._seed)
        order = [part for _ in range(self._kills) for part in rng.sample(PARTS, len(PARTS))]
        async with asyncio.TaskGroup() as group:
            group.create_task(self._send(drawn), name="sender")
            for part in order[: self._kills]:
                await self._settle(cluster)
                await asyncio.sleep(rng.uniform(0, LONGEST))  # no wait: the instant of the kill
                await self._kill(cluster, part, rng.choice(sorted(self._jobs)))
        await self._settle(cluster)  # a job that restarts cannot be stopped
        return {topic: [event for _, event in delivered] for topic, delivered in drawn.items()}

    async def _send(self, drawn: dict[str, list[tuple[float, dict[str, Any]]]]) -> None:
        """Send each topic's events in their order. A part of them is held back until the last kill."""
        end = max(delivered[-1][0] for delivered in drawn.values())
        began, sent = time.monotonic(), dict.fromkeys(drawn, 0)
        while any(sent[topic] < len(delivered) for topic, delivered in drawn.items()):
            share = min((time.monotonic() - began) / self._seconds, (1 + self.killed.total()) / (1 + self._kills))
            for topic, delivered in drawn.items():
                packet = [event for at, event in delivered[sent[topic] :] if at <= share * end]
                records = [Record(json.dumps(event), int(event["user"][1:]) % PARTITIONS) for event in packet]
                await asyncio.to_thread(self._kafka.produce, topic, records)
                sent[topic] += len(packet)
            await asyncio.sleep(PAUSE)
        self._tell("all events are sent")

    async def _settle(self, cluster: Cluster) -> None:
        """Wait until both jobs run, and each has a checkpoint more than now."""

        async def done(name: str) -> int:
            return (await cluster.client.checkpoints(self._jobs[name])).counts.completed

        before: dict[str, int] = {}

        async def settled() -> bool:
            with contextlib.suppress(MinflinkError):  # a daemon that has just started does not know its jobs yet
                counts = {name: await done(name) for name in self._jobs}
                for name, count in counts.items():
                    before.setdefault(name, count)
                return all(count > before[name] for name, count in counts.items())
            return False

        await until(settled, "a checkpoint of both jobs", timeout=180, pause=0.2)

    async def _kill(self, cluster: Cluster, part: str, job: str) -> None:
        """Kill the daemon, or a process that the job runs on."""
        self.killed[part] += 1
        if part == "daemon":
            self._tell("the daemon is killed, and started again")
            await cluster.kill()
            await cluster.start_again()
            return
        manager = await cluster.task_manager_of(self._jobs[job])
        pid = manager.minflinkd.pid
        if part != "taskmanager":
            pid = int((await cluster.measured(manager.id)).minflinkd.metrics[f"{part}.pid"])
        self._tell(f"the {part} that runs {job} is killed")
        os.kill(pid, signal.SIGKILL)

    # --- the end ---

    async def _end(self, cluster: Cluster, sent: dict[str, list[dict[str, Any]]]) -> None:
        """Stop the jobs when they have read everything. The drained one also writes the windows that are still open."""

        async def has_read(job_id: str, topics: Collection[str]) -> bool:
            offsets = await cluster.client.get(f"/jobs/{job_id}/offsets", dict[str, Any])
            found = Counter[str]()
            for task in offsets["tasks"].values():
                for offset in task["processed"].values():
                    for topic, partitions in offset.items() if isinstance(offset, dict) else ():
                        if topic in sent:
                            found[topic] = sum(partitions.values())
            return all(found[topic] == len(sent[topic]) for topic in topics)

        for name, job_id in self._jobs.items():
            what = f"{name} has read everything"
            await until(partial(has_read, job_id, TOPICS[name]), what, timeout=180, pause=0.2)
            await cluster.client.stop(job_id, f"file://{self._base / 'savepoints'}", drain=name == "shop")
            await cluster.await_state(job_id, "FINISHED", timeout=180)
        self._tell("both jobs have ended")

    def _found(self) -> Rows:
        return Rows(
            in_postgresql(f"postgresql://{HOST}:{self._postgres.port}/postgres?user={USER}"),
            in_iceberg(self._catalog, self._warehouse),
            in_alerts(record.value or "" for record in self._kafka.records("alerts", PARTITIONS)),
        )

    def _summarize(self, found: Rows, right: Rows) -> None:
        self._tell("kills: " + ", ".join(f"{count} x {part}" for part, count in sorted(self.killed.items())))
        self._tell(f"PostgreSQL: {found.per_minute.total():,} rows of {right.per_minute.total():,}")
        self._tell(f"Iceberg: {found.attributed.total():,} rows of {right.attributed.total():,}")
        again = sum(times > 1 for times in found.alerts.values())
        self._tell(f"alerts: {len(found.alerts)} of {len(right.alerts)} purchases, {again} of them more than once")

    def _tell(self, what: str) -> None:
        sys.stderr.write(f"{time.monotonic() - self._began:6.1f} s  {what}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="Play the shop under kills, and compare what its jobs wrote.")
    parser.add_argument("--kills", type=int, default=8, help="how many processes are killed")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long events come, at least")
    parser.add_argument("--seed", type=int, default=1, help="draws the events and the kills")
    parser.add_argument("--directory", type=Path, help="keep everything here, instead of in a temporary directory")
    arguments = parser.parse_args()
    if arguments.directory is not None and arguments.directory.exists() and any(arguments.directory.iterdir()):
        parser.error(f"{arguments.directory} is not empty: rows of an earlier run would be taken for those of this one")
    with contextlib.ExitStack() as stack:
        base = arguments.directory or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="minflinkd-shop-")))
        wrong = asyncio.run(Shop(base.resolve(), arguments.kills, arguments.seconds, arguments.seed).play())
    for line in wrong:
        sys.stderr.write(f"WRONG: {line}\n")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
