"""Connections to a database that Spark writes to by JDBC, with the driver in the session's JVM."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import DataFrame

from minflinkd.jobgraph.delivery import KEYED_OPTIONS
from minflinkd.runtime.errors import Consequence, MinflinkError
from minflinkd.taskmanager.session.sinks.databases.dialects import Dialect, Fields
from minflinkd.taskmanager.session.sinks.databases.mysql import MySQL
from minflinkd.taskmanager.session.sinks.databases.postgresql import PostgreSQL
from minflinkd.taskmanager.session.sinks.databases.statements import Transaction
from minflinkd.taskmanager.session.spark.session import Session

_LOCK_NOT_AVAILABLE = "55P03"  # of PostgreSQL
_LOCK_WAIT_TIMEOUT = 1205  # of MySQL

_DIALECTS: tuple[Dialect, ...] = (PostgreSQL(), MySQL())


class DatabaseFailed(MinflinkError):
    """A database refused a statement or a connection. The message is the driver's. A retry may succeed."""

    code = "sink-database"
    consequence = Consequence.RETRYABLE


class NoDriver(DatabaseFailed):
    """The session has no JDBC driver for a URL."""


class NoConnection(DatabaseFailed):
    """The server does not answer, or lets nobody in."""


class TableLocked(DatabaseFailed):
    """Somebody else has kept a lock for too long."""


def dialect_of(url: str) -> Dialect | None:
    """Return the dialect of a database that is written with its checkpoints, or by key; None for any other."""
    return next((dialect for dialect in _DIALECTS if url.startswith(dialect.url)), None)


def writer_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a jdbc sink for Spark's writer and its connections. A driver from a jar must be named."""
    own = {name: value for name, value in options.items() if name not in KEYED_OPTIONS}
    dialect = dialect_of(options["url"])
    return own if dialect is None else {"driver": dialect.driver} | own


class Database:
    """The database of a jdbc sink, by the sink's options."""

    def __init__(self, session: Session, options: Mapping[str, str]) -> None:
        self._session = session
        self._options = writer_options(options)
        self._dialect = dialect_of(options["url"])

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Open a connection, and commit at the end of the block; roll back if it raises.

        Raises NoDriver, NoConnection, DatabaseFailed.
        """
        try:
            connection = self._connect()
        except Py4JJavaError as error:
            if is_no_driver(error):
                name = self._options.get("driver", "for " + ":".join(self._options["url"].split(":")[:2]))
                raise NoDriver(f"the JDBC driver {name} is not installed") from error
            raise NoConnection(f"no connection to the database: {_said(error)}") from error
        try:
            if self._dialect is not None and self._dialect.isolation is not None:
                connection.setTransactionIsolation(self._dialect.isolation)
            connection.setAutoCommit(False)
            transaction = Transaction(connection)
            for statement in self._dialect.settings if self._dialect is not None else ():
                transaction.run(statement)
            yield transaction
            connection.commit()
        except Py4JJavaError as error:
            raise (TableLocked if _is_locked(error) else DatabaseFailed)(_said(error)) from error
        finally:
            with suppress(Py4JError):
                connection.rollback()  # has no effect after a commit
            with suppress(Py4JError):
                connection.close()

    def fields(self, frame: DataFrame) -> Fields:
        """Return the columns of rows, each with the type that Spark would give it in a table of this database."""
        jvm: Any = self._session.jvm
        dialect = jvm.org.apache.spark.sql.jdbc.JdbcDialects.get(self._options["url"])
        common = jvm.org.apache.spark.sql.execution.datasources.jdbc.JdbcUtils

        def kind(java: Any) -> str:
            found = dialect.getJDBCType(java)
            found = found if found.isDefined() else common.getCommonJDBCType(java)
            if not found.isDefined():
                raise DatabaseFailed(f"the database has no type for {java.simpleString()}")
            return str(found.get().databaseTypeDefinition())

        return [(str(field.name()), kind(field.dataType())) for field in frame._jdf.schema().fields()]

    def _connect(self) -> Any:
        """Connect as Spark's own writer does, with the same drivers, logins and options."""
        jvm = self._session.jvm
        given = jvm.java.util.HashMap()
        for name, value in self._options.items():
            given.put(name, value)
        options = jvm.org.apache.spark.sql.execution.datasources.jdbc.JDBCOptions(jvm.PythonUtils.toScalaMap(given))
        dialect = jvm.org.apache.spark.sql.jdbc.JdbcDialects.get(self._options["url"])
        return dialect.createConnectionFactory(options).apply(-1)


def is_no_driver(error: Py4JJavaError) -> bool:
    kind = str(error.java_exception.getClass().getSimpleName())
    return kind == "ClassNotFoundException" or "No suitable driver" in _said(error)


def _is_locked(error: Py4JJavaError) -> bool:
    """Whether a statement gave up waiting for a lock."""
    exception: Any = error.java_exception
    with suppress(Py4JError):  # only an SQLException has these
        state, number = str(exception.getSQLState()), int(exception.getErrorCode())
        return state == _LOCK_NOT_AVAILABLE or number == _LOCK_WAIT_TIMEOUT
    return False


def _said(error: Py4JJavaError) -> str:
    """Return the driver's own message."""
    exception = error.java_exception
    return str(exception.getMessage() or exception.toString())
