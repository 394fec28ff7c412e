"""Sinks that are not files: console, collect, functions and classes of user code."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from minflinkd.jobgraph.model import Delivery, OutputMode, Sink, Source, Task, Vertex
from minflinkd.runtime.errors import LONGEST_MESSAGE, MinflinkError
from minflinkd.runtime.ids import VertexId
from minflinkd.taskmanager.child import protocol as p
from tests.spark.session_child import Child, inputs, job, rate, sql, task
from tests.spark.test_session_snapshots import artifact, lay_out, snapshot

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]


@pytest.fixture
def child(connected: Child) -> Child:
    return connected


LETTERS = "SELECT value % 3 AS letter, count(*) AS n FROM numbers GROUP BY 1"

# Stages each micro-batch as a file of its own, and commits by renaming it. `broken` makes the next commit fail.
CLASS = """
import json, os
class Staging:
    def __init__(self, context):
        self.root = context.params["root"]
        self.attempt = context.attempt_id
        self.log("made", context.sink)
    def log(self, *what):
        with open(os.path.join(self.root, "log"), "a") as out:
            out.write(json.dumps(what) + "\\n")
    def stage(self, batch, epoch):
        name, rows = f"{self.attempt}-{epoch}", sorted(r.value for r in batch.collect())
        with open(os.path.join(self.root, f"staged-{name}"), "w") as out:
            json.dump(rows, out)
        return {"name": name}
    def commit(self, checkpoint_id, tokens):
        self.log("commit", checkpoint_id, len(tokens))
        if os.path.exists(os.path.join(self.root, "broken")):
            raise OSError("the other side is away")
        for token in tokens:
            try:
                os.rename(os.path.join(self.root, f"staged-{token['name']}"),
                          os.path.join(self.root, f"done-{token['name']}"))
            except FileNotFoundError:
                assert os.path.exists(os.path.join(self.root, f"done-{token['name']}"))
    def abort(self, tokens):
        self.log("abort", tokens)
        staged = os.listdir(self.root) if tokens is None else [f"staged-{t['name']}" for t in tokens]
        for name in staged:
            if name.startswith("staged-") and os.path.exists(os.path.join(self.root, name)):
                os.unlink(os.path.join(self.root, name))
"""


def sink(source: str, mode: OutputMode | None = None, **fields: Any) -> Vertex:
    return Vertex(id=VertexId("out"), inputs=inputs(source), sink=Sink(**fields), output_mode=mode)


async def restored(child: Child, taken: p.SnapshotTaken, files: Path, checkpoint_id: int) -> dict[str, Any]:
    """Return what a restored attempt is started with, as the supervisor does it."""
    what = p.Restored(checkpoint_id=checkpoint_id, batch_id=taken.batch_id, transactions=taken.transactions)
    return {"restored": what, "directory": lay_out(child, files)}


async def restored_three_times(child: Child, query: Task, seen: Callable[[], Awaitable[list[int]]]) -> None:
    """Restore a query beside its attempt that runs on, three times. Each also commits late what the next one has.

    `query` reads `rate(10)`; `seen` returns the numbers in its target, sorted.
    """
    context = job()
    attempt = await child.run(context, query)
    for checkpoint_id in range(1, 4):
        await child.batches(attempt, 2)
        taken, files = await snapshot(child, attempt, checkpoint_id)
        await child.batches(attempt, taken.batch_id + 1)
        following = await child.run(context, query, **await restored(child, taken, files, checkpoint_id))
        assert await seen() == list(range(10 * (taken.batch_id + 1)))
        await child.ask(p.ConfirmCheckpoint(attempt_id=attempt, checkpoint_id=checkpoint_id))
        await child.stop(attempt)
        await child.batches(following, taken.batch_id + 2)
        attempt = following
    last, _ = await snapshot(child, attempt, 4)
    await child.ask(p.ConfirmCheckpoint(attempt_id=attempt, checkpoint_id=4))
    await child.stop(attempt)
    assert await seen() == list(range(10 * (last.batch_id + 1)))


def committed(root: Path) -> list[int]:
    return sorted(value for path in root.glob("done-*") for value in json.loads(path.read_text()))


def calls(root: Path, name: str) -> list[list[Any]]:
    return [line for line in map(json.loads, (root / "log").read_text().splitlines()) if line[0] == name]


async def test_a_collect_sink_keeps_the_last_rows(child: Child, tmp_path: Path) -> None:
    """The number of rows is bounded. The oldest come first, each with its micro-batch (J2, J13)."""
    attempt = await child.run(job(), task(rate(10), sink("numbers", format="collect", options={"rows": "30"})))
    await child.batches(attempt, 4)
    collected = await child.ask(p.TellCollected(attempt_id=attempt, vertex_id=VertexId("out")))
    with pytest.raises(MinflinkError, match="numbers is not a collect sink"):
        await child.ask(p.TellCollected(attempt_id=attempt, vertex_id=VertexId("numbers")))
    await child.stop(attempt)
    values = [json.loads(row.row)["value"] for row in collected.rows]
    assert len(values) == 30
    assert sorted(values) == list(range(collected.dropped, collected.dropped + 30))
    assert [row.batch_id for row in collected.rows] == sorted(row.batch_id for row in collected.rows)


async def test_a_collect_sink_of_a_whole_result_shows_the_last_one(child: Child) -> None:
    """In output mode `complete`, a micro-batch replaces the one before (J8a)."""
    out = sink("letters", OutputMode.COMPLETE, format="collect")
    attempt = await child.run(job(), task(rate(30), sql("letters", LETTERS, "numbers"), out))
    await child.batches(attempt, 3)
    collected = await child.ask(p.TellCollected(attempt_id=attempt, vertex_id=VertexId("out")))
    await child.stop(attempt)
    epoch = collected.rows[0].batch_id
    rows = sorted((json.loads(row.row)["letter"], json.loads(row.row)["n"]) for row in collected.rows)
    assert rows == [(letter, 10 * (epoch + 1)) for letter in range(3)]


async def test_a_console_sink_prints_its_rows(child: Child) -> None:
    """The rows go to the session's log under a supervisor. A stateful query is still read in full (J2)."""
    out = sink("letters", OutputMode.UPDATE, format="console", options={"numRows": "1", "truncate": "false"})
    attempt = await child.run(job(), task(rate(30), sql("letters", LETTERS, "numbers"), out))
    await child.batches(attempt, 2)
    await child.stop(attempt)
    said = child.printed.read_text()
    assert "sink out, micro-batch 0:\n+------+---+\n|letter|n  |" in said
    assert "only showing top 1 row" in said


