"""All tasks of one graph in the session: deployed, cut, stopped and restored as a JobMaster and a TaskManager do it."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path
from uuid import uuid4

from minflinkd.checkpoint.state_matching import match_tasks
from minflinkd.jobgraph.chaining import chain
from minflinkd.jobgraph.input_range import limits
from minflinkd.jobgraph.model import JobGraph, Task, version_of
from minflinkd.rpc.messages import Analysis, JobContext
from minflinkd.rpc.snapshot import TaskSnapshot
from minflinkd.runtime.ids import AttemptId, JobId, ResourceId, TaskId
from minflinkd.taskmanager.child import protocol as p
from minflinkd.taskmanager.placing import link_or_copy
from minflinkd.testing.keeping import file_name
from minflinkd.testing.session import LocalSession

_DESCRIBES = "_metadata/schema"


@dataclass(frozen=True)
class Cut:
    """A task's part of a checkpoint. The files in `directory` never change."""

    taken: p.SnapshotTaken
    directory: Path
    snapshot: TaskSnapshot


@dataclass(frozen=True)
class Moment:
    """What moves forward in one step: files by source, event time and the time of day."""

    files: Mapping[str, Sequence[tuple[Path, Path]]]
    watermark_ms: int | None = None
    clock_ms: int | None = None


