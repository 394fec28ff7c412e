"""State that is restored into another version of the query follows its vertex, or is refused (C25)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from minflinkd.jobgraph.model import OutputMode, RuntimeMode, Source, Task, Vertex, Watermark
from minflinkd.runtime.errors import RemoteError
from minflinkd.runtime.ids import VertexId
from minflinkd.taskmanager.child import protocol as p
from tests.spark.session_child import EVENTS, Child, call, inputs, job, python, rate, sql, task
from tests.spark.test_session_snapshots import artifact, lay_out, snapshot

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

CODE = """
import json
def dedup_a(inputs, params):
    return inputs["a"].dropDuplicates(["key"])
def dedup_b(inputs, params):
    return inputs["b"].dropDuplicates(["key"])
def dedup_c(inputs, params):
    return inputs["c"].dropDuplicates(["key"])
def write(batch, epoch):
    with open(%r, "a") as out:
        for row in batch.collect():
            out.write(json.dumps(list(row)) + "\\n")
"""


class Query:
    """Versions of one query over the same directories of events, and what they wrote."""

    def __init__(self, child: Child, directory: Path) -> None:
        self.child = child
        self.directory = directory
        self.out = directory / "out.jsonl"
        self.out.touch()
        self.artifacts = artifact(directory, "dedups.py", CODE % str(self.out))
        self.job = job()
        self.files = 0

    def events(self, name: str) -> Vertex:
        place = self.directory / "in" / name
        place.mkdir(parents=True, exist_ok=True)
        source = Source(format="json", path=str(place), schema=EVENTS)
        return Vertex(id=VertexId(name), source=source, watermark=Watermark(column="time", delay="0 seconds"))

    def feed(self, name: str, *events: tuple[str, str]) -> None:
        """Add events, each a key and a time of day."""
        self.files += 1
        lines = [json.dumps({"key": key, "time": f"2020-01-01T{at}Z", "value": 1}) + "\n" for key, at in events]
        hidden = self.directory / "in" / name / f".{self.files}.json"
        hidden.parent.mkdir(parents=True, exist_ok=True)
        hidden.write_text("".join(lines))
        hidden.rename(hidden.with_name(f"{self.files}.json"))

    def union(self, *sides: str, of: str = "d", columns: str = "key") -> Task:
        """Return a union of sides. Each is a source with a stateful vertex over it, or with a `-` only the source."""
        vertices: list[Vertex] = []
        parts, feeding = [], []
        for side in sides:
            name = side.strip("-")
            vertices.append(self.events(name))
            held = name if side.startswith("-") else of + name
            if held != name:
                vertices.append(self.stateful(of, name))
            feeding.append(held)
            parts.append(f"SELECT '{name}' AS side, {columns} FROM {held}")
        return task(*vertices, sql("all", " UNION ALL ".join(parts), *feeding), call("dedups:write", "all"))

    def stateful(self, of: str, name: str) -> Vertex:
        if of == "d":
            return python(f"d{name}", f"dedups:dedup_{name}", name)
        text = f"SELECT window(time, '1 minute') AS w, key, count(*) AS n FROM {name} GROUP BY 1, 2"
        return Vertex(id=VertexId(f"w{name}"), inputs=inputs(name), sql=text)

    async def first(self, version: Task) -> tuple[p.SnapshotTaken, Path]:
        """Process what is there, and return a snapshot of that."""
        attempt = await self.child.run(self.job, version, artifacts=self.artifacts)
        await self.child.batches(attempt, 0)
        return await self.again(attempt)

    async def again(self, attempt: Any) -> tuple[p.SnapshotTaken, Path]:
        taken = await snapshot(self.child, attempt, 1)
        await self.child.stop(attempt)
        return taken

    async def restored(
        self, version: Task, taken: tuple[p.SnapshotTaken, Path], *, allow: bool = False
    ) -> list[list[Any]]:
        """Return the rows that this version writes of all that is there, up to the end of time."""
        before = len(self.rows())
        context = job(mode=RuntimeMode.BATCH)
        attempt = await self.child.run(
            context,
            version,
            artifacts=self.artifacts,
            restored=self.point(taken[0], allow=allow),
            directory=lay_out(self.child, taken[1]),
        )
        await self.child.notice(p.InputEnded, lambda notice: notice.attempt_id == attempt)
        await self.child.stop(attempt)
        return sorted(self.rows()[before:])

    def point(self, taken: p.SnapshotTaken, *, allow: bool = False) -> p.Restored:
        return p.Restored(checkpoint_id=1, batch_id=taken.batch_id, operators=taken.operators, allow_non_restored=allow)

    def rows(self) -> list[list[Any]]:
        return [json.loads(line) for line in self.out.read_text().splitlines()]


async def two_dedups(child: Child, directory: Path) -> tuple[Query, tuple[p.SnapshotTaken, Path]]:
    query = Query(child, directory)
    query.feed("a", ("x", "00:00:01"))
    query.feed("b", ("y", "00:00:01"))
    taken = await query.first(query.union("a", "b"))
    assert sorted(query.rows()) == [["a", "x"], ["b", "y"]]
    query.feed("a", ("x", "00:00:01"), ("y", "00:00:01"))
    query.feed("b", ("x", "00:00:01"), ("y", "00:00:01"))
    return query, taken


@pytest.mark.slow  # the two aggregates below show the same
async def test_two_deduplications_exchanged_in_a_union_keep_their_state(child: Child, tmp_path: Path) -> None:
    """Spark alone would silently give each the other's state (C25)."""
    query, taken = await two_dedups(child, tmp_path)
    assert [(node.vertex, node.number) for node in taken[0].operators if node.stateful] == [("da", 0), ("db", 1)]
    assert await query.restored(query.union("b", "a"), taken) == [["a", "y"], ["b", "x"]]


