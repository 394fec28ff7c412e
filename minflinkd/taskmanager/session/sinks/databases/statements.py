"""SQL statements on one connection, whose driver is in the session's JVM."""

from __future__ import annotations

from typing import Any


class Transaction:
    """Runs statements, with `?` for each value. Whoever opened the connection commits, or rolls back."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def run(self, sql: str, *values: str | int) -> int:
        """Run a statement, and return how many rows it changed."""
        statement = self._prepared(sql, values)
        try:
            return int(statement.executeUpdate())
        finally:
            statement.close()

    def number(self, sql: str, *values: str | int | None) -> int | None:
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

    def server_version(self) -> str:
        """Return the version that the driver takes the server for."""
        return str(self._connection.getMetaData().getDatabaseProductVersion())

    def _prepared(self, sql: str, values: tuple[str | int | None, ...]) -> Any:
        statement = self._connection.prepareStatement(sql)
        for position, value in enumerate(values, 1):
            if value is None or isinstance(value, str):
                statement.setString(position, value)
            else:
                statement.setLong(position, value)
        return statement
