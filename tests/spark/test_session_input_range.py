"""Jobs that read the rows of some time only: what a seed draws, beside the same computed by hand."""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from minflinkd.jobgraph.chaining import chain
from minflinkd.jobgraph.input_range import limits
from minflinkd.jobgraph.model import JobGraph, RuntimeMode
from minflinkd.jobgraph.validation import parse_job
from minflinkd.taskmanager.child import protocol as p
from tests.servers.apache_kafka import ApacheKafka, Record
from tests.shortened import first
from tests.spark.session_child import Child, job
from tests.spark.test_session_bounded import rows_of, run_to_end

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

BEGIN = datetime(2026, 3, 1, tzinfo=UTC)
MINUTES = 20
WINDOW = {
    "tumbling": "window(time, '2 minutes')",
    "sliding": "window(time, '3 minutes', '1 minute')",
    "session": "session_window(time, '20 seconds')",
}


@pytest.fixture
def child(connected: Child) -> Child:
    return connected


@dataclass(frozen=True)
class Event:
    key: str
    time: datetime
    value: int
    written: datetime

    @property
    def text(self) -> str:
        return self.time.strftime("%Y-%m-%dT%H:%M:%S")


@dataclass(frozen=True)
class Drawn:
    """A job over a range, and the events. `by_event`: its rows have an event time; else they are known by files."""

    source: str
    query: str
    by_event: bool
    since: datetime
    until: datetime
    events: tuple[Event, ...]

    @classmethod
    def of(cls, seed: int) -> Drawn:
        rng = random.Random(seed)
        by_event = rng.random() < 0.7
        a, b = sorted(rng.sample(range(MINUTES), 2))
        # Rows come in any order: with the job's own watermark, half of them would be late.
        events = []
        for number in range(300):
            time = BEGIN + timedelta(seconds=rng.randrange(MINUTES * 60))
            late = timedelta(seconds=rng.randrange(MINUTES * 60) if by_event else 0)
            written = (time + late).replace(second=0)
            events.append(Event(key=f"k{rng.randrange(4)}", time=time, value=number, written=written))
        return cls(
            source=rng.choice(["json", "csv", "kafka"]),
            query=rng.choice(["rows", "distinct", *WINDOW]) if by_event else "rows",
            by_event=by_event,
            since=BEGIN + timedelta(minutes=a),
            until=BEGIN + timedelta(minutes=b),
            events=tuple(events),
        )

    @property
    def chosen(self) -> list[Event]:
        return [e for e in self.events if self.since <= (e.time if self.by_event else e.written) < self.until]

    def expected(self) -> Counter[tuple[Any, ...]]:
        if self.query == "rows":
            return Counter((e.key, e.text, e.value) for e in self.chosen)
        if self.query == "distinct":
            return Counter({(e.key, e.text): 1 for e in self.chosen})
        found: Counter[tuple[str, str]] = Counter()
        for key in {e.key for e in self.chosen}:
            for start in self._windows([e.time for e in self.chosen if e.key == key]):
                found[key, start.strftime("%Y-%m-%dT%H:%M:%S")] += 1
        return Counter((key, start, n) for (key, start), n in found.items())

    def _windows(self, times: list[datetime]) -> list[datetime]:
        """Return the start of each time's windows."""
        if self.query == "tumbling":
            return [t - (t - BEGIN) % timedelta(minutes=2) for t in times]
        if self.query == "sliding":
            return [t.replace(second=0) - timedelta(minutes=n) for t in times for n in range(3)]
        starts = list[datetime]()
        for n, time in enumerate(sorted(times)):
            near = n > 0 and time - sorted(times)[n - 1] <= timedelta(seconds=20)
            starts.append(starts[-1] if near else time)
        return starts

    def graph(self, source: dict[str, Any], out: Path) -> JobGraph:
        columns = "key STRING, time TIMESTAMP, value LONG"
        timed = "SELECT key, time, value FROM events"
        if self.source == "kafka":
            timed = f"SELECT e.* FROM (SELECT from_json(CAST(value AS STRING), '{columns}') AS e FROM events)"
        else:
            source = source | {"schema": columns}
        text = "date_format({}, \"yyyy-MM-dd'T'HH:mm:ss\")".format
        queries = {
            "rows": f"SELECT key, {text('time')} AS time, value FROM timed",
            "distinct": f"SELECT key, {text('time')} AS time FROM (SELECT DISTINCT key, time FROM timed)",
        }
        for name, window in WINDOW.items():
            of_window = f"SELECT key, {window} AS w, count(*) AS n FROM timed GROUP BY key, {window}"
            queries[name] = f"SELECT key, {text('w.start')} AS start, n FROM ({of_window})"
        watermark = {"watermark": {"column": "time", "delay": "0 seconds"}} if self.by_event else {}
        bad = {"on-bad-record": "drop"} if self.source == "csv" else {}
        vertices = {
            "events": {"source": source, **bad},
            "timed": {"inputs": ["events"], "sql": timed, **watermark},
            "result": {"inputs": ["timed"], "sql": queries[self.query]},
            "out": {"inputs": ["result"], "sink": {"format": "parquet", "path": str(out)}},
        }
        asked = {"from": self.since.isoformat(), "to": self.until.isoformat()}
        return parse_job({"name": "range", "mode": "batch", "input-range": asked, "vertices": vertices})