async def test_a_class_commits_with_the_checkpoint_and_not_before(child: Child, tmp_path: Path) -> None:
    """A failed commit is repeated. What no checkpoint covers is discarded at the end (J13)."""
    root = tmp_path / "root"
    root.mkdir()
    artifacts = artifact(tmp_path, "staging.py", CLASS)
    out = sink("numbers", python="staging:Staging", delivery=Delivery.EXACTLY_ONCE)
    attempt = await child.run(job(params={"root": str(root)}), task(rate(10), out), artifacts=artifacts)
    await child.batches(attempt, 2)
    taken, _ = await snapshot(child, attempt, 1)
    assert [token.epoch for token in taken.transactions[0].tokens] == list(range(taken.batch_id + 1))
    assert committed(root) == []
    (root / "broken").touch()
    with pytest.raises(MinflinkError, match="the other side is away"):
        await child.ask(p.ConfirmCheckpoint(attempt_id=attempt, checkpoint_id=1))
    (root / "broken").unlink()
    for _ in range(2):
        await child.ask(p.ConfirmCheckpoint(attempt_id=attempt, checkpoint_id=1))
    assert committed(root) == list(range(10 * (taken.batch_id + 1)))
    await child.batches(attempt, taken.batch_id + 2)
    later, _ = await snapshot(child, attempt, 2)
    assert min(token.epoch for token in later.transactions[0].tokens) == taken.batch_id + 1
    await child.batches(attempt, later.batch_id + 2)
    await child.stop(attempt)
    staged = {int(path.name.rpartition("-")[2]) for path in root.glob("staged-*")}
    assert staged == set(range(taken.batch_id + 1, later.batch_id + 1)), "what checkpoint 2 may cover is kept"
    assert [call[1] for call in calls(root, "commit")] == [1, 1]


async def test_a_restored_attempt_commits_what_its_checkpoint_owes(child: Child, tmp_path: Path) -> None:
    """Each row is committed once, although the attempt before never learned that its checkpoint is complete (J13)."""
    root = tmp_path / "root"
    root.mkdir()
    artifacts = artifact(tmp_path, "staging.py", CLASS)
    query = task(rate(10), sink("numbers", python="staging:Staging", delivery=Delivery.EXACTLY_ONCE))
    context = job(params={"root": str(root)})
    attempt = await child.run(context, query, artifacts=artifacts)
    for checkpoint_id in range(1, 4):
        await child.batches(attempt, 2)
        taken, files = await snapshot(child, attempt, checkpoint_id)
        await child.batches(attempt, taken.batch_id + 2)
        again = await restored(child, taken, files, checkpoint_id)
        following = await child.run(context, query, artifacts=artifacts, **again)
        assert committed(root) == list(range(10 * (taken.batch_id + 1)))
        await child.stop(attempt)
        await child.batches(following, taken.batch_id + 2)
        attempt = following
    last, _ = await snapshot(child, attempt, 4)
    await child.ask(p.ConfirmCheckpoint(attempt_id=attempt, checkpoint_id=4))
    await child.stop(attempt)
    assert committed(root) == list(range(10 * (last.batch_id + 1)))
    assert list(root.glob("staged-*")) == []


