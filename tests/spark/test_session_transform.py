"""`transformWithState`: its records name files, which are elsewhere after a restore."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet
import pytest

from minflinkd.jobgraph.model import RuntimeMode, Task
from minflinkd.rpc.messages import JobContext
from minflinkd.taskmanager.child import protocol as p
from minflinkd.taskmanager.session.state import schema_paths
from tests.shortened import first
from tests.spark.session_child import Child, events, job, parquet, python, task
from tests.spark.test_session_bounded import write_events

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

CODE = """
import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

SCHEMA = "key STRING, n BIGINT"


class Counting(StatefulProcessor):
    def init(self, handle):
        self.n = handle.getValueState("n", "n BIGINT")

    def add(self, rows):
        n = (self.n.get() or (0,))[0] + rows
        self.n.update((n,))
        return n

    def close(self):
        pass


class ByRow(Counting):
    def handleInputRows(self, key, rows, timerValues):
        yield Row(key=key[0], n=self.add(sum(1 for _ in rows)))


class ByFrame(Counting):
    def handleInputRows(self, key, rows, timerValues):
        yield pd.DataFrame({"key": [key[0]], "n": [self.add(sum(len(frame) for frame in rows))]})


def rows(inputs, params):
    keys = inputs["events"].groupBy("key")
    return keys.transformWithState(ByRow(), outputStructType=SCHEMA, outputMode="update", timeMode="none")


def pandas(inputs, params):
    keys = inputs["events"].groupBy("key")
    return keys.transformWithStateInPandas(ByFrame(), outputStructType=SCHEMA, outputMode="update", timeMode="none")
"""
"""What a key has when a micro-batch is over, for each one in which it came."""

APIS = ("rows", "pandas")


class Counts:
    """A job that counts each key's rows, a file in each micro-batch. Its attempts come one after the other."""

    def __init__(self, child: Child, base: Path, api: str) -> None:
        self.child, self.base = child, base
        (base / "counts.py").write_text(CODE)
        self._api = api
        self.artifacts = {"counts.py": str(base / "counts.py")}
        self.found: Counter[tuple[str, int]] = Counter()

    def task(self, parallelism: int) -> Task:
        source = events(self.base / "in", maxFilesPerTrigger="1")
        out = parquet(self.base / "out", "counts")
        return task(source, python("counts", f"counts:{self._api}", "events"), out, parallelism=parallelism)

    async def begin(
        self,
        restored: tuple[p.SnapshotTaken, Path] | None = None,
        *,
        context: JobContext | None = None,
        parallelism: int = 2,
        offsets: Mapping[str, str] | None = None,
    ) -> Any:
        directory = self.child.fresh_directory()
        before = None
        if restored is not None:
            taken, files = restored
            shutil.copytree(files, directory / "checkpoint")
            before = p.Restored(checkpoint_id=1, batch_id=taken.batch_id, operators=taken.operators)
            if offsets is not None:
                before = msgspec.structs.replace(before, offsets=dict(offsets))
        self.directory = directory
        return await self.child.run(
            context or job(),
            self.task(parallelism),
            restored=before,
            directory=directory,
            artifacts=self.artifacts,
        )

    async def cut(self, attempt: Any, number: int) -> tuple[p.SnapshotTaken, Path]:
        """Take a snapshot, then stop the attempt and delete its directory."""
        target = self.base / f"snapshot-{number}"
        request = p.TakeSnapshot(attempt_id=attempt, checkpoint_id=number, target_directory=str(target))
        taken = await self.child.ask(request)
        await self.child.stop(attempt)
        shutil.rmtree(self.directory)
        for transaction in taken.transactions:
            for file in transaction.files:
                for row in pyarrow.parquet.read_table(self.base / "out" / file.staged).to_pylist():
                    self.found[row["key"], row["n"]] += 1
        return taken, target

    async def end(self, restored: tuple[p.SnapshotTaken, Path], number: int, **how: Any) -> None:
        """Run from a snapshot to the end of the input."""
        attempt = await self.begin(restored, context=job(mode=RuntimeMode.BATCH), **how)
        ended = await self.child.notice(
            (p.InputEnded, p.TaskFailed),  # type: ignore[arg-type]
            lambda notice: notice.attempt_id == attempt,
        )
        assert isinstance(ended, p.InputEnded), ended
        await self.cut(attempt, number)


