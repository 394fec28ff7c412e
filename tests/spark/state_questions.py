"""Asks a session child about the state in a snapshot, as a TaskManager does."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from minflinkd.jobgraph.model import Task
from minflinkd.rpc.messages import StateFound, StateGrowth, StateQuestion, StateStore
from minflinkd.taskmanager.child import protocol as p
from tests.spark.session_child import Child, job


@dataclass
class Snapshot:
    """The files of one snapshot, and how a supervisor lays them out for a reading."""

    child: Child
    taken: p.SnapshotTaken
    files: Path

    def laid_out(self) -> p.LaidOut:
        """Return a copy made of links, as a TaskManager makes it of its own copy of a snapshot."""
        target = self.child.fresh_directory() / "checkpoint"
        shutil.copytree(self.files, target, copy_function=os.link)
        return p.LaidOut(directory=str(target), batch_id=self.taken.batch_id, operators=self.taken.operators)

    async def read(self, timeout: float = 300.0, **question: Any) -> StateFound:
        place = self.laid_out()
        request = p.ReadStates(read_id=uuid4().hex, state=place, question=StateQuestion(**question), timeout=timeout)
        try:
            return await self.child.ask(request, timeout=600)
        finally:
            shutil.rmtree(Path(place.directory).parent)

    async def select(self, sql: str, **question: Any) -> list[Any]:
        found = await self.read(sql=sql, totals=False, **question)
        assert found.result is not None
        return [json.loads(row) for row in found.result.rows]

    async def growth_since(self, before: Snapshot, store: str = "", largest: int = 10) -> StateGrowth:
        request = p.CompareStates(
            read_id=uuid4().hex,
            before=before.laid_out(),
            after=self.laid_out(),
            store=store,
            largest=largest,
            timeout=300.0,
        )
        return await self.child.ask(request, timeout=600)


def rows_of(found: StateFound) -> list[tuple[Any, Any]]:
    """Return the keys and values."""
    return [(json.loads(row.key), json.loads(row.value)) for row in found.rows]


def totals_of(store: StateStore) -> tuple[int, int]:
    """Return the rows and keys of a store, after a look at whether its totals agree with each other."""
    totals = store.totals
    assert totals is not None, store
    assert totals.rows == sum(each.rows for each in totals.partitions)
    assert totals.bytes == sum(each.bytes for each in totals.partitions)
    return totals.rows, totals.keys


async def take(child: Child, attempt: Any, target: Path, number: int = 1) -> Snapshot:
    request = p.TakeSnapshot(attempt_id=attempt, checkpoint_id=number, target_directory=str(target))
    return Snapshot(child, await child.ask(request), target)


async def snapshot_of(child: Child, query: Task, batch: int, target: Path, **fields: Any) -> Snapshot:
    """Run a task up to a micro-batch, take a snapshot, and stop it."""
    attempt = await child.run(job(), query, **fields)
    await child.batches(attempt, batch)
    snapshot = await take(child, attempt, target)
    await child.stop(attempt)
    return snapshot