async def test_a_checkpoint_that_owes_rows_of_a_sink_that_is_gone_is_not_restored(child: Child, tmp_path: Path) -> None:
    """Promised rows are not lost silently (C25, J13)."""
    root = tmp_path / "root"
    root.mkdir()
    artifacts = artifact(tmp_path, "staging.py", CLASS)
    context = job(params={"root": str(root)})
    query = task(rate(10), sink("numbers", python="staging:Staging", delivery=Delivery.EXACTLY_ONCE))
    attempt = await child.run(context, query, artifacts=artifacts)
    await child.batches(attempt, 1)
    taken, files = await snapshot(child, attempt, 1)
    await child.stop(attempt)
    again = await restored(child, taken, files, 1)
    with pytest.raises(MinflinkError, match="sink out has yet to commit"):
        await child.run(context, task(rate(10), sink("numbers", format="collect")), **again)


async def test_several_sinks_take_an_aggregate_whose_rows_spark_has_sorted(child: Child, tmp_path: Path) -> None:
    """max() over texts makes Spark sort by the key; such a micro-batch could not be read a second time (J2)."""
    (tmp_path / "words").mkdir()
    written = [{"key": f"k{number % 3}", "word": f"w{number}"} for number in range(9)]
    (tmp_path / "words" / "all.json").write_text("\n".join(map(json.dumps, written)))
    files = Source(format="json", path=str(tmp_path / "words"), schema="key STRING, word STRING")
    last = sql("last", "SELECT key, max(word) AS word, count(*) AS n FROM words GROUP BY key", "words")
    shown = sink("last", OutputMode.UPDATE, format="console", options={"numRows": "1"})
    kept = replace(sink("last", OutputMode.UPDATE, format="collect"), id=VertexId("kept"))
    attempt = await child.run(job(), task(Vertex(id=VertexId("words"), source=files), last, shown, kept))
    await child.batches(attempt, 0)
    collected = await child.ask(p.TellCollected(attempt_id=attempt, vertex_id=VertexId("kept")))
    await child.stop(attempt)
    rows = sorted((json.loads(row.row) for row in collected.rows), key=lambda row: str(row["key"]))
    assert rows == [{"key": f"k{number}", "word": f"w{6 + number}", "n": 3} for number in range(3)]


async def test_sinks_of_one_task_have_one_output_mode(child: Child) -> None:
    """Files beside a sink that asks for updates would hold rows that are taken back (J8a)."""
    first = sink("letters", OutputMode.UPDATE, format="console")
    second = replace(sink("letters", format="parquet", path="/x"), id=VertexId("files"))
    query = task(rate(10), sql("letters", LETTERS, "numbers"), first, second)
    (fault,) = (await child.ask(p.AnalyzeTasks(job=job(), tasks=(query,)))).faults
    assert (fault.path, "cannot take back" in fault.problem) == ("vertices.files.output-mode", True)


NOT_STAGING = "def write(batch, epoch):\n    pass\nclass Half:\n    def stage(self, batch, epoch):\n        pass\n"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"python": "half:Half", "delivery": Delivery.EXACTLY_ONCE}, "half:Half lacks commit, abort"),
        ({"python": "half:write", "delivery": Delivery.EXACTLY_ONCE}, "half:write is a function"),
        ({"python": "half:Half"}, "half:Half is a class, and the sink is at-least-once"),
        ({"format": "jdbc", "options": {"key": "value, day"}}, "there is no column day"),
        ({"format": "parquet", "path": "/x", "partition_by": ("hour",)}, "there is no column hour"),
    ],
)
async def test_a_sink_that_cannot_do_its_work_is_found_before_the_start(
    child: Child, tmp_path: Path, fields: dict[str, Any], said: str
) -> None:
    """The fault is at the sink, and names what is missing or does not fit (J4, J13)."""
    artifacts = artifact(tmp_path, "half.py", NOT_STAGING)
    request = p.AnalyzeTasks(job=job(), tasks=(task(rate(10), sink("numbers", **fields)),), artifacts=artifacts)
    (fault,) = (await child.ask(request)).faults
    assert said in fault.problem
    assert fault.path.startswith("vertices.out.sink")


# `large` is an error of 70 MB, `half` one that cannot be encoded, `mute` one whose text cannot be made.
RAISING = """
class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no text")

def large(batch, epoch):
    raise ValueError("begin" + "x" * 70_000_000 + "end")

def half(batch, epoch):
    raise ValueError("half a character: \\udc80")

def mute(batch, epoch):
    raise Mute
"""


@pytest.mark.parametrize(
    ("raises", "message"), [("large", "ValueError: begin"), ("half", "ValueError: half a character"), ("mute", "Mute")]
)
async def test_an_error_of_a_sink_is_told_whatever_its_text_is(
    child: Child, tmp_path: Path, raises: str, message: str
) -> None:
    """A job whose task has ended must not look healthy, and the session of other jobs goes on (E45)."""
    artifacts = artifact(tmp_path, "raising.py", RAISING)
    out = sink("numbers", python=f"raising:{raises}")
    attempt = await child.run(job(), task(rate(10), out), artifacts=artifacts)
    failed = await child.notice(p.TaskFailed, lambda n: n.attempt_id == attempt)
    error = failed.error
    assert error.code == "user-code"
    assert message in error.message
    assert len(error.message) <= LONGEST_MESSAGE
    other = await child.run(job(), task(rate(10), sink("numbers", format="console")))
    await child.batches(other, 1)
    await child.stop(other)
