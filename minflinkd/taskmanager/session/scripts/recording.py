"""What a script does to Spark while it is recorded. Only the thread that executes the script is affected.

pyspark is changed once in this process, and its own behaviour stays for everybody else. In the recording thread
`getOrCreate` gives the session of the task, `writeStream` a writer that records, and nothing stops or waits.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Final

from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
from pyspark.sql.streaming.query import StreamingQueryManager

_RUNS: Final = threading.local()
_LOCK: Final = threading.Lock()


class ScriptEnds(BaseException):
    """Ends a script whose rest is not needed. Scripts that catch `Exception` do not catch it."""


@dataclass(frozen=True)
class Refusal:
    """Something in the script that a job cannot do."""

    line: int
    problem: str
    hint: str


@dataclass(kw_only=True)
class Query:
    """A query that the script would have started."""

    frame: DataFrame
    line: int
    format: str | None = None  # None: as Spark's default says, Parquet
    name: str | None = None
    mode: str | None = None
    options: dict[str, str] = field(default_factory=dict)
    partition_by: tuple[str, ...] = ()
    trigger: dict[str, Any] = field(default_factory=dict)
    function: Callable[[DataFrame, int], object] | None = None  # of foreachBatch


@dataclass
class Recording:
    """The queries of one execution of the script `file`. `until`: the number of the last one that is needed."""

    spark: SparkSession
    file: str
    until: int | None = None
    queries: list[Query] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def line(self) -> int:
        """Return the line of the script that is being executed; 0 if none is."""
        frame = sys._getframe()
        while frame is not None:
            if frame.f_code.co_filename == self.file:
                return frame.f_lineno
            frame = frame.f_back  # type: ignore[assignment]
        return 0

    def note(self, what: str) -> None:
        told = f"line {self.line()}: {what}"
        if told not in self.notes:
            self.notes.append(told)

    def refuse(self, problem: str, hint: str) -> None:
        self.refusals.append(Refusal(self.line(), problem, hint))

    def add(self, query: Query) -> None:
        """Record a query. Raises ScriptEnds if no later one is needed."""
        self.queries.append(query)
        if self.until is not None and len(self.queries) >= self.until:
            raise ScriptEnds

    def configure(self, options: dict[str, Any]) -> SparkSession:
        """Apply what a script sets when it makes its session."""
        for name, value in options.items():
            if name in ("spark.app.name", "spark.master"):
                continue
            try:
                self.spark.conf.set(name, str(value))
            except PySparkException:
                self.note(f"{name} is a setting of the TaskManager: it stays as taskmanager.spark.conf has it")
        return self.spark


def current() -> Recording | None:
    """Return the recording of this thread."""
    return getattr(_RUNS, "recording", None)


@contextmanager
def recorded(recording: Recording, writer: Callable[[DataFrame, Recording], Any]) -> Iterator[None]:
    """Record what this thread does inside the block. `writer` makes what `writeStream` is."""
    with _LOCK:
        _change_pyspark()
    before = current()
    _RUNS.recording, _RUNS.writer = recording, writer
    try:
        yield
    finally:
        _RUNS.recording = before


def _change_pyspark() -> None:
    if getattr(ClassicDataFrame, "_minflinkd_records", False):
        return
    ClassicDataFrame._minflinkd_records = True  # type: ignore[attr-defined]
    plain = ClassicDataFrame.writeStream.fget  # type: ignore[attr-defined]
    ClassicDataFrame.writeStream = property(  # type: ignore[method-assign,assignment]
        lambda frame: plain(frame) if (run := current()) is None else _RUNS.writer(frame, run)
    )
    _replace(SparkSession.Builder, "getOrCreate", lambda run, builder: run.configure(builder._options))
    _replace(SparkSession, "stop", lambda run, _: None)
    _replace(SparkContext, "stop", lambda run, _: None)
    _replace(SparkContext, "setLogLevel", lambda run, *_: run.note("the log level is the TaskManager's"))
    for name in ("awaitAnyTermination", "resetTerminated"):
        _replace(StreamingQueryManager, name, lambda run, *_: None)
    for name in ("addListener", "removeListener"):
        _replace(StreamingQueryManager, name, lambda run, *_: run.note("listeners hear nothing: see `minflinkd info`"))
    plain_active = StreamingQueryManager.active.fget  # type: ignore[attr-defined]
    StreamingQueryManager.active = property(  # type: ignore[method-assign,assignment]
        lambda manager: plain_active(manager) if current() is None else []
    )


def _replace(kind: type, name: str, in_recording: Callable[..., Any]) -> None:
    plain = getattr(kind, name)

    @wraps(plain)
    def replaced(*given: Any, **named: Any) -> Any:
        run = current()
        return plain(*given, **named) if run is None else in_recording(run, *given, *named.values())

    setattr(kind, name, replaced)