async def test_a_snapshot_of_moved_state_restores_as_any_other(child: Child, tmp_path: Path) -> None:
    """The snapshot restores a second time, after a further exchange of the two (C11, C25)."""
    query, taken = await two_dedups(child, tmp_path)
    moved = await child.run(
        query.job,
        query.union("b", "a"),
        artifacts=query.artifacts,
        restored=query.point(taken[0]),
        directory=lay_out(child, taken[1]),
    )
    await child.batches(moved, taken[0].batch_id + 1)
    assert sorted(query.rows()[2:]) == [["a", "y"], ["b", "x"]]
    again = await query.again(moved)
    query.feed("a", ("x", "00:00:01"), ("z", "00:00:01"))
    query.feed("b", ("y", "00:00:01"), ("x", "00:00:01"))
    assert await query.restored(query.union("a", "b"), again) == [["a", "z"]]


async def test_a_stateful_vertex_added_before_the_others_is_refused(child: Child, tmp_path: Path) -> None:
    """Nothing of the version starts. The error names the vertex and the way out (C25)."""
    query, taken = await two_dedups(child, tmp_path)
    query.feed("c", ("x", "00:00:01"))
    with pytest.raises(RemoteError) as caught:
        await query.restored(query.union("c", "a", "b"), taken, allow=True)
    assert caught.value.info().code == "state-not-matched"
    assert "vertex dc has state" in caught.value.message
    assert "offsets" in caught.value.hint


async def test_a_source_added_before_the_others_is_read_from_its_beginning(child: Child, tmp_path: Path) -> None:
    """The state stays with its vertices, and the offsets with their sources (C25)."""
    query, taken = await two_dedups(child, tmp_path)
    query.feed("c", ("x", "00:00:01"))
    rows = await query.restored(query.union("-c", "a", "b"), taken)
    assert rows == [["a", "y"], ["b", "x"], ["c", "x"]]


async def test_a_stateful_vertex_removed_is_refused_unless_allowed(child: Child, tmp_path: Path) -> None:
    """The other vertex keeps its own state in both cases (C25)."""
    query, taken = await two_dedups(child, tmp_path)
    with pytest.raises(RemoteError) as caught:
        await query.restored(query.union("b"), taken)
    assert caught.value.info().code == "state-not-matched"
    assert "vertex da had state" in caught.value.message
    assert await query.restored(query.union("b"), taken, allow=True) == [["b", "x"]]


async def test_two_aggregates_exchanged_in_a_union_keep_their_state(child: Child, tmp_path: Path) -> None:
    """Each count continues from the right state (C25)."""
    query = Query(child, tmp_path)
    query.feed("a", *[("k", "00:00:10")] * 3)
    query.feed("b", *[("k", "00:00:10")] * 5)
    taken = await query.first(query.union("a", "b", of="w", columns="key, n"))
    query.feed("a", ("k", "00:00:20"))
    query.feed("b", ("k", "00:00:20"))
    assert query.rows() == []
    rows = await query.restored(query.union("b", "a", of="w", columns="key, n"), taken)
    assert rows == [["a", "k", 4], ["b", "k", 6]]


