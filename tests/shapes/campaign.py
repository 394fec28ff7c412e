"""Many shapes on one cluster, several at a time. Those stopped with a savepoint continue under another daemon.

A kill hits every job that runs, so the shapes that are killed run together, after the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from pathlib import Path

from tests.attempt_guard import guarding
from tests.cluster import Cluster, running_cluster
from tests.servers.kafka import Tansu
from tests.shapes.playing import Play, Verdict
from tests.shapes.shape import Shape, from_files

AT_ONCE = 4  # jobs
STRUCK_AT_ONCE = 6
KILLS = ("kill session", "kill taskmanager")
SETTINGS: dict[str, object] = {
    "resourcemanager.standby-taskmanagers": 1,
    "resourcemanager.max-taskmanagers": 1,
    "taskmanager.numberOfTaskSlots": 100,
    "taskmanager.session.stopped-timeout": "2 s",
    "heartbeat.timeout": "30 s",
    "hot-restart.timeout": "3 min",  # a shape that never runs counts as stuck before that
}
Told = Callable[[Verdict], None]


async def play(
    shapes: Iterable[Shape],
    base: Path,
    told: Told,
    *,
    environ: Mapping[str, str] | None = None,
    longest: float = 150.0,
    cluster: Cluster | None = None,
) -> list[Verdict]:
    """Play the shapes, and return the verdicts in the order in which they were found.

    `environ`: the environment of the daemons. `longest`: see Play. If there is no broker, a shape reads from files what
    it would read from Kafka. The same holds on a given `cluster`, which comes from `cluster_for_shapes`.
    """
    shapes = list(shapes)
    wanted = any(shape.reads_kafka for shape in shapes)
    if wanted and (cluster is not None or Tansu.missing()):
        print(f"what would be read from Kafka is read from files: {Tansu.missing() or 'the cluster has no broker'}")
        shapes, wanted = [from_files(shape) for shape in shapes], False
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(guarding())
        broker = await _broker(stack, base) if wanted else None
        plays = [Play(shape, base / f"shape-{shape.seed}-{n}", longest, broker) for n, shape in enumerate(shapes)]
        return await _play(plays, base, told, environ, broker, cluster)


@contextlib.asynccontextmanager
async def cluster_for_shapes(
    base: Path, *, environ: Mapping[str, str] | None = None, broker: Tansu | None = None
) -> AsyncIterator[Cluster]:
    settings = dict(SETTINGS)
    if broker is not None:
        settings["taskmanager.spark.conf"] = {"spark.jars": broker.jars}
    async with running_cluster(base, environ=environ, **settings) as cluster:
        await cluster.await_ready(1, timeout=300)
        yield cluster


async def _play(
    plays: Sequence[Play],
    base: Path,
    told: Told,
    environ: Mapping[str, str] | None,
    broker: Tansu | None,
    given: Cluster | None,
) -> list[Verdict]:
    verdicts: list[Verdict] = []

    def note(play: Play, verdict: Verdict | None) -> None:
        if verdict is not None:
            verdicts.append(verdict)
            told(verdict)
            if verdict.good:
                shutil.rmtree(play.base, ignore_errors=True)

    def struck(play: Play) -> bool:
        return any(what in KILLS for what in play.shape.done)

    async with contextlib.AsyncExitStack() as stack:
        cluster = given or await stack.enter_async_context(
            cluster_for_shapes(base / "one", environ=environ, broker=broker)
        )
        await _calm(cluster, [p for p in plays if not struck(p)], note)
        killed = [p for p in plays if struck(p)]
        for first in range(0, len(killed), STRUCK_AT_ONCE):
            await _struck(cluster, killed[first : first + STRUCK_AT_ONCE], note)
    if waiting := [p for p in plays if p.over is None]:
        shutil.rmtree(base / "one/state", ignore_errors=True)  # as if the first host were gone
        async with cluster_for_shapes(base / "another", environ=environ, broker=broker) as other:
            await _each(waiting, AT_ONCE, lambda p: p.second(other), note)
    return verdicts


async def _broker(stack: contextlib.AsyncExitStack, base: Path) -> Tansu:
    broker = Tansu(base / "kafka")
    await broker.start()
    stack.push_async_callback(broker.kill)
    return broker


Note = Callable[[Play, Verdict | None], None]


async def _calm(cluster: Cluster, plays: Sequence[Play], note: Note) -> None:
    await _each(plays, AT_ONCE, lambda p: p.first(cluster), note)


async def _each(plays: Sequence[Play], at_once: int, action: Callable[[Play], object], note: Note) -> None:
    places = asyncio.Semaphore(at_once)

    async def one(play: Play) -> None:
        async with places:
            note(play, await action(play))  # type: ignore[misc]

    async with asyncio.TaskGroup() as group:
        for play in plays:
            group.create_task(one(play))


async def _struck(cluster: Cluster, plays: Sequence[Play], note: Note) -> None:
    """Kill when all jobs that have not ended wait for a kill. It hits all, also those that wait for another kind."""

    async def strike() -> None:
        while running := [p for p in plays if not p.rests]:
            if all(p.waits for p in running):
                what = running[0].waits
                for p in running:
                    p.tell(f"{what}, of {len(running)} jobs")
                await _kill(cluster, what)
                for p in running:
                    p.waits = ""
                    p.struck.set()
            await asyncio.sleep(0.05)

    async with asyncio.TaskGroup() as group:
        group.create_task(strike())
        group.create_task(_each(plays, len(plays), lambda p: p.first(cluster), note))


async def _kill(cluster: Cluster, what: str) -> None:
    (taskmanager,) = await cluster.task_managers(ready=False)
    if what == "kill taskmanager":
        pid = taskmanager.minflinkd.pid
    else:
        pid = int((await cluster.measured(taskmanager.id)).minflinkd.metrics["session.pid"])
    os.kill(pid, signal.SIGKILL)
