"""Checks whether the targets of sinks exist and can be written, before anything starts (J4).

The check runs on one TaskManager when a job is submitted, and leaves nothing there. The supervisor checks directories
in other storages (`taskmanager/attempts/sink_paths.py`).
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path

from pyspark.sql import DataFrame

from minflinkd.jobgraph.delivery import DELETED, delivery_of, key_of
from minflinkd.jobgraph.faults import GraphFault
from minflinkd.jobgraph.formats import FILE_FORMATS, TABLE_FORMATS
from minflinkd.jobgraph.model import Delivery, Sink
from minflinkd.runtime.errors import MinflinkError
from minflinkd.taskmanager.session.plan.changes import of_table
from minflinkd.taskmanager.session.plan.plan import Plan
from minflinkd.taskmanager.session.plan.sink_checks import UnfitSink
from minflinkd.taskmanager.session.sinks.databases.connections import (
    Database,
    DatabaseFailed,
    NoConnection,
    NoDriver,
    TableLocked,
    dialect_of,
)
from minflinkd.taskmanager.session.sinks.files import local_path
from minflinkd.taskmanager.session.sinks.tables.failures import THERE, said
from minflinkd.taskmanager.session.sinks.tables.targets import table_of
from minflinkd.taskmanager.session.spark.session import Session

Found = tuple[str, str] | None  # what is wrong, and what to do

_ANSWER = 10.0  # seconds to wait for any driver: most have no timeout of their own. A user waits for the result
_ANSWER_OF_TABLE = 30.0  # seconds: the libraries give up sooner, and say why
_BRING = "add it to the job as a .jar artifact (postgresql-42.7.7.jar), or to spark.jars of TaskManagers"
_FIT = "change the table or what the job writes into it, and submit again"
_THERE = "is the server up, and are url, user and password right? If the server is down, submit again later"


def faults(session: Session, plan: Plan) -> Iterator[GraphFault]:
    """Yield the faults of all sinks of a task. Blocks for some seconds if a server does not answer."""
    for vertex in plan.sinks:
        assert vertex.sink is not None
        path = f"vertices.{vertex.id}.sink"
        if any(fault.path.startswith(f"{path}.options.") for fault in plan.faults):
            continue  # the target could not be reached with faulty options
        if vertex.sink.format in FILE_FORMATS and vertex.sink.path is not None:
            local = local_path(vertex.sink.path)
            if local is not None and (problem := unwritable(Path(local))) is not None:
                hint = f"make it writable for {_user()}, who runs the TaskManager, or name another directory"
                yield GraphFault(path=f"{path}.path", problem=problem, hint=hint)
        elif vertex.sink.format in TABLE_FORMATS:
            told = any(f"{fault.path}.".startswith(f"vertices.{vertex.id}.") for fault in plan.faults)
            rows = None if told else plan.rows_for(vertex)
            if rows is not None and (found := _table(of_table(rows, vertex.sink), vertex.sink)) is not None:
                yield GraphFault(path=path, problem=found[0], hint=found[1])
        elif vertex.sink.format == "jdbc":
            told = any(f"{fault.path}.".startswith(f"vertices.{vertex.id}.") for fault in plan.faults)
            rows = None if told else plan.rows_for(vertex)
            written = None if rows is None else of_table(rows, vertex.sink)
            if (found := _database(session, vertex.sink, written)) is not None:
                yield GraphFault(path=path, problem=found[0], hint=found[1])


def unwritable(directory: Path) -> str | None:
    """Return why a directory cannot be written or made; None if it can."""
    there = directory
    while not os.path.lexists(there) and there != there.parent:
        there = there.parent
    if not os.path.isdir(there):  # a file, or a link to a place that this user may not look into
        return f"{there} is not a directory" + (f", so {directory} cannot be made" if there != directory else "")
    try:
        os.rmdir(tempfile.mkdtemp(prefix=".minflinkd-", dir=there))  # try it: root may write without permission bits
    except OSError as error:
        what = f"{directory} cannot be written" if there == directory else f"{directory} cannot be made in {there}"
        return f"{what}: {error.strerror}"
    return None


def _user() -> str:
    return f"the user with the id {os.geteuid()}"


def _table(rows: DataFrame, sink: Sink) -> Found:
    table = table_of(sink)

    def look() -> Found:
        try:
            table.check(rows)
        except MinflinkError as error:
            return error.message, error.hint
        except Exception as error:  # of a library: one sink must not keep the others from being looked at
            return f"{table.name} cannot be looked at: {said(error)}", THERE
        return None

    try:
        table.load()  # before the time counts
    except UnfitSink as error:
        return error.message, error.hint
    late = f"{table.name} cannot be reached: its storage has not answered within {_ANSWER_OF_TABLE:g} s", THERE
    return _within(look, f"look at {table.name}", late, _ANSWER_OF_TABLE)


def _database(session: Session, sink: Sink, rows: DataFrame | None) -> Found:
    """Look at the database of a sink; and whether its rows fit, unless it is known already that they do not."""
    if (url := sink.options.get("url")) is None:
        return None  # the check of the job file reports a missing url
    dialect = dialect_of(url)
    options = sink.options if dialect is None else {**dialect.patience, **sink.options}
    late = f"no connection to the database: it has not answered within {_ANSWER:g} s", _THERE
    return _within(lambda: _written(session, sink, options, rows), f"connect to {url.partition('?')[0]}", late)


def _within(look: Callable[[], Found], name: str, late: Found, limit: float = _ANSWER) -> Found:
    """Return what a call finds; `late` if it takes longer than `limit`. A driver or a library may wait much longer."""
    found: Future[Found] = Future()

    def run() -> None:
        try:
            found.set_result(look())
        except BaseException as error:
            found.set_exception(error)

    # A call that waits cannot be interrupted: its thread lives until it returns.
    threading.Thread(target=run, name=name, daemon=True).start()
    try:
        return found.result(limit)
    except FutureTimeoutError:
        return late


def _written(session: Session, sink: Sink, options: Mapping[str, str], rows: DataFrame | None) -> Found:
    database, dialect, table = Database(session, options), dialect_of(options["url"]), options.get("dbtable")
    appends = delivery_of(sink) is not Delivery.EXACTLY_ONCE
    try:
        with database.transaction() as transaction:
            if dialect is None or table is None or rows is None or appends:
                return None
            fault = dialect.fault(transaction, table, database.fields(rows), key_of(sink))
            if fault is None and DELETED in sink.options:
                dialect.check_deletes(transaction, table)
            return fault
    except NoDriver as error:
        return error.message, _BRING
    except NoConnection as error:
        return " ".join(error.message.split()), _THERE
    except TableLocked:
        return None  # somebody makes an index, for example: the job finds out
    except DatabaseFailed as error:
        return f"rows cannot go into the table {table}: {' '.join(error.message.split())}", _FIT
