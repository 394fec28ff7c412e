"""Objects in one SQLite file: a storage backend for minflinkd in a separate package."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import msgspec

from minflinkd.storage.interface import Capabilities, Entry, InvalidPath, Storage, StorageUnavailable, Writer
from minflinkd.storage.writing import Unbroken
from minflinkd_sqlite.database import Database, Draft

_PAGE = 1000  # entries of a listing per query


class SqliteOptions(msgspec.Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    busy_timeout: float = 30.0  # seconds to wait for another process's transaction
    threads: int = 4


class SqliteStorage(Storage):
    """`sqlite:///dir/file.db/name`: the object `name` in the database `/dir/file.db`."""

    scheme = ("sqlite",)
    capabilities = Capabilities(atomic_rename=True, exclusive_create=True, server_side_copy=True, consistent_list=True)
    options_type = SqliteOptions

    def __init__(self, options: msgspec.Struct | None = None) -> None:
        super().__init__(options)
        self._options = options if isinstance(options, SqliteOptions) else SqliteOptions()
        self._databases: dict[str, Database] = {}

    async def open_read(self, path: str, offset: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        database, name = self._at(path)
        reading = await database.open(name)
        end = reading.size if length is None else min(reading.size, offset + length)
        while offset < end:
            piece = await database.read(reading, offset, end)
            if not piece:
                raise StorageUnavailable(f"sqlite: {path} was replaced while it was read")
            offset += len(piece)
            yield piece

    async def create(self, path: str) -> Writer:
        return SqliteWriter(*self._at(path))

    async def create_exclusive(self, path: str, data: bytes) -> None:
        database, name = self._at(path)
        draft = Draft()
        draft.waiting += data
        await database.publish(name, draft, exclusive=True)

    async def list(self, prefix: str) -> AsyncIterator[Entry]:
        database, name = self._at(prefix)
        after = below = name.rstrip("/") + "/" if name else ""
        while True:
            page = await database.list(below, after, _PAGE)
            for entry in page:
                yield entry
            if len(page) < _PAGE:
                return
            after = database.name_of(page[-1].path)

    async def delete(self, paths: Sequence[str], *, below: str | None = None) -> None:
        by_database: dict[Database, list[str]] = {}
        for path in paths:
            database, name = self._at(path)
            by_database.setdefault(database, []).append(name)
        for database, names in by_database.items():
            await database.delete(names)

    async def stat(self, path: str) -> Entry:
        database, name = self._at(path)
        return await database.stat(name)

    async def rename(self, source: str, target: str) -> None:
        database, name = self._at(source)
        other, new_name = self._at(target)
        if other is not database:
            raise InvalidPath(f"sqlite: {source} and {target} lie in two databases")
        await database.rename(name, new_name)

    async def copy(self, source: str, target: str) -> Entry:
        database, name = self._at(source)
        other, new_name = self._at(target)
        if other is not database:
            return await super().copy(source, target)
        return await database.copy(name, new_name)

    async def aclose(self) -> None:
        databases, self._databases = self._databases, {}
        for database in databases.values():
            await database.aclose()

    def _at(self, path: str) -> tuple[Database, str]:
        file, dot_db, name = path.partition(".db/")
        if not dot_db and path.endswith(".db"):
            file = path.removesuffix(".db")
        elif not dot_db:
            raise InvalidPath(f"sqlite: {path!r} names no database", hint="sqlite:///dir/file.db/name")
        if not file.startswith("/") or "\0" in path or ".." in path.split("/"):
            raise InvalidPath(f"sqlite: {path!r} is not an absolute path without ..")
        file += ".db"
        if file not in self._databases:
            self._databases[file] = Database(file, self._options.busy_timeout, self._options.threads)
        return self._databases[file], name


class SqliteWriter(Writer):
    """Stores chunks as they arrive, in a content that no object has before the commit."""

    def __init__(self, database: Database, name: str) -> None:
        self._database = database
        self._name = name
        self._draft = Draft()
        self._unbroken = Unbroken(name)
        self._committed: Entry | None = None

    async def append(self, data: bytes | memoryview) -> None:
        with self._unbroken.step():
            await self._database.append(self._name, self._draft, data)

    async def commit(self) -> Entry:
        if self._committed is None:
            with self._unbroken.step():
                self._committed = await self._database.publish(self._name, self._draft)
        return self._committed

    async def abort(self) -> None:
        await self._database.drop(self._name, self._draft)
