"""Tasks that read exchanges beside other sources: the log of each source is cut, restored and moved (C11, C26)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from minflinkd.jobgraph.chaining import chain
from minflinkd.jobgraph.model import Input, JobGraph, Source, Task, Vertex
from minflinkd.runtime.ids import VertexId
from minflinkd.taskmanager.child import protocol as p
from tests.files import files_below
from tests.spark.deployment import Cuts, Run
from tests.spark.session_child import Child, call, job, source, task
from tests.spark.test_session_snapshots import lay_out, snapshot
from tests.waiting import WaitedInVain, until

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

SINK = """
import json
def write(batch, epoch):
    with open(%r, "a") as out:
        for row in batch.collect():
            out.write(json.dumps([epoch, row.side, row.value]) + "\\n")
"""


class Sides:
    """A union of exchanges (x, y), directories of files (f, g) and a clock (r), in an order that a test chooses.

    `named`: a query that WITH names reads each of them.
    """

    def __init__(self, child: Child, directory: Path, *, named: bool = False) -> None:
        self.child = child
        self.named = named
        self.directory = directory
        self.out = directory / "out.jsonl"
        self.out.touch()
        (directory / "sides.py").write_text(SINK % str(self.out))
        self.context = job("sides", trigger_interval=0.1)
        for name in "fg":
            (directory / name).mkdir()

    def tasks(self, *order: str) -> tuple[Task, ...]:
        read = sorted(set(order))
        vertices = [self._source(name) for name in read]
        text = " UNION ALL ".join(
            f"SELECT '{name}' AS side, CAST(value AS LONG) AS value FROM {name}" for name in order
        )
        if self.named:
            text = f"WITH {', '.join(f'{name} AS (SELECT * FROM {name})' for name in read)} {text}"
        edges = tuple(Input(id=VertexId(name), exchange=name in "xy") for name in read)
        union = Vertex(id=VertexId("all"), inputs=edges, sql=text)
        graph = JobGraph(name="sides", parallelism=2, vertices=(*vertices, union, call("sides:write", "all")))
        return chain(graph)

    def _source(self, name: str) -> Vertex:
        if name in "fg":
            files = Source(format="json", path=str(self.directory / name), schema="value LONG")
            return Vertex(id=VertexId(name), source=files)
        if name == "r":
            return source("r", "rate", rowsPerSecond="5")
        return source(name, "rate-micro-batch", rowsPerBatch="10", numPartitions="1")

    def run(self, *order: str) -> Run:
        return Run(self.child, self.context, self.tasks(*order), {"sides.py": str(self.directory / "sides.py")})

    def feed(self, value: int) -> None:
        """Write a row with this value into each directory of files."""
        for name in "fg":
            hidden = self.directory / name / f".{value}.json"
            hidden.write_text(json.dumps({"value": value}) + "\n")
            hidden.rename(hidden.with_name(f"{value}.json"))

    def rows(self) -> list[tuple[int, str, int]]:
        return [tuple(json.loads(line)) for line in self.out.read_text().splitlines()]

    async def seen(self, value: int, order: Iterable[str]) -> None:
        """Wait until the row has come through each directory of files, and some row from every other side."""
        wanted = {(side, value) if side in "fg" else (side, None) for side in order}

        def there() -> bool:
            rows = self.rows()
            return wanted <= {(side, seen if side in "fg" else None) for _, side, seen in rows}

        try:
            await until(there, f"all of {wanted}")
        except WaitedInVain as error:
            failed = [notice.error for notice in self.child.notices if isinstance(notice, p.TaskFailed)]
            error.add_note(f"only {self.rows()} came; {failed}")
            raise

    def logs(self, taken: Path) -> list[str]:
        """Return the directories of source logs in a snapshot."""
        return sorted({path.relative_to(taken / "sources").parts[0] for path in files_below(taken / "sources")})


def exact(rows: list[tuple[int, str, int]], order: tuple[str, ...], fed: list[int]) -> None:
    """Check that each row occurs as often as its side is in the union."""
    for side in set(order):
        values = sorted(value for _, name, value in rows if name == side)
        times = order.count(side)
        wanted = fed if side in "fg" else list(range(values[0], values[-1] + 1))
        assert values == sorted(wanted * times), side


@pytest.mark.parametrize(
    ("order", "logs", "named"),
    [
        pytest.param("xf", 1, False, id="an exchange first", marks=pytest.mark.slow),
        pytest.param("fxg", 2, False, id="an exchange between", marks=pytest.mark.slow),
        pytest.param("xyf", 1, False, id="two exchanges first", marks=pytest.mark.slow),
        pytest.param("xrfygfx", 3, False, id="several kinds, and two that are read twice"),
        pytest.param("fxg", 2, True, id="queries that WITH names"),
    ],
)
async def test_a_task_with_exchanges_and_other_sources_goes_on_where_it_was_cut(
    child: Child, tmp_path: Path, order: str, logs: int, named: bool
) -> None:
    """Spark does not count exchanges when it numbers source logs, but does in the offset log (C11, C25, C26).

    The task is restored as it was, then with the sources in reverse order, then at the offsets alone.
    """
    sides, names = Sides(child, tmp_path, named=named), tuple(order)
    run = sides.run(*order)
    all_of_it = next(task.id for task in run.tasks if not task.readers)
    await run.start()
    sides.feed(1)
    await sides.seen(1, order)
    cuts = await run.checkpoint(1)
    await run.stop()
    taken, files = cuts[all_of_it]
    assert len(sides.logs(files)) == logs
    kept = [row for row in sides.rows() if row[0] <= taken.batch_id]

    sides.feed(2)
    run = await restored(sides, order, cuts)
    await sides.seen(2, order)
    cuts = await run.checkpoint(2)
    await run.stop()
    kept += [row for row in sides.rows() if row[0] <= cuts[all_of_it][0].batch_id]
    exact(kept, names, [1, 2])

    sides.feed(3)
    run = await restored(sides, order[::-1], cuts)
    await sides.seen(3, order)
    cuts = await run.checkpoint(3)
    await run.stop()
    turned, files = cuts[all_of_it]
    kept += [row for row in sides.rows() if row[0] <= turned.batch_id]
    exact(kept, names, [1, 2, 3])

    sides.feed(4)
    sides.out.write_text("")
    run = sides.run(*order)
    offsets = {name: offset for name, offset in turned.source_offsets.items() if name not in "xy"}
    at = p.Restored(checkpoint_id=0, batch_id=-1, operators=turned.operators, offsets=offsets)
    shutil.copytree(files / "sources", run.directories[all_of_it] / "checkpoint" / "sources")
    await run.start(at={all_of_it: at})
    await sides.seen(4, order)
    await run.stop()
    exact(sides.rows(), tuple(name for name in names if name in "fg"), [4])


async def restored(sides: Sides, order: str, cuts: Cuts) -> Run:
    sides.out.write_text("")
    run = sides.run(*order)
    await run.start(cuts)
    return run


async def test_a_source_of_files_is_restored_wherever_its_log_stands(child: Child, tmp_path: Path) -> None:
    """Each restore is from a snapshot, with only the last compact entry; Spark guesses the interval from that (C11).

    Here it is 2 at first, and 4 from the restore at entry 4 on. Then 9 is no compact entry, as Spark would expect.
    Another job starts at the offsets: Spark reads its log from the beginning.
    """
    (tmp_path / "in").mkdir()
    (tmp_path / "counted.py").write_text(SINK.replace("row.side, row.value", "row.value") % str(tmp_path / "out"))
    options = {"maxFilesPerTrigger": "1"}
    files = Source(format="json", path=str(tmp_path / "in"), schema="value LONG", options=options)
    query = task(Vertex(id=VertexId("files"), source=files), call("counted:write", "files"))
    context = job(spark={"spark.sql.streaming.fileSource.log.compactInterval": "2"})
    code, fields = {"counted.py": str(tmp_path / "counted.py")}, dict[str, Any]()

    def feed(end: int) -> None:
        for number in range(end + 1):
            if not (file := tmp_path / "in" / f"{number:02d}.json").exists():
                (tmp_path / f".{number}").write_text(json.dumps({"value": number}) + "\n")
                (tmp_path / f".{number}").rename(file)

    for checkpoint_id, end in enumerate((4, 9, 10, 13, 14, 21), 1):
        feed(end)
        attempt = await child.run(context, query, artifacts=code, **fields)
        await child.batches(attempt, end)
        taken, state = await snapshot(child, attempt, checkpoint_id)
        await child.stop(attempt)
        assert taken.batch_id == end
        if end in (10, 14):
            feed(end + 1)
            at = p.Restored(checkpoint_id=0, batch_id=-1, operators=taken.operators, offsets=taken.source_offsets)
            other = await child.run(
                job(spark=context.spark), query, artifacts=code, restored=at, directory=lay_out(child, state)
            )
            await child.batches(other, 1)
            await child.stop(other)
        what = p.Restored(checkpoint_id=checkpoint_id, batch_id=end, transactions=())
        fields = {"restored": what, "directory": lay_out(child, state)}
    values = [value for _, value in map(json.loads, (tmp_path / "out").read_text().splitlines())]
    assert sorted(values) == sorted([*range(22), 11, 15])
