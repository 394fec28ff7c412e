"""One database file: objects by name, each with the number of its content, and the chunks of each content.

A write creates a content that no object has yet. If the process is killed, it stays invisible and is deleted a day
later.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import msgspec

from minflinkd.storage.interface import (
    Entry,
    ObjectExists,
    ObjectNotFound,
    PermissionDenied,
    StorageCorrupt,
    StorageError,
    StorageFull,
    StorageUnavailable,
)
from minflinkd.storage.os_errors import of_os_error

T = TypeVar("T")

CHUNK = 1 << 20  # bytes
_DAY = 86_400_000  # milliseconds
_SCHEMA = """
    CREATE TABLE IF NOT EXISTS contents (id INTEGER PRIMARY KEY AUTOINCREMENT, began_ms INTEGER NOT NULL);
    CREATE TABLE IF NOT EXISTS chunks (
        content INTEGER NOT NULL REFERENCES contents ON DELETE CASCADE, position INTEGER NOT NULL, data BLOB NOT NULL,
        PRIMARY KEY (content, position)
    );
    CREATE TABLE IF NOT EXISTS objects (
        name TEXT PRIMARY KEY, content INTEGER NOT NULL UNIQUE REFERENCES contents, size INTEGER NOT NULL,
        modified_ms INTEGER NOT NULL
    ) WITHOUT ROWID;
