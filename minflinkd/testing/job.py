"""A job under test: what a test does with it, and what it reads of it."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any
from uuid import uuid4

from minflinkd.jobgraph import api
from minflinkd.jobgraph.bad_records import COLUMNS
from minflinkd.jobgraph.document import JobDocument
from minflinkd.jobgraph.model import JobGraph
from minflinkd.runtime.ids import JobId
from minflinkd.runtime.units import Duration
from minflinkd.testing import rows as of_rows
from minflinkd.testing.feed import Feed, Given
from minflinkd.testing.graphs import find
from minflinkd.testing.rows import Row
from minflinkd.testing.session import LocalSession
from minflinkd.testing.types import UnknownType, parse
from minflinkd.testing.version import Setting, Version, read_version
from minflinkd.testing.world import World

JobSource = str | Path | JobGraph | api.Job | Mapping[str, Any]
Time = datetime.datetime | str
Rows = Sequence[Mapping[str, Any]]


class JobUnderTest:
    """A job that runs in the session of the tests, on rows that the test gives it.

    Nothing happens by itself. The job reads what it was fed when `process` is called, one micro-batch for each `feed`.
    It takes a checkpoint when `checkpoint` is called. Made by the fixture `minflinkd_job`.
    """

    def __init__(self, session: LocalSession, version: Version, setting: Setting, directory: Path) -> None:
        self._session = session
        self._version = version
        self._setting = setting
        self._feed = Feed(directory / "fed")
        self._world = World(session, JobId(uuid4().hex), self._feed, directory)
        self._clock_ms = None if setting.clock is None else _ms(setting.clock, "clock")

    @classmethod
    def start(
        cls, session: LocalSession, document: JobDocument, setting: Setting, directory: Path, inputs: Mapping[str, Rows]
    ) -> JobUnderTest:
        """Check the job and start it, then process the inputs. Raises InvalidJobGraph with every fault."""
        started = cls(session, read_version(session, document, setting), setting, directory)
        try:
            started._world.start(started._version)
            for source, rows in inputs.items():
                started.feed(source, *rows)
            started.process()
        except BaseException:
            started.close()
            raise
        return started

    # --- what happens to it --------------------------------------------------------------------------------------

    def feed(self, source: str, *rows: Mapping[str, Any]) -> None:
        """Give a source rows, which it yields together in one micro-batch, at the next `process`.

        A row is a mapping of columns to values; columns that are left out are null. Raises WrongRow if a row does not
        fit the source's schema, and NoSuchVertex.
        """
        find(self._version.graph, source, ("source",))
        schema = parse(self._version.schemas[source])
        self._feed.add(source, [of_rows.converted(row, schema, source) for row in rows], schema)

    def process(self) -> None:
        """Let the job process what it was fed, until it has nothing more to do.

        Raises RemoteError if the job fails, with the traceback of its code, and NotRunning if it has ended.
        """
        self._world.require_running()
        for batches in self._feed.rounds():
            self._world.advance(Given(batches, clock_ms=self._clock_ms))

    def advance_watermark(self, to: Time) -> None:
        """Let event time be at least `to`, as if rows of that time had come: windows before it are closed.

        What was fed before is processed first. Rows that come later and are older than `to` are late.
        """
        self.process()
        self._world.advance(Given(watermark_ms=_ms(to, "to"), clock_ms=self._clock_ms))

    def advance_clock(self, *, by: float | str | datetime.timedelta | None = None, to: Time | None = None) -> None:
        """Set the time of day that the next micro-batches see in `current_timestamp()`, and let timers fire.

        `by`: seconds, or a duration such as `10 min`; the job must have been started with `clock`. What was fed before
        is processed first, at the time before.
        """
        self.process()
        if (by is None) == (to is None):
            raise ValueError("name either `by` or `to`")
        if by is not None:
            if self._clock_ms is None:
                raise ValueError("the job runs by the real clock: start it with clock=..., or name `to`")
            seconds = by.total_seconds() if isinstance(by, datetime.timedelta) else float(Duration.parse(by))
            self._clock_ms += round(seconds * 1000)
        elif to is not None:
            self._clock_ms = _ms(to, "to")
        self._world.advance(Given(clock_ms=self._clock_ms))

    def checkpoint(self) -> int:
        """Process what was fed, take a checkpoint, and commit what it covers. Returns its number."""
        self.process()
        return self._world.checkpoint()

    def kill(self) -> None:
        """End the job without warning: what it has done since the last checkpoint is lost.

        What it was fed stays where it is, as it would in Kafka or in a directory.
        """
        self._world.kill()

    def restore(self) -> None:
        """Start the job from its last checkpoint, or anew if there is none, and process again what was fed since.

        A job that runs is killed before.
        """
        self._world.kill()
        self._world.restore(self._version)

    def hot_restart(
        self,
        job: JobSource | None = None,
        *,
        params: Mapping[str, Any] | None = None,
        allow_non_restored_state: bool = False,
        allow_changed_state: bool = False,
    ) -> None:
        """Replace the job by a new version, which goes on with its state. Checkpoints before, if the job runs.

        `job`: the new version; by default the same with other `params`. Raises InvalidJobGraph if it has faults, or
        cannot go on with the state; the job then goes on as it is.
        """
        document = self._version.document if job is None else document_of(job, self._setting.base)
        old, new = self._version, read_version(self._session, document.with_params(params or {}), self._setting)
        try:
            if self._world.is_running:
                self.process()
            self._world.replace(
                old, new, allow_non_restored=allow_non_restored_state, allow_changed=allow_changed_state
            )
        except BaseException:
            new.close()
            raise
        self._version = new
        old.close()

    def finish(self) -> None:
        """End the input: event time goes to its end, all windows are closed, and everything is committed.

        This is how a job in mode `batch` ends, and `minflinkd stop --drain`.
        """
        self.process()
        self._world.finish()

    def close(self) -> None:
        """Stop the job, and remove its files. The fixture does it. Idempotent."""
        self._world.close()
        self._version.close()

    # --- what it shows -------------------------------------------------------------------------------------------

    def rows(self, vertex: str) -> list[Row]:
        """Return all rows that a vertex has yielded so far: sinks, sources, and everything in between.

        What was lost with a kill does not count. For a sink that is at-least-once it does, as its rows are visible at
        once: they are there twice after `restore`. Raises NoSuchVertex.
        """
        return [row for batch in self.batches(vertex) for row in batch]

    def batches(self, vertex: str) -> list[list[Row]]:
        """Like `rows`, with the rows of each micro-batch by themselves. Micro-batches without rows are left out."""
        found = find(self._version.graph, vertex)
        if found.kind == "source":
            return self._feed.rows(vertex)
        return [batch for batch in self._world.batches(self._version, vertex) if batch]

    def committed(self, sink: str) -> list[Row]:
        """Return the rows of a sink that others can see: those that a complete checkpoint covers.

        A sink that is at-least-once shows its rows at once. Raises NoSuchVertex.
        """
        find(self._version.graph, sink, ("sink",))
        return [row for batch in self._world.committed(self._version, sink) for row in batch]

    def assert_rows(self, vertex: str, expected: Rows, *, committed: bool = False, ordered: bool = False) -> None:
        """Fail, and say which rows are missing or too much, unless the vertex has exactly these rows.

        Values are written as for `feed`, so a time may be text. Only the columns that the expected rows name are
        compared. `committed`: compare what others can see. `ordered`: the order counts, too.
        """
        __tracebackhide__ = True
        found = self.committed(vertex) if committed else self.rows(vertex)
        wanted = [dict(row) for row in expected]
        columns = list(wanted[0]) if wanted else [name for row in found[:1] for name in row]
        if any(set(row) != set(columns) for row in wanted):
            raise ValueError(f"{vertex}: the expected rows do not all name the same columns")
        try:
            schema = parse(self.schema(vertex))
        except UnknownType:
            pass  # values are compared as they are
        else:
            wanted = [of_rows.converted(row, schema, vertex, partial=True) for row in wanted]
        if problem := of_rows.difference(found, wanted, columns, ordered=ordered):
            raise AssertionError(f"{vertex} has {problem}")

    def schema(self, vertex: str) -> str:
        """Return the columns of a vertex as Spark writes them: `struct<carrier:string,flights:bigint>`."""
        found = find(self._version.graph, vertex)
        if found.kind == "sink" and not found.inputs:
            return f"struct<{','.join(f'{name}:{kind}' for name, kind in COLUMNS.items())}>"
        return self._version.schemas[found.inputs[0].id if found.kind == "sink" else found.id]

    @property
    def watermark(self) -> datetime.datetime | None:
        """Event time: rows before it are late. None before there is any. With several tasks, that of the slowest."""
        found = self._world.watermark_ms
        return None if found <= 0 else datetime.datetime.fromtimestamp(found / 1000, datetime.UTC)

    @property
    def graph(self) -> JobGraph:
        """The job as it was written, with its params."""
        return self._version.graph

    def __enter__(self) -> JobUnderTest:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def document_of(job: JobSource, base: Path) -> JobDocument:
    """Return a job file, a document, or a job that was built in Python. Raises InvalidJobGraph, OSError."""
    from minflinkd.jobgraph.document import parse_json, read_job_file
    from minflinkd.jobgraph.model import encode

    if isinstance(job, str | Path):
        return read_job_file(base / job)
    if isinstance(job, api.Job):
        return JobDocument(job.document(), base=base)
    if isinstance(job, JobGraph):
        return JobDocument(parse_json(encode(job)).value, base=base)
    return JobDocument(dict(job), base=base)


def _ms(time: Time, name: str) -> int:
    found = of_rows.value(time, parse("timestamp"), name)
    assert isinstance(found, datetime.datetime)
    return round(found.timestamp() * 1000)