async def written(drawn: Drawn, place: Path, kafka: ApacheKafka, topic: str) -> dict[str, Any]:
    """Write the events to where the source finds them. Return the source."""
    if drawn.source == "kafka":
        await kafka.create_topic(topic, 3)  # nothing is written to the third
        records = [
            Record(
                json.dumps({"key": e.key, "time": e.text, "value": e.value}),
                e.value % 2,
                round(e.written.timestamp() * 1000),
            )
            for e in drawn.events
        ]
        await asyncio.to_thread(kafka.produce, topic, records)
        topics = ({"subscribe": topic}, {"subscribePattern": f"{topic}$"}, {"assign": json.dumps({topic: [0, 1, 2]})})
        begins = ({"startingOffsets": "latest"}, {"StartingTimestamp": "1"}, {"startingoffsets": "earliest"})
        options = {"kafka.bootstrap.servers": kafka.address, "maxOffsetsPerTrigger": "60"}
        number = len(drawn.chosen)
        return {"format": "kafka", "options": options | topics[number % 3] | begins[number // 3 % 3]}
    place.mkdir()
    for minute in sorted({e.written for e in drawn.events}):
        lines = []
        for e in drawn.events:
            if e.written == minute:
                row = {"key": e.key, "time": e.text, "value": e.value}
                lines.append(json.dumps(row) if drawn.source == "json" else ",".join(map(str, row.values())))
        if drawn.source == "csv":
            lines.append("k0,2026-03-01T00:05:00,many")
        file = place / f"half={minute.minute % 2}" / f"{minute:%H%M}.{drawn.source}"  # one more column
        file.parent.mkdir(exist_ok=True)
        file.write_text("\n".join(lines))
        os.utime(file, (minute.timestamp(), minute.timestamp()))
    return {"format": drawn.source, "path": str(place), "options": {"maxFilesPerTrigger": "4"}}


@pytest.mark.parametrize("seed", first(range(24), 6))
async def test_a_range_has_the_rows_of_its_time_and_no_others(
    child: Child, apache_kafka: ApacheKafka, tmp_path: Path, seed: int
) -> None:
    """By event time, or by when records were written. None of them is late, whatever the order (J8a)."""
    drawn, out = Drawn.of(seed), tmp_path / "out"
    graph = drawn.graph(await written(drawn, tmp_path / "in", apache_kafka, f"range-{seed}"), out)
    (task,) = chain(graph)
    attempt = await child.run(job(mode=RuntimeMode.BATCH, limits=limits(graph)), task)
    ended = await run_to_end(child, attempt)
    taken = await child.ask(p.TakeSnapshot(attempt_id=attempt, checkpoint_id=1, target_directory=str(tmp_path / "s")))
    await child.stop(attempt)
    assert rows_of(out, taken) == drawn.expected(), drawn.query
    if drawn.by_event:
        assert ended.metrics.batches > 2, "the watermark had moved between rows"


def over(place: Path, vertices: dict[str, Any], **asked: str) -> JobGraph:
    """A job over the JSON files of a directory, whose last vertex is `result`."""
    events = {"source": {"format": "json", "path": str(place / "in"), "schema": "key STRING, time TIMESTAMP"}}
    out = {"inputs": ["result"], "sink": {"format": "parquet", "path": str(place / "out")}}
    asked = asked or {"from": "2026-03-01", "to": "2026-03-02"}
    given = {"events": events} | vertices | {"out": out}
    return parse_job({"name": "range", "mode": "batch", "input-range": asked, "vertices": given})


async def test_a_window_may_be_the_time_of_a_row(child: Child, tmp_path: Path) -> None:
    """Of a window all must be in the range: one at its border has rows that are not read."""
    (tmp_path / "in").mkdir()
    lines = [json.dumps({"time": f"2026-03-01T00:{minute:02d}:00Z"}) for minute in range(10)]
    (tmp_path / "in" / "a.json").write_text("\n".join(lines))
    of_window = "SELECT named_struct('start', time, 'end', time + INTERVAL 2 MINUTES) AS w FROM events"
    vertices = {
        "timed": {"inputs": ["events"], "sql": of_window, "watermark": {"column": "w", "delay": "0 seconds"}},
        "result": {"inputs": ["timed"], "sql": "SELECT date_format(w.start, 'mm') AS minute FROM timed"},
    }
    graph = over(tmp_path, vertices, **{"from": "2026-03-01T00:03", "to": "2026-03-01T00:08"})
    (task,) = chain(graph)
    attempt = await child.run(job(mode=RuntimeMode.BATCH, limits=limits(graph)), task)
    await run_to_end(child, attempt)
    taken = await child.ask(p.TakeSnapshot(attempt_id=attempt, checkpoint_id=1, target_directory=str(tmp_path / "s")))
    await child.stop(attempt)
    assert sorted(rows_of(tmp_path / "out", taken)) == [("03",), ("04",), ("05",), ("06",)]


async def test_an_operator_that_means_the_delay_is_refused(child: Child, tmp_path: Path) -> None:
    """A range makes the watermark later, and duplicates would be looked for in another time."""
    (tmp_path / "in").mkdir()
    code = tmp_path / "acme.py"
    code.write_text("def once(inputs, params):\n    return inputs['timed'].dropDuplicatesWithinWatermark(['key'])\n")
    watermark = {"column": "time", "delay": "1 minute"}
    vertices = {
        "timed": {"inputs": ["events"], "sql": "SELECT * FROM events", "watermark": watermark},
        "result": {"inputs": ["timed"], "python": "acme:once"},
    }
    graph = over(tmp_path, vertices)
    context = job(mode=RuntimeMode.BATCH, limits=limits(graph))
    request = p.AnalyzeTasks(job=context, tasks=chain(graph), artifacts={"acme.py": str(code)})
    (fault,) = (await child.ask(request)).faults
    assert fault.path == "vertices.result"
    assert "looks back over the watermark's delay" in fault.problem


@pytest.mark.parametrize("by", ["python", "sql"])
async def test_a_watermark_that_the_job_file_does_not_name_is_refused(child: Child, tmp_path: Path, by: str) -> None:
    """Rows would be chosen by when their files were written, and windows would lack some of theirs."""
    (tmp_path / "in").mkdir()
    code = tmp_path / "acme.py"
    code.write_text("def timed(inputs, params):\n    return inputs['events'].withWatermark('time', '1 minute')\n")
    written = "SELECT * FROM events WATERMARK time DELAY OF INTERVAL 1 MINUTE AS e"
    timed = {"python": "acme:timed"} if by == "python" else {"sql": written}
    vertices = {
        "timed": {"inputs": ["events"], **timed},
        "result": {"inputs": ["timed"], "sql": "SELECT key FROM timed"},
    }
    graph = over(tmp_path, vertices)
    context = job(mode=RuntimeMode.BATCH, limits=limits(graph))
    request = p.AnalyzeTasks(job=context, tasks=chain(graph), artifacts={"acme.py": str(code)})
    (fault,) = (await child.ask(request)).faults
    assert fault.path == f"vertices.timed.{by}"
    assert "it sets a watermark itself" in fault.problem
    without = p.AnalyzeTasks(job=job(mode=RuntimeMode.BATCH), tasks=chain(graph), artifacts={"acme.py": str(code)})
    assert not (await child.ask(without)).faults


def by_key(place: Path, key: str, query: str, *, allowed: bool = False, **asked: str) -> JobGraph:
    """A job over a range whose rows replace each other in a table."""
    watermark = {"column": "time", "delay": "1 minute"}
    delta = {"format": "delta", "path": str(place / "table"), "options": {"key": key}}
    events = {"source": {"format": "json", "path": str(place / "in"), "schema": "key STRING, time TIMESTAMP"}}
    vertices = {
        "events": events,
        "timed": {"inputs": ["events"], "sql": "SELECT * FROM events", "watermark": watermark},
        "result": {"inputs": ["timed"], "sql": query},
        "out": {"inputs": ["result"], "sink": delta},
    }
    asked = {"from": "2026-03-01", "to": "2026-03-02"} | asked
    given = asked | ({"allow-other-times": True} if allowed else {})
    return parse_job({"name": "range", "mode": "batch", "input-range": given, "vertices": vertices})


COUNTED = "SELECT key, {0}.start AS start, count(*) AS n FROM timed GROUP BY key, {0}"
HALF = {"from": "2026-03-01T06:30", "to": "2026-03-01T09:00"}
OTHER_TIMES: dict[str, tuple[str, str, dict[str, str], str]] = {  # key, query, range, problem
    "the newest of each key": ("key", "SELECT * FROM timed", {}, "there is no date or time in the key (key)"),
    "a row of a time": ("key, time", "SELECT * FROM timed", HALF, ""),
    "a row of a day": ("key, day", "SELECT key, to_date(time) AS day FROM timed", {}, ""),
    "hours that begin with the range": ("key, start", COUNTED.format("window(time, '1 hour')"), {}, ""),
    "hours of which the range cuts one": (
        "key, start",
        COUNTED.format("window(time, '1 hour')"),
        HALF,
        "the range begins or ends within a window of 1:00:00",
    ),
    "hours that begin at half past": (
        "key, start",
        COUNTED.format("window(time, '1 hour', '1 hour', '30 minutes')"),
        {"from": "2026-03-01T06:30", "to": "2026-03-01T09:30"},
        "",
    ),
    "weeks": (
        "key, start",
        COUNTED.format("window(time, '7 days')"),
        {},
        "the range begins or ends within a window of 7 days, 0:00:00",
    ),
    "windows that overlap": (
        "key, start",
        COUNTED.format("window(time, '3 hours', '1 hour')"),
        {},
        "windows of 3:00:00 that begin every 1:00:00 lie across the borders",
    ),
    "sessions": (
        "key, start",
        COUNTED.format("session_window(time, '5 minutes')"),
        {},
        "a session may lie across a border",
    ),
}


@pytest.mark.parametrize("name", OTHER_TIMES)
async def test_rows_of_other_times_are_not_replaced_unless_that_is_allowed(
    child: Child, tmp_path: Path, name: str
) -> None:
    """A backfill would put an old row, or one of half a window, in the place of the right one."""
    (tmp_path / "in").mkdir()
    key, query, asked, problem = OTHER_TIMES[name]

    async def faults(*, allowed: bool) -> list[str]:
        graph = by_key(tmp_path, key, query, allowed=allowed, **asked)
        context = job(mode=RuntimeMode.BATCH, limits=limits(graph))
        return [fault.problem for fault in (await child.ask(p.AnalyzeTasks(job=context, tasks=chain(graph)))).faults]

    found = await faults(allowed=False)
    assert [text for text in found if problem and problem in text] == (found if problem else [])
    assert bool(found) is bool(problem)
    assert await faults(allowed=True) == []
