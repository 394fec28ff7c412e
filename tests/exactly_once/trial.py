"""Jobs of the set on one cluster while something happens to them. Then each one's output is compared with the batch."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from msgspec.structs import replace
from ruamel.yaml import YAML

from minflinkd.jobgraph.model import Sink
from minflinkd.jobgraph.params import substitute
from minflinkd.rest.schemas import JobInfo
from tests.beside import beside
from tests.cluster import Cluster, free_port, running_cluster, write_job
from tests.exactly_once.batch import JOBS, job_graph, of_the_batch, run_batch
from tests.exactly_once.feed import AHEAD, Feed
from tests.exactly_once.inputs import write_inputs
from tests.exactly_once.results import Row, differences, read_sink
from tests.files import files_below
from tests.lakes import LOGS, REPLACING
from tests.waiting import until

COMPARED = ("vertex", "record")  # of a bad record: when it was found, and what Spark says of it, may differ
ENDED = ("FINISHED", "FAILED", "CANCELED")
SETTINGS = {
    "resourcemanager.standby-taskmanagers": 2,
    "resourcemanager.max-taskmanagers": 2,  # two JVMs at a time are what two cores carry
    "taskmanager.numberOfTaskSlots": 14,  # room for all jobs on one, so that what hits it hits them all
    "taskmanager.session.stopped-timeout": "2 s",
    "heartbeat.timeout": "20 s",
    "restart-strategy.exponential-delay.max-backoff": "1 s",
}


@dataclass(frozen=True)
class Outcome:
    """How a job ended."""

    info: JobInfo
    completed: int  # checkpoints of the last coordinator
    restored: int | None  # the checkpoint from which it was restored last
    failure: str | None


class Trial(ABC):
    """Runs jobs to their end while `strike` disturbs them, and verifies what they wrote.

    `files`: how many each source has; each is a micro-batch. `pace`: the least time from one micro-batch to the next;
    the jobs must outlast all that is done to them. With `endless` they do: files come while the trial strikes, `files`
    at most, and then the jobs are drained. `changes`: top-level keys of the job files. `isolated`: the jobs that have a
    TaskManager to themselves. `settings`: options of the daemon.
    """

    def __init__(
        self,
        base: Path,
        names: Sequence[str],
        *,
        files: int,
        pace: str,
        endless: bool = False,
        changes: Mapping[str, Any] | None = None,
        isolated: Sequence[str] = (),
        settings: Mapping[str, object] | None = None,
    ) -> None:
        self.base = base
        self.names = names
        self.changes = {"trigger-interval": pace, **(changes or {}), **({"mode": "streaming"} if endless else {})}
        self.feed = Feed(base / "reserve", base / "in") if endless else None
        self.isolated = isolated
        self.settings = {**SETTINGS, **(settings or {})}
        self.files = files
        self.environ: dict[str, str] = {}
        self.ids: dict[str, str] = {}  # of the jobs, by name
        self.outcomes: dict[str, Outcome] = {}
        self.struck: Counter[str] = Counter()  # by job: how often it was hit before it ended
        self.strikes = 0
        self.hit: frozenset[str] = frozenset()  # the attempts that the last strike has ended, or will
        self.story: list[str] = []

    @abstractmethod
    async def strike(self) -> None:
        """Do to the jobs whatever the trial does, while they run."""

    async def run(self) -> Self:
        """Run the trial on a cluster of its own."""
        environ, settings = {**os.environ, **self.environ}, {"rest.port": free_port(), **self.settings}
        async with running_cluster(self.base / "cluster", environ=environ, **settings) as cluster:
            return await self.run_on(cluster)

    async def run_on(self, cluster: Cluster) -> Self:
        self.cluster = cluster
        await asyncio.to_thread(self._prepare)
        # No job ends while another still waits for its TaskManager.
        await cluster.await_ready(1 + len(self.isolated), timeout=300)
        self.tell("submitting")
        async with asyncio.TaskGroup() as group:
            submitted = [group.create_task(self.submit(name)) for name in self.names]
        self.ids = {name: task.result() for name, task in zip(self.names, submitted, strict=True)}
        if self.feed is None:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._batch())
                await self.strike()
        else:
            async with beside("feeder", self.feed.run(self.cluster, self.ids)):
                await self.strike()
            await self._drain(self.feed)
            await self._batch()
        for name, job_id in self.ids.items():
            self.outcomes[name] = await self._end(job_id)
        self.tell("all have ended")
        return self

    async def _batch(self) -> None:
        await run_batch(self.base / "in", self.base / "batch", self.names)

    async def _drain(self, feed: Feed) -> None:
        """End jobs without an end: they read what there is, and write their last windows.

        A job that restarts cannot be drained, and one that had read everything before the last strike seems ready.
        """
        await self.await_running(self.hit)
        self.tell(f"draining, with {feed.given} files of each source")
        for name, job_id in self.ids.items():
            await feed.all_read(self.cluster, name, job_id)
            await self.cluster.client.stop(job_id, str(self.base / "savepoints" / name), drain=True)

    def _prepare(self) -> None:
        write_inputs(self.base / "in" if self.feed is None else self.base / "reserve", self.files)
        if self.feed is not None:
            self.feed.give(AHEAD)
        shutil.copytree(JOBS, self.base / "jobs")
        for name in self.names:
            document = YAML(typ="safe").load(JOBS / f"{name}.yaml")
            own = {"isolation": "job"} if name in self.isolated else {}
            write_job(self.base / "jobs" / f"{name}.json", document | self.changes | own)

    async def submit(self, name: str) -> str:
        params = {"input": str(self.base / "in"), "output": str(self.base / "out" / name)}
        return await self.cluster.submit(self.base / "jobs" / f"{name}.json", **params)

    async def _end(self, job_id: str) -> Outcome:
        """Return the outcome of a job. If it does not end in time, its state then: the other jobs are still checked."""
        client = self.cluster.client

        async def ended() -> JobInfo | None:
            job = await client.job(job_id)
            return job if job.state in ENDED else None

        files = self.files if self.feed is None else self.feed.given
        with contextlib.suppress(AssertionError):
            await until(ended, "the end", timeout=600 + 5 * files, pause=0.2, patience=1.0)
        job, failure = await client.job(job_id), (await client.exceptions(job_id)).root_exception
        checkpoints = await self.cluster.client.checkpoints(job_id)
        restored = checkpoints.latest.restored
        return Outcome(job, checkpoints.counts.completed, restored.id if restored is not None else None, failure)

    def tell(self, what: str) -> None:
        """Note an event with its time, for whoever looks into a failure."""
        self.story.append(f"{time.strftime('%H:%M:%S')} {what}")
        print(self.story[-1], flush=True)

    # --- for subclasses ---

    async def jobs(self) -> dict[str, JobInfo]:
        """Return the jobs that have not ended, by name."""
        found = {name: await self.cluster.client.job(job_id) for name, job_id in self.ids.items()}
        return {name: job for name, job in found.items() if job.state not in ENDED}

    async def await_running(self, struck: frozenset[str]) -> None:
        """Wait until every job runs, and none is in an attempt that was hit."""

        async def anew() -> bool:
            return all(_runs(job, struck) for job in (await self.jobs()).values())

        await until(anew, "every job runs", timeout=180, pause=0.1)

    async def await_adopted(self, before: set[str]) -> None:
        """Wait until every job runs under the next daemon, in the attempts that it was in (A14a)."""
        await self.await_running(frozenset())
        now = attempts(await self.jobs())
        assert now <= before, f"restarted instead of adopted: {now - before}\n{self.told}"

    async def settle(self, more: int = 1) -> None:
        """Wait until every job has completed `more` further checkpoints, or has ended."""
        before = {name: await self._completed(name) for name in self.ids}

        async def settled() -> bool:
            return all([await self._completed(name) >= before[name] + more for name in await self.jobs()])

        await until(settled, "every job has a new checkpoint", timeout=180, pause=0.1)

    async def process(self) -> None:
        """Wait until a checkpoint of every job covers a micro-batch of each of its tasks, so that state is restored."""

        async def processed() -> bool:
            jobs = (await self.jobs()).values()
            return all(vertex.minflinkd.batches > 0 for job in jobs for vertex in job.vertices)

        await until(processed, "every task has finished a micro-batch", timeout=180, pause=0.1)
        await self.settle(2)  # the first one may have been cut before that

    async def _completed(self, name: str) -> int:
        return (await self.cluster.client.checkpoints(self.ids[name])).counts.completed

    def micro_batches(self, attempts: Iterable[str]) -> dict[str, list[int]]:
        """Return the numbers of the micro-batches that Spark has committed in these attempts, and still records."""

        def committed(attempt: str) -> list[int]:
            homes = self.cluster.state.glob(f"taskmanagers/*/state/attempts/{attempt}")
            found = (path for home in homes for path in files_below(home) if path.parent.name == "commits")
            return sorted(int(path.name) for path in found if path.name.isdigit())

        return {attempt: committed(attempt) for attempt in attempts}

    def note_strike(self, jobs: Mapping[str, JobInfo]) -> frozenset[str]:
        """Count a strike against these jobs. Return the attempts that they are in."""
        self.strikes += 1
        self.struck.update(list(jobs))
        self.hit = frozenset(attempts(jobs))
        return self.hit

    # --- what must hold for each job ---

    def verify(self, name: str) -> None:
        """Check that the output is exactly-once, to the last row, and that nothing staged or temporary is left."""
        self.verify_end(name)
        for sink, (found, wanted) in self.sinks(name).items():
            assert wanted, "there is something to compare"
            assert not (wrong := differences(found, wanted)), f"{name}.{sink}: {wrong}\n{self.told}"
        assert leftovers(self.base / "out" / name) == []

    def verify_at_least_once(self, name: str) -> None:
        """Check that no row is lost and that the batch has every row that is there. Rows may occur more often."""
        self.verify_end(name)
        for sink, (found, wanted) in self.sinks(name).items():
            assert wanted, "there is something to compare"
            wrong = differences(Counter(set(found)), Counter(set(wanted)))
            assert not wrong, f"{name}.{sink}: {wrong}\n{self.told}"

    def verify_end(self, name: str) -> None:
        """Check that it ran to its end, and that every strike hit it."""
        outcome = self.outcomes[name]
        assert outcome.info.state == "FINISHED", f"{outcome.failure}\n{self.told}"
        assert outcome.completed > 0
        assert self.struck[name] == self.strikes, f"it ended too soon\n{self.told}"

    def sinks(self, name: str) -> dict[str, tuple[Counter[Row], Counter[Row]]]:
        """Return what each sink holds, and what the batch wrote to it."""
        graph = job_graph(name, self.base / "in", self.base / "out" / name)

        def resolved(sink: Sink) -> Sink:
            return replace(sink, options={key: substitute(text, graph.params) for key, text in sink.options.items()})

        return {
            vertex.id: (
                read_sink(
                    resolved(vertex.sink), self.base / "out" / name / vertex.id, COMPARED if not vertex.inputs else None
                ),
                read_sink(of_the_batch(vertex.sink), self.base / "batch" / name / vertex.id),
            )
            for vertex in graph.vertices
            if vertex.sink is not None
        }

    @property
    def told(self) -> str:
        return "\n".join(self.story)


def attempts(jobs: Mapping[str, JobInfo]) -> set[str]:
    found = {vertex.minflinkd.attempt_id for job in jobs.values() for vertex in job.vertices}
    return {attempt for attempt in found if attempt is not None}


def leftovers(directory: Path) -> list[str]:
    """Return the staged and temporary files that are still there."""
    found = [p for p in files_below(directory) if not (p.name.startswith("part-") or REPLACING.fullmatch(p.name))]
    return [str(p.relative_to(directory)) for p in found if not LOGS & {*p.parts}]


def _runs(job: JobInfo, struck: frozenset[str]) -> bool:
    fresh = all(vertex.minflinkd.attempt_id not in struck for vertex in job.vertices)
    return fresh and job.state == "RUNNING" and all(vertex.status in ("RUNNING", "FINISHED") for vertex in job.vertices)
