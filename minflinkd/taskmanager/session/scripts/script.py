"""One script of a job: executed anew for each task, which then runs one of its queries."""

from __future__ import annotations

import ast
import ctypes
import linecache
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from minflinkd.runtime.errors import Consequence, MinflinkError
from minflinkd.taskmanager.session.scripts.recording import Query, Recording, Refusal, ScriptEnds, recorded
from minflinkd.taskmanager.session.scripts.vertices import QUERY, SINK, described
from minflinkd.taskmanager.session.scripts.writer import RecordingWriter

LONGEST: Final = 40.0  # seconds of a script; an analysis has less than two minutes for all of its executions
_AGAIN: Final = 1.0  # seconds, if the script does not let itself be ended


class ScriptFailed(MinflinkError):
    """The script did not start the query that it had started when the job was submitted, or started none in time."""

    code = "script"
    consequence = Consequence.FATAL


class Script:
    """A script, as the module knows it that the client adds to the job. `module`: the globals of that module."""

    def __init__(self, module: Mapping[str, Any], file: str, args: Sequence[str]) -> None:
        self._file = str(Path(module["__file__"]).with_name(file))
        self._module = Path(module["__file__"]).stem
        self._builtins = module["__builtins__"]  # they import the job's other modules
        self._args = list(args)
        self._functions: dict[int, Callable[[DataFrame, int], object]] = {}  # of foreachBatch, last seen

    def queries(self, spark: SparkSession, params: Mapping[str, Any]) -> dict[str, Any]:
        """Execute the script. Return what its queries make of a job document, notes and refusals, as plain values.

        Raises whatever the script raises.
        """
        recording = self._executed(spark)
        document, notes, refusals = described(self._module, recording.queries)
        found: list[Refusal] = [*recording.refusals, *refusals, *self._left_out(recording)]
        if recording.settings:
            left = ", ".join(recording.settings[:10])
            notes.append(f"settings of the TaskManager stay as they are (taskmanager.spark.conf): {left}")
        return {
            "document": document,
            "notes": [*recording.notes, *notes],
            "refusals": [asdict(refusal) for refusal in found],
        }

    def function(self, name: str) -> Callable[..., Any]:
        """Return what a vertex calls: `query_2` gives the rows of the second query, `batches_2` writes them."""
        for prefix, made in ((QUERY, self._query), (SINK, self._batches)):
            number = name.removeprefix(prefix)
            if number != name and number.isdecimal():
                return made(int(number))
        raise AttributeError(name)

    def _query(self, number: int) -> Callable[[SparkSession, Mapping[str, Any]], DataFrame]:
        def rows(spark: SparkSession, params: Mapping[str, Any]) -> DataFrame:
            return self._found(spark, number).frame

        return rows

    def _batches(self, number: int) -> Callable[[DataFrame, int], object]:
        """Return a function that stays the same for an attempt, whatever else is executed meanwhile."""
        known = [self._functions[number]] if number in self._functions else []

        def write(batch: DataFrame, epoch: int) -> object:
            if not known:
                known.append(_function(self._found(batch.sparkSession, number)))
            return known[0](batch, epoch)

        return write

    def _found(self, spark: SparkSession, number: int) -> Query:
        recording = self._executed(spark, number)
        if len(recording.queries) < number:
            raise ScriptFailed(
                f"{Path(self._file).name} started {len(recording.queries)} queries this time, and not {number}",
                hint="does it depend on the time, on files or on the environment?",
            )
        if recording.refusals:
            raise ScriptFailed(recording.refusals[0].problem, hint=recording.refusals[0].hint)
        query = recording.queries[number - 1]
        if query.function is not None:
            self._functions[number] = query.function
        return query

    def _left_out(self, recording: Recording) -> Iterator[Refusal]:
        """Yield the queries that the script starts after it has waited for others: here all run at once."""
        if recording.waited is None:
            return
        line, limited = recording.waited
        ends = any(query.trigger.keys() & {"availableNow", "once"} for query in recording.queries)
        if not (limited or ends):
            return  # it would never have come there
        started = {query.line for query in recording.queries}
        for node in ast.walk(ast.parse(Path(self._file).read_bytes())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in ("start", "toTable")
            ):
                lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
                if node.lineno > line and "writeStream" in ast.unparse(node.func) and not started & set(lines):
                    problem = f"this query starts after a wait in line {line}, and a job runs all queries at once"
                    yield Refusal(node.lineno, problem, "make a script of it, and run that when the first has ended")

    def _executed(self, spark: SparkSession, number: int | None = None) -> Recording:
        """Execute the script, up to where it waits for its queries. `number`: of the one that is needed."""
        recording = Recording(spark, self._file, [self._file, *self._args])
        program = compile(Path(self._file).read_bytes(), self._file, "exec", dont_inherit=True)
        linecache.checkcache(self._file)
        try:
            with _limited(), recorded(recording, RecordingWriter):
                names = {"__name__": "__main__", "__file__": self._file, "__builtins__": self._builtins}
                exec(program, names)  # noqa: S102 - the job's own code, as `python script.py` would
        except ScriptEnds:
            line = _line(self._file)
            if not recording.queries:
                where = f", and was in line {line}" if line else ""
                raise ScriptFailed(
                    f"the script has started no query in {LONGEST:g} s{where}", hint="what does it wait for?"
                ) from None
            if recording.waited is None and line:  # its time was over: queries may follow that it has not come to
                recording.waited = (line, True)
        except BaseException as error:
            # A script that catches everything may exit when it is ended.
            if recording.waited is None and (number is None or len(recording.queries) < number):
                if not isinstance(error, SystemExit):
                    raise
                if (status := error.args[0] if error.args else None) not in (None, 0):
                    hint = "are its arguments right? What it has printed is in the log of the TaskManager's session"
                    raise ScriptFailed(f"the script exits with {status!r}", hint=hint) from None
        return recording


def _function(query: Query) -> Callable[[DataFrame, int], object]:
    if query.function is None:
        raise ScriptFailed("the query has no foreachBatch this time", hint="does the script depend on the environment?")
    return query.function


@contextmanager
def _limited() -> Iterator[None]:
    """Raise ScriptEnds in the block if it takes too long, again and again, once its thread executes Python."""
    thread, over = ctypes.c_ulong(threading.get_ident()), threading.Event()
    lock = threading.Lock()

    def end() -> None:
        left = LONGEST
        while not over.wait(left):
            with lock:
                if not over.is_set():
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(ScriptEnds))
            left = _AGAIN

    watch = threading.Thread(target=end, name="time limit of a script", daemon=True)
    threading.Thread.start(watch)
    try:
        yield
    finally:
        with lock:
            over.set()
            ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, None)


def _line(file: str) -> int:
    """Return in which line the script was when ScriptEnds was raised; 0: not known."""
    found = [frame.lineno for frame in traceback.extract_tb(sys.exc_info()[2]) if frame.filename == file]
    return (found[-1] or 0) if found else 0