"""
_KINDS: dict[int, type[StorageError]] = {
    sqlite3.SQLITE_BUSY: StorageUnavailable,
    sqlite3.SQLITE_LOCKED: StorageUnavailable,
    sqlite3.SQLITE_IOERR: StorageUnavailable,
    sqlite3.SQLITE_FULL: StorageFull,
    sqlite3.SQLITE_READONLY: PermissionDenied,
    sqlite3.SQLITE_PERM: PermissionDenied,
    sqlite3.SQLITE_CANTOPEN: PermissionDenied,
    sqlite3.SQLITE_CORRUPT: StorageCorrupt,
    sqlite3.SQLITE_NOTADB: StorageCorrupt,
}


class Draft:
    """A content being written, useless after a failure. Its last chunk waits until it is complete."""

    def __init__(self) -> None:
        self.content: int | None = None
        self.stored = 0  # bytes
        self.waiting = bytearray()


class Reading(msgspec.Struct, frozen=True):
    """One content of an object, so that a reader does not mix it with a later one."""

    content: int
    size: int


class Database:
    """Runs every method as one transaction in a thread."""

    def __init__(self, file: str, busy_timeout: float, threads: int) -> None:
        self._file = file
        self._busy_timeout = busy_timeout
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=f"sqlite {file}")
        self._local = threading.local()
        self._opening = threading.Lock()  # two connections cannot switch to WAL at once
        self._opened: list[sqlite3.Connection] = []

    async def open(self, name: str) -> Reading:
        return await self._run(name, lambda db: Reading(*self._found(db, name)[:2]))

    async def read(self, reading: Reading, offset: int, end: int) -> bytes:
        """Read from one chunk; empty if the content no longer exists."""

        def read(db: sqlite3.Connection) -> bytes:
            query = (
                "SELECT position, data FROM chunks WHERE content = ? AND position <= ? ORDER BY position DESC LIMIT 1"
            )
            for position, data in db.execute(query, (reading.content, offset)):
                return bytes(data[offset - position : end - position])
            return b""

        return await self._run("", read)

    async def stat(self, name: str) -> Entry:
        return await self._run(name, lambda db: self._entry(name, *self._found(db, name)))

    async def list(self, below: str, after: str, limit: int) -> list[Entry]:
        """List the names after `after` that begin with `below`, which is empty or ends with a slash."""

        def page(db: sqlite3.Connection) -> list[Entry]:
            query = "SELECT name, content, size, modified_ms FROM objects WHERE name > ? AND (? = '' OR name < ?)"
            rows = db.execute(f"{query} ORDER BY name LIMIT {limit:d}", (after, below, below[:-1] + "0"))  # 0 follows /
            return [self._entry(*row) for row in rows]

        return await self._run(below, page)

    async def append(self, name: str, draft: Draft, data: bytes | memoryview) -> None:
        """Store complete chunks; the rest waits."""
        draft.waiting += data
        if len(draft.waiting) >= CHUNK:
            await self._run(name, lambda db: self._store(db, name, draft, len(draft.waiting) // CHUNK * CHUNK))

    async def publish(self, name: str, draft: Draft, *, exclusive: bool = False) -> Entry:
        def publish(db: sqlite3.Connection) -> Entry:
            if exclusive and db.execute("SELECT 1 FROM objects WHERE name = ?", (name,)).fetchone():
                raise ObjectExists(f"sqlite: {self._path(name)} exists")
            self._store(db, name, draft, len(draft.waiting))
            return self._name_it(db, name, draft.content, draft.stored)

        entry = await self._run(name, publish)
        draft.content = None
        return entry

    def _store(self, db: sqlite3.Connection, name: str, draft: Draft, size: int) -> None:
        if draft.content is None:
            draft.content = db.execute("INSERT INTO contents (began_ms) VALUES (?)", (_now_ms(),)).lastrowid
        elif not db.execute("SELECT 1 FROM contents WHERE id = ?", (draft.content,)).fetchone():
            raise StorageUnavailable(f"sqlite: {self._path(name)}: the write was broken off")
        for start in range(0, size, CHUNK):
            chunk = bytes(draft.waiting[start : min(start + CHUNK, size)])
            db.execute("INSERT INTO chunks VALUES (?, ?, ?)", (draft.content, draft.stored, chunk))
            draft.stored += len(chunk)
        del draft.waiting[:size]

    async def drop(self, name: str, draft: Draft) -> None:
        """Delete the draft, so that a late publication finds nothing to publish. Idempotent."""
        if draft.content is not None:
            unnamed = "DELETE FROM contents WHERE id = ? AND id NOT IN (SELECT content FROM objects)"
            await self._run(name, lambda db: db.execute(unnamed, (draft.content,)))
            draft.content = None

    async def delete(self, names: Sequence[str]) -> None:
        def delete(db: sqlite3.Connection) -> None:
            for name in names:
                self._remove(db, name)

        await self._run(names[0], delete)

    async def rename(self, name: str, new_name: str) -> None:
        def rename(db: sqlite3.Connection) -> None:
            self._found(db, name)
            if new_name != name:
                self._remove(db, new_name)
                db.execute("UPDATE objects SET name = ? WHERE name = ?", (new_name, name))

        await self._run(name, rename)

    async def copy(self, name: str, new_name: str) -> Entry:
        def copy(db: sqlite3.Connection) -> Entry:
            content, size, _ = self._found(db, name)
            new = db.execute("INSERT INTO contents (began_ms) VALUES (?)", (_now_ms(),)).lastrowid
            db.execute("INSERT INTO chunks SELECT ?, position, data FROM chunks WHERE content = ?", (new, content))
            return self._name_it(db, new_name, new, size)

        return await self._run(name, copy)

    async def aclose(self) -> None:
        await asyncio.to_thread(self._threads.shutdown)
        for connection in self._opened:
            connection.close()
        self._opened.clear()

    def name_of(self, path: str) -> str:
        return path.removeprefix(f"{self._file}/")

    def _path(self, name: str) -> str:
        return f"{self._file}/{name}" if name else self._file

    def _entry(self, name: str, content: int, size: int, modified_ms: int) -> Entry:
        return Entry(self._path(name), size, modified_ms, str(content))

    def _found(self, db: sqlite3.Connection, name: str) -> tuple[int, int, int]:
        for content, size, modified_ms in db.execute(
            "SELECT content, size, modified_ms FROM objects WHERE name = ?", (name,)
        ):
            return content, size, modified_ms
        raise ObjectNotFound(f"sqlite: {self._path(name)} does not exist")

    def _name_it(self, db: sqlite3.Connection, name: str, content: int | None, size: int) -> Entry:
        self._remove(db, name)
        row = (name, content, size, _now_ms())
        db.execute("INSERT INTO objects VALUES (?, ?, ?, ?)", row)
        return Entry(self._path(name), size, row[3], str(content))

    def _remove(self, db: sqlite3.Connection, name: str) -> None:
        for (content,) in db.execute("SELECT content FROM objects WHERE name = ?", (name,)).fetchall():
            db.execute("DELETE FROM objects WHERE name = ?", (name,))
            db.execute("DELETE FROM contents WHERE id = ?", (content,))

    async def _run(self, name: str, act: Callable[[sqlite3.Connection], T]) -> T:
        def run() -> T:
            with self._errors(name):
                db = self._connection()
                db.execute("BEGIN IMMEDIATE")
                try:
                    answer = act(db)
                    db.execute("COMMIT")
                except BaseException:
                    if db.in_transaction:
                        db.execute("ROLLBACK")
                    raise
                return answer

        return await asyncio.get_running_loop().run_in_executor(self._threads, run)

    def _connection(self) -> sqlite3.Connection:
        """Return this thread's connection."""
        if not hasattr(self._local, "connection"):
            with self._opening:
                self._local.connection = self._open()
        connection: sqlite3.Connection = self._local.connection
        return connection

    def _open(self) -> sqlite3.Connection:
        os.makedirs(os.path.dirname(self._file), exist_ok=True)
        db = sqlite3.connect(self._file, timeout=self._busy_timeout, isolation_level=None, check_same_thread=False)
        self._opened.append(db)
        for setting in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
            db.execute(f"PRAGMA {setting}")
        db.executescript(_SCHEMA)
        unnamed = "DELETE FROM contents WHERE began_ms < ? AND id NOT IN (SELECT content FROM objects)"
        db.execute(unnamed, (_now_ms() - _DAY,))
        return db

    @contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            kind = _KINDS.get((getattr(error, "sqlite_errorcode", None) or 0) & 0xFF, StorageError)
            raise kind(f"sqlite: {self._path(name)}: {error}") from error
        except OSError as error:
            raise of_os_error("sqlite", self._path(name), error) from error


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
