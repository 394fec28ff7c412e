"""A version of a job that continues in the open state stores of the one before it."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from minflinkd.jobgraph.model import OutputMode
from minflinkd.runtime.ids import AttemptId
from minflinkd.taskmanager.child import protocol as p
from tests.spark.session_child import Child, call, job, rate, sql, task
from tests.spark.test_session_snapshots import AGGRESSIVE, ROWS, SINK, artifact, exact, lay_out, snapshot, written
from tests.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

VERSION = "SELECT value %% 10 AS key, count(*) AS n, sum(value) AS total, '%s' AS version FROM numbers GROUP BY 1"


@dataclass
class Cut:
    """Where a version stopped: its last checkpoint, and the files of that."""

    attempt: AttemptId
    checkpoint_id: int
    taken: p.SnapshotTaken
    files: Path


class Job:
    """Versions of one job, and what all of them wrote."""

    def __init__(self, child: Child, directory: Path) -> None:
        self.child = child
        self.out = directory / "totals.jsonl"
        self.artifacts = artifact(directory, "totals_sink.py", SINK % str(self.out))
        self.job_id = job().job_id
        self.home = child.directory  # of the attempt that was not restored
        self.laid_out: list[Path] = []  # restored files
        self.checkpoints = 0

    async def start(
        self,
        version: str,
        before: Cut | None = None,
        *,
        parallelism: int = 2,
        partitions: int = 0,
        spark: dict[str, str] = AGGRESSIVE,
    ) -> AttemptId:
        sink = call("totals_sink:write", "totals", OutputMode.UPDATE)
        query = task(rate(ROWS), sql("totals", VERSION % version, "numbers"), sink, parallelism=parallelism)
        context = job("totals", job_id=self.job_id, spark=spark)
        if before is None:
            self.home = self.child.fresh_directory()
            return await self.child.run(
                context, query, artifacts=self.artifacts, directory=self.home, partitions=partitions
            )
        restored = p.Restored(
            checkpoint_id=before.checkpoint_id, batch_id=before.taken.batch_id, operators=before.taken.operators
        )
        directory = lay_out(self.child, before.files)
        self.laid_out.append(directory / "checkpoint")
        return await self.child.run(
            context, query, artifacts=self.artifacts, restored=restored, directory=directory, partitions=partitions
        )

    async def stop(self, attempt: AttemptId) -> Cut:
        """Stop after a last checkpoint."""
        self.checkpoints += 1
        target = self.child.directory / "snapshots" / f"{attempt}-{self.checkpoints}"
        target.parent.mkdir(exist_ok=True)
        request = p.TakeSnapshot(
            attempt_id=attempt, checkpoint_id=self.checkpoints, target_directory=str(target), stop=True
        )
        taken = await self.child.ask(request)
        assert (await self.child.ask(p.StopTask(attempt_id=attempt))).ended
        return Cut(attempt, self.checkpoints, taken, target)

    async def unload(self, cut: Cut) -> p.TaskUnloaded:
        return await self.child.ask(p.UnloadTask(attempt_id=cut.attempt))

    def is_exact(self) -> bool:
        found = written(self.out)
        assert [epoch for epoch, _ in found] == list(range(len(found))), "one is missing, or came twice"
        return all(rows == exact(epoch) for epoch, rows in found)


async def stores(child: Child) -> int:
    return (await child.ask(p.Ping())).state_stores


async def test_versions_go_on_one_after_the_other_in_the_same_stores(child: Child, tmp_path: Path) -> None:
    """Nothing is lost or repeated. No additional stores are open, and the last version closes them (H4, H8)."""
    totals, before = Job(child, tmp_path), await stores(child)
    attempt = await totals.start("v0")
    await child.batches(attempt, 5)
    for version in ("v1", "v2", "v3"):
        cut = await totals.stop(attempt)
        attempt = await totals.start(version, cut)
        assert (await totals.unload(cut)).heir == attempt
        await child.batches(attempt, cut.taken.batch_id + 4)
        assert await stores(child) == before + 2
        await until(lambda: not any(place.exists() for place in totals.laid_out))  # otherwise they would stay for ever
    await child.stop(attempt)
    assert totals.is_exact()
    assert await stores(child) == before
    shutil.rmtree(totals.home)


async def test_a_version_with_another_parallelism_goes_on_in_the_same_stores(child: Child, tmp_path: Path) -> None:
    """The number of partitions is the same, only fewer or more of them are computed at a time (R20, H4)."""
    totals, before = Job(child, tmp_path), await stores(child)
    attempt = await totals.start("v0", partitions=4)
    await child.batches(attempt, 3)
    for parallelism in (4, 1, 3):
        cut = await totals.stop(attempt)
        attempt = await totals.start("v0", cut, parallelism=parallelism, partitions=4)
        assert (await totals.unload(cut)).heir == attempt
        await child.batches(attempt, cut.taken.batch_id + 3)
        told = await child.ask(p.TellPartitions(attempt_id=attempt))
        assert told.partitions == parallelism, "tasks of the last stage"
        assert await stores(child) == before + 4
    await child.stop(attempt)
    assert totals.is_exact()


async def test_a_checkpoint_of_such_a_version_is_complete(child: Child, tmp_path: Path) -> None:
    """The checkpoint's files are in a directory that several versions have written (C11)."""
    totals = Job(child, tmp_path)
    attempt = await totals.start("v0")
    await child.batches(attempt, 5)
    cut = await totals.stop(attempt)
    following = await totals.start("v1", cut)
    await totals.unload(cut)
    await child.batches(following, cut.taken.batch_id + 4)
    taken, files = await snapshot(child, following, 100)
    await child.stop(following)
    shutil.rmtree(totals.home)
    totals.out.write_text("")
    again = await totals.start("v2", Cut(following, 100, taken, files))
    await child.batches(again, taken.batch_id + 2)
    await child.stop(again)
    assert [epoch for epoch, rows in written(totals.out) if rows != exact(epoch)] == []