def owed(truth: list[Counter[tuple[str, str]]]) -> Counter[tuple[str, int]]:
    """Return the expected counts, from the rows of each file."""
    sums, found = Counter[str](), Counter[tuple[str, int]]()
    for file in truth:
        for (_, key), n in file.items():
            sums[key] += n
            found[key, sums[key]] += 1
    return found


@pytest.mark.parametrize("api", APIS)
async def test_a_job_with_transform_with_state_is_analysed_without_faults(
    child: Child, tmp_path: Path, api: str
) -> None:
    """Spark plans it without a Python worker, although there is no record of its state yet (J4)."""
    write_events(tmp_path / "in", 1)
    counts = Counts(child, tmp_path, api)
    request = p.AnalyzeTasks(job=job(), tasks=(counts.task(2),), artifacts=counts.artifacts)
    analysis = await child.ask(request)
    assert analysis.faults == ()
    (operators,) = analysis.operators.values()
    assert [node.kind.startswith("TransformWithState") for node in operators if node.stateful] == [True]


@pytest.mark.parametrize("api", first(APIS))
async def test_a_restore_needs_nothing_of_the_attempt_before(child: Child, tmp_path: Path, api: str) -> None:
    """All that it needs is in the snapshot, also when a restored attempt is restored (C11, C14)."""
    counts = Counts(child, tmp_path, api)
    truth = [write_events(tmp_path / "in", 1, first) for first in range(2)]
    attempt = await counts.begin()
    await child.batches(attempt, 1)
    cut = await counts.cut(attempt, 1)
    truth.append(write_events(tmp_path / "in", 1, 2))
    attempt = await counts.begin(cut)
    await child.batches(attempt, 2)
    cut = await counts.cut(attempt, 2)
    truth.append(write_events(tmp_path / "in", 1, 3))
    await counts.end(cut, 3)
    assert counts.found == owed(truth)


@pytest.mark.slow  # tests/spark/test_session_repartition.py has the others
async def test_a_snapshot_that_names_a_directory_which_is_gone_can_be_repartitioned(
    child: Child, tmp_path: Path
) -> None:
    """Older snapshots are like that. Spark reads the state's schemas to repartition it (C14, R20)."""
    counts = Counts(child, tmp_path, "rows")
    truth = [write_events(tmp_path / "in", 1, first) for first in range(2)]
    attempt = await counts.begin()
    await child.batches(attempt, 1)
    cut = await counts.cut(attempt, 1)
    cut = (msgspec.structs.replace(cut[0], operators=tuple(n for n in cut[0].operators if not n.stateful)), cut[1])
    record = cut[1] / "state" / "0" / "_metadata" / "v2" / "0"
    assert str(child.directory) not in record.read_text()
    record.write_text(schema_paths.absolute(record.read_text(), counts.directory / "checkpoint" / "state" / "0"))
    truth.append(write_events(tmp_path / "in", 1, 2))
    await counts.end(cut, 2, parallelism=1)
    assert counts.found == owed(truth)


async def test_a_job_with_transform_with_state_starts_at_offsets(child: Child, tmp_path: Path) -> None:
    """The state is empty, with schemas written to a path that is gone. It can be restored after that (C26)."""
    counts = Counts(child, tmp_path, "rows")
    write_events(tmp_path / "in", 2)
    attempt = await counts.begin()
    await child.batches(attempt, 1)
    cut = await counts.cut(attempt, 1)
    counts.found.clear()
    truth = [write_events(tmp_path / "in", 1, 2)]
    attempt = await counts.begin(cut, offsets=cut[0].source_offsets)
    await child.batches(attempt, 1)
    cut = await counts.cut(attempt, 2)
    truth.append(write_events(tmp_path / "in", 1, 3))
    await counts.end(cut, 3)
    assert counts.found == owed(truth)