@pytest.mark.slow  # the two aggregates below show the same
async def test_a_join_beside_a_deduplication_keeps_its_state_when_they_are_exchanged(
    child: Child, tmp_path: Path
) -> None:
    """The state of a join has four stores in each partition, which move together (C25)."""
    query = Query(child, tmp_path)
    query.feed("a", ("x", "00:00:01"))
    query.feed("c", ("z", "00:00:01"))

    def version(*parts: str) -> Task:
        texts = {
            "j": "SELECT 'j' AS side, key FROM j",
            "dc": "SELECT 'c' AS side, key FROM dc",
        }
        joined = sql("j", "SELECT a.key FROM a JOIN b ON a.key = b.key", "a", "b")
        vertices = [query.events("a"), query.events("b"), joined, query.events("c"), query.stateful("d", "c")]
        union = sql("all", " UNION ALL ".join(texts[part] for part in parts), *parts)
        return task(*vertices, union, call("dedups:write", "all"))

    taken = await query.first(version("j", "dc"))
    assert query.rows() == [["c", "z"]]
    query.feed("b", ("x", "00:00:01"), ("z", "00:00:01"))
    query.feed("c", ("z", "00:00:01"), ("y", "00:00:01"))
    assert await query.restored(version("dc", "j"), taken) == [["c", "y"], ["j", "x"]]


async def test_a_limit_and_an_sql_distinct_are_recorded_as_stateful(child: Child, tmp_path: Path) -> None:
    """Spark's own list of stateful operators lacks both, and a deduplication without event time (C25)."""
    query = Query(child, tmp_path)
    limited = sql("first", "SELECT DISTINCT key FROM (SELECT key FROM a LIMIT 5)", "a")
    version = task(query.events("a"), limited, call("dedups:write", "first"))
    found = await child.ask(p.AnalyzeTasks(job=query.job, tasks=(version,), artifacts=query.artifacts))
    kinds = [node.kind for node in found.operators[version.id] if node.stateful]
    assert kinds == ["Distinct", "GlobalLimit"], found.faults


async def test_a_stateful_query_starts_at_given_offsets_with_empty_state(child: Child, tmp_path: Path) -> None:
    """The query loses no row from the offset on, and its state starts afresh (C26)."""
    artifacts = artifact(tmp_path, "dedups.py", CODE % str(tmp_path / "out.jsonl"))
    count = sql(
        "counted", "SELECT value % 2 AS k, count(*) AS n, min(value) AS first FROM numbers GROUP BY 1", "numbers"
    )
    query = task(rate(10), count, call("dedups:write", "counted", OutputMode.UPDATE))
    offset = json.dumps({"offset": 1000, "timestamp": 100_000}, separators=(",", ":"))
    restored = p.Restored(checkpoint_id=0, batch_id=-1, offsets={"numbers": offset})
    attempt = await child.run(job(), query, artifacts=artifacts, restored=restored)
    await child.batches(attempt, 2)
    taken, files = await snapshot(child, attempt, 1)
    await child.stop(attempt)
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert rows[:2] == [[0, 5, 1000], [1, 5, 1001]]
    assert json.loads(taken.source_offsets["numbers"])["offset"] == 1000 + 10 * taken.batch_id

    again = p.Restored(checkpoint_id=1, batch_id=taken.batch_id, operators=taken.operators)
    written = len(rows)
    following = await child.run(job(), query, artifacts=artifacts, restored=again, directory=lay_out(child, files))
    await child.batches(following, taken.batch_id + 1)
    await child.stop(following)
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    expected = 5 * (taken.batch_id + 1)
    assert [0, expected, 1000] in rows[written:], "its own snapshots restore as any other"


async def test_file_sources_start_at_offsets_where_their_logs_are_there(child: Child, tmp_path: Path) -> None:
    """With the logs of a snapshot nothing is read twice. Without them the start is refused (C26)."""
    query, taken = await two_dedups(child, tmp_path)
    logs = child.fresh_directory()
    shutil.copytree(taken[1] / "sources", logs / "checkpoint" / "sources")
    point = p.Restored(checkpoint_id=0, batch_id=-1, operators=taken[0].operators, offsets=taken[0].source_offsets)
    attempt = await child.run(
        job(mode=RuntimeMode.BATCH),
        query.union("b", "a"),
        artifacts=query.artifacts,
        restored=point,
        directory=logs,
    )
    await child.notice(p.InputEnded, lambda notice: notice.attempt_id == attempt)
    await child.stop(attempt)
    assert sorted(query.rows()[2:]) == [["a", "x"], ["a", "y"], ["b", "x"], ["b", "y"]], "the state is empty"
    with pytest.raises(RemoteError) as caught:
        await child.run(
            job(), query.union("a", "b"), artifacts=query.artifacts, restored=structs.replace(point, operators=())
        )
    assert caught.value.info().code == "offsets-not-usable"