@pytest.mark.slow  # tests/unit/taskmanager has who may delete it
async def test_a_version_that_is_slow_to_start_keeps_the_directory_that_it_goes_on_in(
    child: Child, tmp_path: Path
) -> None:
    """The start takes longer than an unload waits in vain. The unload still names the new version (C10a, H4)."""
    totals = Job(child, tmp_path)
    attempt = await totals.start("v0")
    await child.batches(attempt, 3)
    cut = await totals.stop(attempt)
    slow = SINK.replace("import json", "import json, time; time.sleep(7)") % str(totals.out)
    totals.artifacts = artifact(tmp_path, "totals_sink.py", slow)
    starting = asyncio.create_task(totals.start("v1", cut))
    try:
        await asyncio.sleep(0)  # lets the version be requested before the unload
        answer = await totals.unload(cut)
    finally:
        following = await starting
    assert answer.heir == following
    await child.batches(following, cut.taken.batch_id + 3)
    await child.stop(following)
    assert totals.is_exact()


@pytest.mark.slow  # its checkpoints, above, have the files of these stores
async def test_the_state_is_not_read_again(child: Child, tmp_path: Path) -> None:
    """The time does not grow with the state, since the files are not even read (H4)."""
    totals = Job(child, tmp_path)
    attempt = await totals.start("v0")
    await child.batches(attempt, 5)
    cut = await totals.stop(attempt)
    for partition in ("0", "1"):
        store = totals.home / "checkpoint" / "state" / "0" / partition
        store.rename(store.with_name(f"gone-{partition}"))
        store.mkdir()
    following = await totals.start("v1", cut)
    assert (await totals.unload(cut)).heir == following
    await child.batches(following, cut.taken.batch_id + 2)
    await child.stop(following)
    assert totals.is_exact()


OTHER = {"spark.sql.streaming.minBatchesToRetain": "4"}


