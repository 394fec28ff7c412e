"""All tasks of a graph in one session child, deployed, cut and restored as the daemon does it."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from minflinkd.jobgraph.model import Task
from minflinkd.rpc.messages import JobContext
from minflinkd.runtime.ids import AttemptId, TaskId
from minflinkd.taskmanager.child import protocol as p
from tests.spark.session_child import Child

Cuts = Mapping[TaskId, tuple[p.SnapshotTaken, Path]]


class Run:
    """One deployment of all tasks of a graph."""

    def __init__(self, child: Child, context: JobContext, tasks: tuple[Task, ...], artifacts: dict[str, str]) -> None:
        self.child = child
        self.context = context
        self.tasks = tasks
        self.artifacts = artifacts
        self.attempts: dict[TaskId, AttemptId] = {}
        self.directories = {task.id: child.fresh_directory() for task in tasks}

    async def start(self, restored: Cuts | None = None, at: Mapping[TaskId, p.Restored] | None = None) -> None:
        """Start all tasks. `at` has tasks that start elsewhere than at a cut; the caller lays out their directories."""
        cuts, starts = restored or {}, at or {}
        await asyncio.gather(*(self._start(task, cuts.get(task.id), starts.get(task.id)) for task in self.tasks))

    async def _start(
        self, task: Task, restored: tuple[p.SnapshotTaken, Path] | None, before: p.Restored | None
    ) -> None:
        owner = {vertex.id: other.id for other in self.tasks for vertex in other.vertices}
        inputs = tuple(
            p.InputChannel(
                vertex_id=edge.id,
                directory=str(self.directories[owner[edge.id]] / "exchange"),
                idle_timeout=edge.idle_timeout or 0.0,
            )
            for edge in task.inputs
        )
        directory = self.directories[task.id]
        output = p.OutputChannel(directory=str(directory / "exchange"), readers=task.readers) if task.readers else None
        if restored is not None:
            taken, files = restored
            if files.exists():
                shutil.copytree(files, directory / "checkpoint")
            before = p.Restored(
                checkpoint_id=1,
                batch_id=taken.batch_id,
                operators=taken.operators,
                inputs=taken.inputs,
                output=taken.output,
                input_ended=taken.input_ended,
            )
        self.attempts[task.id] = await self.child.run(
            self.context,
            task,
            directory=directory,
            artifacts=self.artifacts,
            restored=before,
            inputs=inputs,
            output=output,
        )

    async def checkpoint(self, number: int, **fields: Any) -> Cuts:
        taken = await asyncio.gather(*(self.take(task, number, **fields) for task in self.attempts))
        return dict(zip(self.attempts, taken, strict=True))

    async def take(self, task: str, number: int, **fields: Any) -> tuple[p.SnapshotTaken, Path]:
        """Take one task's part of a checkpoint."""
        attempt = self.attempts[TaskId(task)]
        target = self.child.directory / "snapshots" / f"{attempt}-{number}"
        target.parent.mkdir(exist_ok=True)
        request = p.TakeSnapshot(attempt_id=attempt, checkpoint_id=number, target_directory=str(target), **fields)
        return await self.child.ask(request), target

    async def abort(self, task: str, number: int) -> None:
        await self.child.ask(p.AbortSnapshot(attempt_id=self.attempts[TaskId(task)], checkpoint_id=number))

    async def batches(self, task: str, batch: int) -> p.BatchFinished:
        return await self.child.batches(self.attempts[TaskId(task)], batch)

    async def stop(self) -> None:
        for attempt in self.attempts.values():
            await self.child.stop(attempt)