class Run:
    """One deployment of a graph. `kept`: by sink, the micro-batches whose rows a checkpoint covers."""

    def __init__(self, session: LocalSession, job_id: JobId, graph: JobGraph, artifacts: Mapping[str, str]) -> None:
        self.graph = graph
        self.watermark_ms = 0
        self._session = session
        self._artifacts = dict(artifacts)
        self._tasks = _upstream_first(chain(graph))
        self._attempts: dict[TaskId, AttemptId] = {}
        self._directories: dict[TaskId, Path] = {}
        self._context = JobContext(
            job_id=job_id,
            name=graph.name,
            params=graph.params,
            mode=graph.mode,
            checkpointing=graph.checkpointing,
            checkpoint_root="file:///nowhere",  # snapshots stay on this machine
            spark=graph.spark,
            limits=limits(graph),
            version=version_of(graph),
        )

    # --- before it runs ------------------------------------------------------------------------------------------

    async def analyze(self, cuts: Mapping[TaskId, Cut] | None = None) -> Analysis:
        """Let Spark analyse the tasks, and compare the state of these cuts with theirs."""
        scratch = self._session.directory / "described" / uuid4().hex
        held = {}
        for number, (task, cut) in enumerate(self._matched(cuts or {}).items()):
            target = scratch / str(number)
            if await asyncio.to_thread(_describe, cut, target):
                held[task] = p.DescribedState(operators=cut.taken.operators, directory=str(target))
        try:
            return await self._session.ask(
                p.AnalyzeTasks(job=self._context, tasks=tuple(self._tasks), artifacts=self._artifacts, held=held)
            )
        finally:
            await asyncio.to_thread(shutil.rmtree, scratch, ignore_errors=True)

    def _matched(self, cuts: Mapping[TaskId, Cut]) -> dict[TaskId, Cut]:
        """Return the cut that each task goes on from. What does not fit was refused before."""
        vertices = {task.id: [vertex.id for vertex in task.vertices] for task in self._tasks}
        found = match_tasks([cut.snapshot for cut in cuts.values()], vertices, allow_non_restored=True)
        return {task: cuts[snapshot.task_id] for task, snapshot in found.items()}

    # --- while it runs -------------------------------------------------------------------------------------------

    async def start(
        self,
        cuts: Mapping[TaskId, Cut] | None = None,
        number: int = 0,
        *,
        allow_non_restored: bool = False,
        same_meaning: bool = False,
    ) -> None:
        """Deploy all tasks, from the cuts of checkpoint `number` if there are any. Raises RemoteError."""
        for task in self._tasks:
            self._directories[task.id] = self._session.directory / "attempts" / uuid4().hex
            self._directories[task.id].mkdir(parents=True)
        starts = []
        for task in self._tasks:
            attempt = self._attempts[task.id] = AttemptId(uuid4().hex)
            self._session.expect(attempt)
            cut = self._matched(cuts or {}).get(task.id)
            restored = None
            if cut is not None:
                await asyncio.to_thread(_lay_out, cut, self._directories[task.id] / "checkpoint")
                taken = cut.taken
                restored = p.Restored(
                    checkpoint_id=number,
                    batch_id=taken.batch_id,
                    input_ended=taken.input_ended,
                    inputs=taken.inputs,
                    output=taken.output,
                    operators=taken.operators,
                    allow_non_restored=allow_non_restored,
                    same_meaning=same_meaning,
                )
            starts.append(self._session.ask(self._request(task, attempt, restored)))
        for answer in await asyncio.gather(*starts, return_exceptions=True):
            if isinstance(answer, BaseException):
                raise answer

    def _request(self, task: Task, attempt: AttemptId, restored: p.Restored | None) -> p.RunTask:
        owner = {vertex.id: other.id for other in self._tasks for vertex in other.vertices}
        inputs = tuple(
            p.InputChannel(
                vertex_id=edge.id,
                directory=str(self._directories[owner[edge.id]] / "exchange"),
                idle_timeout=edge.idle_timeout or 0.0,
            )
            for edge in task.inputs
        )
        directory = self._directories[task.id]
        output = p.OutputChannel(directory=str(directory / "exchange"), readers=task.readers) if task.readers else None
        return p.RunTask(
            job=self._context,
            task=task,
            attempt_id=attempt,
            directory=str(directory),
            restored=restored,
            artifacts=self._artifacts,
            inputs=inputs,
            output=output,
        )

    async def step(self, moment: Moment) -> None:
        """Advance all tasks, the first ones first. Raises RemoteError with the cause if a query fails."""
        marks = []
        for task in self._tasks:
            files = [
                (str(staged), str(name)) for vertex in task.vertices for staged, name in moment.files.get(vertex.id, ())
            ]
            request = p.StepTask(
                attempt_id=self._attempts[task.id],
                files=tuple(files),
                watermark_ms=moment.watermark_ms,
                clock_ms=moment.clock_ms,
            )
            stepped = await self._session.of_attempt(self._attempts[task.id], request)
            marks.append(stepped.watermark_ms)
        self.watermark_ms = min(marks)

    async def drain(self) -> None:
        """Process all input to its end, and end event time. Raises RemoteError if a query fails."""
        for attempt in self._attempts.values():
            await self._session.of_attempt(attempt, p.DrainAttempt(attempt_id=attempt))
        for attempt in self._attempts.values():
            await self._session.input_ended(attempt)

    async def cut(self, number: int) -> dict[TaskId, Cut]:
        """Take a checkpoint, without confirming it. Raises RemoteError."""
        cuts = await asyncio.gather(*(self._cut(task, number) for task in self._tasks))
        return {task.id: cut for task, cut in zip(self._tasks, cuts, strict=True)}

    async def _cut(self, task: Task, number: int) -> Cut:
        attempt = self._attempts[task.id]
        target = self._session.directory / "snapshots" / f"{attempt}-{number}"
        target.parent.mkdir(exist_ok=True)
        request = p.TakeSnapshot(
            attempt_id=attempt, checkpoint_id=number, target_directory=str(target), timeout=self._session.timeout
        )
        taken = await self._session.of_attempt(attempt, request)
        snapshot = TaskSnapshot(
            task_id=task.id,
            attempt_id=attempt,
            resource_id=ResourceId("tm-test"),
            checkpoint_id=number,
            batch_id=taken.batch_id,
            source_offsets=taken.source_offsets,
            operators=taken.operators,
            parallelism=task.parallelism,
            input_ended=taken.input_ended,
            inputs=taken.inputs,
            output=taken.output,
            unaligned=taken.unaligned,
        )
        return Cut(taken, target, snapshot)

    async def confirm(self, number: int) -> None:
        for attempt in self._attempts.values():
            await self._session.of_attempt(attempt, p.ConfirmCheckpoint(attempt_id=attempt, checkpoint_id=number))

    async def stop(self) -> None:
        """Stop all tasks. What they have done since the last cut is lost. Idempotent."""
        attempts, self._attempts = self._attempts, {}
        for attempt in attempts.values():
            await self._session.ask(p.StopTask(attempt_id=attempt))
        for attempt in attempts.values():
            await self._session.ask(p.UnloadTask(attempt_id=attempt))
            self._session.forget(attempt)
        for directory in self._directories.values():
            await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)

    # --- its rows ------------------------------------------------------------------------------------------------

    def written(self, sink: str) -> list[str]:
        """Return the files of the micro-batches that the present attempt has written, in order."""
        task = next(task for task in self._tasks if any(vertex.id == sink for vertex in task.vertices))
        attempt = self._attempts.get(task.id)
        if attempt is None:
            return []
        prefix = Path(file_name(self._context.job_id, sink, attempt, 0)).parent
        return sorted(f"{prefix}/{file.name}" for file in (self._session.rows / prefix).glob("*.arrow"))


def covered(cuts: Mapping[TaskId, Cut], sink: str) -> list[str]:
    """Return the files of a sink that a checkpoint commits."""
    found = [t for cut in cuts.values() for t in cut.taken.transactions if t.sink == sink]
    return [token.token.strip('"') for transaction in found for token in transaction.tokens]


def _upstream_first(tasks: Sequence[Task]) -> list[Task]:
    upstream = {task.id: {other.id for other in tasks if task.id in other.readers} for task in tasks}
    by_id = {task.id: task for task in tasks}
    return [by_id[name] for name in TopologicalSorter(upstream).static_order()]


def _describe(cut: Cut, target: Path) -> bool:
    """Copy Spark's descriptions of the state's types. Returns whether there are any."""
    found = False
    for file in cut.taken.files:
        if file.path.startswith("state/") and _DESCRIBES in file.path:
            found = True
            (target / file.path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(cut.directory / file.path, target / file.path)
    return found


def _lay_out(cut: Cut, target: Path) -> None:
    if cut.directory.exists():
        shutil.copytree(cut.directory, target, copy_function=link_or_copy)
