"""What a script does to Spark while it is recorded.

pyspark is changed once in this process, and keeps its own behaviour for everybody else. In the thread that executes a
script, and in threads that it starts, `getOrCreate` gives the session of the task, `writeStream` a writer that records,
and whoever would wait for a query ends the script instead.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Final

from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
from pyspark.sql.conf import RuntimeConfig
from pyspark.sql.streaming.query import StreamingQueryManager

from minflinkd.jobgraph.formats import refused_setting

MOST: Final = 100  # queries of a script
_NAPS: Final = 100  # calls of time.sleep after the first query: a script that goes on waiting has started all
_RUNS: Final = threading.local()
_LOCK: Final = threading.Lock()


class ScriptEnds(BaseException):
    """Ends a script that has started its queries. Scripts that catch `Exception` do not catch it."""


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
    """What one execution of the script `file` has done. `spark`: the session that it gets; `argv`: its arguments."""

    spark: SparkSession
    file: str
    argv: list[str]
    queries: list[Query] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    settings: list[str] = field(default_factory=list)  # that are the TaskManager's
    waited: tuple[int, bool] | None = None  # the line in which it would have waited, and whether for a limited time
    naps: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def context(self) -> SparkContext:
        return self.spark.sparkContext

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
        """Record a query. Raises ScriptEnds if there are too many."""
        session: Any = query.frame.sparkSession
        if session._jsparkSession is not self.spark._jsparkSession:
            # Its rows would go to the task that has this session.
            self.refuse("the query is of another session than the script's", "do not keep a session in a module")
        with self.lock:
            self.queries.append(query)
            if len(self.queries) == MOST:
                self.refuse(f"the script starts {MOST} queries or more", "does it start them again and again?")
                raise ScriptEnds

    def wait(self, *, limited: bool = False) -> None:
        """The script waits for its queries. Raises ScriptEnds if it has any."""
        if self.queries:
            self.waited = self.waited or (self.line(), limited)
            raise ScriptEnds

    def nap(self, seconds: float) -> None:
        """The script sleeps: not for that long, and not for ever."""
        if not self.queries:
            _SLEEP(min(seconds, 1.0))
            return
        self.naps += 1
        if self.naps > _NAPS:
            self.wait(limited=True)

    def configure(self, options: dict[str, Any]) -> SparkSession:
        """Apply what a script sets when it makes its session."""
        if "spark.remote" in options:
            self.refuse("a job has a session of its own, and none of Spark Connect", "leave remote() out")
        for name, value in options.items():
            if name not in ("spark.app.name", "spark.master", "spark.remote"):
                self.set(name, value)
        return self.spark

    def set(self, name: str, value: Any) -> None:
        """Apply a setting, if a job may have it."""
        if name.startswith("spark.sql.") and (why := refused_setting(name)) is None:
            try:
                _SET(self.spark.conf, name, value)
            except PySparkException as error:
                self.note(f"{name} cannot be set: {str(error).splitlines()[0]}")
        elif name.startswith("spark.sql."):
            self.note(f"{name} is left out: {why}")
        elif name not in self.settings:
            self.settings.append(name)


def current() -> Recording | None:
    """Return the recording of this thread."""
    return getattr(_RUNS, "recording", None)


@contextmanager
def recorded(recording: Recording, writer: Callable[[DataFrame, Recording], Any]) -> Iterator[None]:
    """Record what this thread does inside the block. `writer` makes what `writeStream` is."""
    with _LOCK:
        _change_python()
    before = vars(_RUNS).copy()
    _RUNS.recording, _RUNS.writer = recording, writer
    try:
        yield
    finally:
        vars(_RUNS).clear()
        vars(_RUNS).update(before)
        sys.argv = _ARGV  # the script may have put another list there


class _Argv(list[str]):
    """What `sys.argv` is: in a thread that records, the script's; this process's own elsewhere."""


def _of_the_thread(name: str) -> Callable[..., Any]:
    plain = getattr(list, name)

    @wraps(plain)
    def method(own: _Argv, *given: Any, **named: Any) -> Any:
        run = current()
        return plain(own if run is None else run.argv, *given, **named)

    return method


for _name in (
    *("__getitem__", "__setitem__", "__delitem__", "__iter__", "__len__", "__contains__", "__eq__", "__repr__"),
    *("__add__", "append", "clear", "copy", "extend", "index", "insert", "pop", "remove", "reverse"),
):
    setattr(_Argv, _name, _of_the_thread(_name))
_ARGV: Final = _Argv(sys.argv)


_SLEEP: Final = time.sleep
_SET: Final = RuntimeConfig.set


def _change_python() -> None:
    if getattr(ClassicDataFrame, "_minflinkd_records", False):
        return
    sys.argv = _ARGV
    ClassicDataFrame._minflinkd_records = True  # type: ignore[attr-defined]
    plain = ClassicDataFrame.writeStream.fget  # type: ignore[attr-defined]
    ClassicDataFrame.writeStream = property(  # type: ignore[method-assign,assignment]
        lambda frame: plain(frame) if (run := current()) is None else _RUNS.writer(frame, run)
    )
    plain_active = StreamingQueryManager.active.fget  # type: ignore[attr-defined]
    StreamingQueryManager.active = property(  # type: ignore[method-assign,assignment]
        lambda manager: plain_active(manager) if current() is None else []
    )
    _replace(SparkSession.Builder, "getOrCreate", lambda run, _, builder: run.configure(builder._options))
    _replace(SparkSession, "__init__", _session_made)
    _replace(SparkContext, "__init__", lambda run, _, made, *__, **___: vars(made).update(vars(run.context)))
    for kind in (SparkSession, SparkContext):
        _replace(kind, "stop", lambda run, *_: None)
    _replace(RuntimeConfig, "set", lambda run, _, conf, key, value: run.set(key, value))
    _replace(SparkContext, "setLogLevel", lambda run, *_, **__: run.note("the log level is the TaskManager's"))
    _replace(StreamingQueryManager, "awaitAnyTermination", _any_awaited)
    _replace(StreamingQueryManager, "resetTerminated", lambda run, *_: None)
    for name in ("addListener", "removeListener"):
        _replace(StreamingQueryManager, name, _listener_told)
    _replace(threading.Thread, "start", _thread_started)
    _replace(threading.Event, "wait", _event_awaited)
    _replace(time, "sleep", lambda run, _, seconds: run.nap(seconds))


def _replace(place: Any, name: str, in_recording: Callable[..., Any]) -> None:
    """Replace a function in threads that record by `in_recording`, which also gets the recording, and the function."""
    plain = getattr(place, name)

    @wraps(plain)
    def replaced(*given: Any, **named: Any) -> Any:
        run = current()
        return plain(*given, **named) if run is None else in_recording(run, plain, *given, **named)

    setattr(place, name, replaced)


def _session_made(
    run: Recording,
    init: Callable[..., None],
    made: SparkSession,
    sparkContext: SparkContext,  # noqa: N803 - pyspark's name
    jsparkSession: Any = None,  # noqa: N803 - pyspark's name
    options: Any = None,
) -> None:
    """A session that a script makes by hand is the one that is there; pyspark's own are those of the JVM."""
    if jsparkSession is None:
        vars(made).update(vars(run.spark))
    else:
        init(made, sparkContext, jsparkSession, options or {})


def _any_awaited(run: Recording, _: object, manager: object, timeout: float | None = None) -> None:
    run.wait(limited=timeout is not None)


def _listener_told(run: Recording, *_: object) -> None:
    run.note("listeners hear nothing: see `minflinkd info`")


def _thread_started(run: Recording, start: Callable[[threading.Thread], None], thread: threading.Thread) -> None:
    """Start a thread of the script: what it does is recorded, too."""
    work, writer = thread.run, _RUNS.writer

    def recording() -> None:
        with recorded(run, writer), suppress(ScriptEnds):
            work()

    thread.run = recording  # type: ignore[method-assign]
    start(thread)


def _event_awaited(
    run: Recording, wait: Callable[..., bool], event: threading.Event, timeout: float | None = None
) -> bool:
    """A wait of the script itself ends it. Python's own, as for a thread that starts, does not."""
    if sys._getframe(2).f_code.co_filename == run.file:
        run.wait(limited=timeout is not None)
    return wait(event, timeout)
