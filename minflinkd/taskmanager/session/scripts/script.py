"""One script of a job: executed anew for each task, up to the query that the task runs."""

from __future__ import annotations

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

LONGEST: Final = 60.0  # seconds of a script. One that has started its queries may then wait in a loop of its own
_TURN: Final = threading.Lock()  # sys.argv is one for all threads


class ScriptFailed(MinflinkError):
    """The script does not start the query that it has started when the job was submitted, or does not end."""

    code = "script"
    consequence = Consequence.FATAL


class Script:
    """A script, as the module knows it that the client adds to the job. `own`: the globals of that module."""

    def __init__(self, own: Mapping[str, Any], file: str, args: Sequence[str]) -> None:
        self._file = str(Path(own["__file__"]).with_name(file))
        self._module = Path(own["__file__"]).stem
        self._builtins = own["__builtins__"]  # they import the job's other modules
        self._args = list(args)
        self._functions: dict[int, Callable[[DataFrame, int], object]] = {}

    def queries(self, spark: SparkSession, params: Mapping[str, Any]) -> dict[str, Any]:
        """Execute the whole script. Return what it makes of a job document, notes and refusals, as plain values.

        Raises whatever the script raises.
        """
        recording = Recording(spark, self._file)
        self._execute(recording)
        document, notes, refusals = described(self._module, recording.queries)
        found: list[Refusal] = [*recording.refusals, *refusals]
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
        def write(batch: DataFrame, epoch: int) -> object:
            if number not in self._functions:
                self._found(batch.sparkSession, number)
            return self._functions[number](batch, epoch)

        return write

    def _found(self, spark: SparkSession, number: int) -> Query:
        recording = Recording(spark, self._file, until=number)
        self._execute(recording)
        if len(recording.queries) < number:
            raise ScriptFailed(
                f"{Path(self._file).name} started {len(recording.queries)} queries this time, and not {number}",
                hint="does it depend on the time, on files or on the environment?",
            )
        query = recording.queries[number - 1]
        if query.function is not None:
            self._functions[number] = query.function
        return query

    def _execute(self, recording: Recording) -> None:
        """Execute the script as Python executes a program."""
        text = Path(self._file).read_text(encoding="utf-8")
        program = compile(text, self._file, "exec")
        linecache.checkcache(self._file)
        if not _TURN.acquire(timeout=2 * LONGEST):
            raise ScriptFailed("another script is still being executed", hint="submit the job again")
        before, sys.argv = sys.argv, [self._file, *self._args]
        try:
            with recorded(recording, RecordingWriter), _limited():
                own = {"__name__": "__main__", "__file__": self._file, "__builtins__": self._builtins}
                exec(program, own)  # noqa: S102 - the job's own code, as `python script.py` would
        except ScriptEnds:
            if not recording.queries:
                where = _line(self._file)
                raise ScriptFailed(
                    f"the script has started no query in {LONGEST:g} s{where}", hint="what does it wait for?"
                ) from None
        except SystemExit as error:
            if error.code not in (None, 0):
                raise ScriptFailed(f"the script exits with {error.code!r}", hint="are its arguments right?") from None
        finally:
            sys.argv = before
            _TURN.release()


@contextmanager
def _limited() -> Iterator[None]:
    """Raise ScriptEnds in the block if it takes too long, once its thread executes Python again."""
    thread, over, lock = ctypes.c_ulong(threading.get_ident()), False, threading.Lock()

    def end() -> None:
        with lock:
            if not over:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(ScriptEnds))

    timer = threading.Timer(LONGEST, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        with lock:
            over = True
            ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, None)
        timer.cancel()


def _line(file: str) -> str:
    """Return where the script was when ScriptEnds was raised."""
    found = [frame.lineno for frame in traceback.extract_tb(sys.exc_info()[2]) if frame.filename == file]
    return f", and was in line {found[-1]}" if found else ""
