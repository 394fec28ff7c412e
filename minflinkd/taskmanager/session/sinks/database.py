"""Runs SQL statements on a database that Spark writes to by JDBC, with the driver in the session's JVM.

Knows PostgreSQL's SQL. A transaction is one connection, and is rolled back if the block raises.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError

from minflinkd.runtime.errors import Consequence, MinflinkError
from minflinkd.taskmanager.session.spark.session import Session

POSTGRESQL_DRIVER = "org.postgresql.Driver"


class DatabaseFailed(MinflinkError):
    """A database refused a statement or a connection. The message is the driver's. A retry may succeed."""

    code = "sink-database"
    consequence = Consequence.RETRYABLE


class NoDriver(DatabaseFailed):
    """The session has no JDBC driver for a URL."""


def quoted(name: str) -> str:
    """Quote an identifier, so that it is taken exactly as it is written."""
    return '"' + name.replace('"', '""') + '"'


def columns(names: tuple[str, ...]) -> str:
    return ", ".join(quoted(name) for name in names)


def writer_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a jdbc sink for Spark's writer and its connections. A driver from a jar must be named."""
    own = {name: value for name, value in options.items() if name != "key"}
    return {"driver": POSTGRESQL_DRIVER} | own if options["url"].startswith("jdbc:postgresql:") else own


class Database:
    def __init__(self, session: Session, options: Mapping[str, str]) -> None:
        self._session = session
        self._options = writer_options(options)

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Open a connection, and commit at the end of the block. Raises NoDriver, DatabaseFailed."""
        try:
            connection = self._connect()
        except Py4JJavaError as error:
            if is_no_driver(error):
                name = self._options.get("driver", "for " + ":".join(self._options["url"].split(":")[:2]))
                raise NoDriver(f"the JDBC driver {name} is not installed") from error
            raise DatabaseFailed(f"no connection to the database: {_said(error)}") from error
        try:
            connection.setAutoCommit(False)
            yield Transaction(connection)
            connection.commit()
        except Py4JJavaError as error:
            raise DatabaseFailed(_said(error)) from error
        finally:
            with suppress(Py4JError):
                connection.rollback()  # has no effect after a commit
            with suppress(Py4JError):
                connection.close()

    def _connect(self) -> Any:
        """Connect as Spark's own writer does, with the same drivers, logins and options."""
        jvm = self._session.jvm
        given = jvm.java.util.HashMap()
        for name, value in self._options.items():
            given.put(name, value)
        options = jvm.org.apache.spark.sql.execution.datasources.jdbc.JDBCOptions(jvm.PythonUtils.toScalaMap(given))
        dialect = jvm.org.apache.spark.sql.jdbc.JdbcDialects.get(self._options["url"])
        return dialect.createConnectionFactory(options).apply(-1)


class Transaction:
    """Runs statements, with `?` for each value."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def run(self, sql: str, *values: str | int) -> int:
        """Run a statement, and return how many rows it changed."""
        statement = self._prepared(sql, values)
        try:
            return int(statement.executeUpdate())
        finally:
            statement.close()

    def number(self, sql: str, *values: str | int) -> int | None:
        """Return the first column of the first row; None if there is no row, or it is NULL."""
        statement = self._prepared(sql, values)
        try:
            found = statement.executeQuery()
            if not found.next():
                return None
            number = int(found.getLong(1))
            return None if found.wasNull() else number
        finally:
            statement.close()

    def texts(self, sql: str, *values: str | int | None) -> list[str]:
        """Return the first column of all rows."""
        statement = self._prepared(sql, values)
        try:
            found, texts = statement.executeQuery(), list[str]()
            while found.next():
                texts.append(str(found.getString(1)))
            return texts
        finally:
            statement.close()

    def _prepared(self, sql: str, values: tuple[str | int | None, ...]) -> Any:
        statement = self._connection.prepareStatement(sql)
        for position, value in enumerate(values, 1):
            if value is None or isinstance(value, str):
                statement.setString(position, value)
            else:
                statement.setLong(position, value)
        return statement


def is_no_driver(error: Py4JJavaError) -> bool:
    kind = str(error.java_exception.getClass().getSimpleName())
    return kind == "ClassNotFoundException" or "No suitable driver" in _said(error)


def _said(error: Py4JJavaError) -> str:
    """Return the driver's own message."""
    exception = error.java_exception
    return str(exception.getMessage() or exception.toString())