@pytest.mark.parametrize(
    ("changed", "between"), [({"parallelism": 1}, 1), pytest.param({"spark": OTHER}, 0, marks=pytest.mark.slow)]
)
async def test_a_version_that_cannot_have_the_stores_restores_the_checkpoint(
    child: Child, tmp_path: Path, changed: dict[str, Any], between: int
) -> None:
    """The output is as exact, in a directory of its own (H6).

    `between` is how many micro-batches without input the repartitioning takes.
    """
    totals, before = Job(child, tmp_path), await stores(child)
    attempt = await totals.start("v0")
    await child.batches(attempt, 5)
    cut = await totals.stop(attempt)
    following = await totals.start("v1", cut, **changed)
    answer = await totals.unload(cut)
    assert (answer.heir, answer.unloaded) == (None, True)
    shutil.rmtree(totals.home)
    await child.batches(following, cut.taken.batch_id + 3)
    await child.stop(following)
    wrong = [
        epoch
        for epoch, rows in written(totals.out)
        if rows and rows != exact(epoch - (between if epoch > cut.taken.batch_id else 0))
    ]
    assert wrong == []
    assert await stores(child) == before


async def test_a_version_that_is_not_to_stop_after_all_goes_on_where_it_stands(child: Child, tmp_path: Path) -> None:
    """The last checkpoint fails, and there is none before it. The query has ended by then, and restarts (C13, H3)."""
    totals, before = Job(child, tmp_path), await stores(child)
    attempt = await totals.start("v0")
    await child.batches(attempt, 3)
    target = child.directory / "snapshots" / f"{attempt}-1"
    stop = p.TakeSnapshot(attempt_id=attempt, checkpoint_id=1, target_directory=str(target), stop=True)
    taken = await child.ask(stop)
    await asyncio.sleep(0.3)  # no message says that the query has ended
    assert max(epoch for epoch, _ in written(totals.out)) == taken.batch_id
    await child.ask(p.AbortSnapshot(attempt_id=attempt, checkpoint_id=1))
    await child.batches(attempt, taken.batch_id + 3)
    totals.checkpoints = 1
    cut = await totals.stop(attempt)
    following = await totals.start("v1", cut)
    assert (await totals.unload(cut)).heir == following
    await child.batches(following, cut.taken.batch_id + 2)
    await child.stop(following)
    assert totals.is_exact()
    assert await stores(child) == before


async def test_stores_that_nobody_goes_on_with_are_closed(child: Child, tmp_path: Path) -> None:
    """A job that stops with a savepoint has no next version (R6a)."""
    totals, before = Job(child, tmp_path), await stores(child)
    attempt = await totals.start("v0")
    await child.batches(attempt, 2)
    cut = await totals.stop(attempt)
    assert await stores(child) == before + 2
    answers = await asyncio.gather(totals.unload(cut), totals.unload(cut))
    assert [(answer.heir, answer.unloaded) for answer in answers] == [(None, True)] * 2
    assert await stores(child) == before


async def test_a_version_that_does_not_start_leaves_the_stores_to_be_closed(child: Child, tmp_path: Path) -> None:
    """The version before it is restored from the checkpoint, exactly (H7)."""
    totals, before = Job(child, tmp_path), await stores(child)
    attempt = await totals.start("v0")
    await child.batches(attempt, 5)
    cut = await totals.stop(attempt)
    artifacts, totals.artifacts = totals.artifacts, artifact(tmp_path, "totals_sink.py", "raise RuntimeError('no')")
    with pytest.raises(Exception, match="no"):
        await totals.start("v1", cut)
    answer = await totals.unload(cut)
    assert (answer.heir, answer.unloaded, await stores(child)) == (None, True, before)
    totals.artifacts = artifact(tmp_path, "totals_sink.py", SINK % str(totals.out))
    assert totals.artifacts == artifacts
    again = await totals.start("v0", cut)
    await child.batches(again, cut.taken.batch_id + 2)
    await child.stop(again)
    assert totals.is_exact()
