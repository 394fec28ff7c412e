"""What ZooKeeper itself has recorded: the transactions of a server's log, in their order.

The format is that of ZooKeeper 3.6 and later (`org.apache.zookeeper.server.persistence.FileTxnLog`, jute records). Only
what minflinkd's daemons do is read in detail. A log may be read while its server runs: an answer comes after its
transaction is in the file.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

_MAGIC = 0x5A4B4C47  # "ZKLG"
_CREATE, _DELETE, _SET, _CHECK, _MULTI, _CREATE2 = 1, 2, 5, 13, 14, 15
_ERROR, _CLOSE_SESSION = -1, -11
_KINDS = {_CREATE: "create", _CREATE2: "create", _DELETE: "delete", _SET: "set", _CHECK: "check", _ERROR: "refused"}
T = TypeVar("T")


@dataclass(frozen=True)
class Operation:
    kind: str  # create, delete, set, check; refused: a part of a transaction of which nothing was done
    path: str = ""
    data: bytes = b""


@dataclass(frozen=True)
class Transaction:
    zxid: int
    session: int
    operations: tuple[Operation, ...]
    closed: bool = False  # the session has ended: `operations` delete its ephemeral nodes
    several: bool = False  # done together or not at all


def transactions(directory: Path) -> list[Transaction]:
    """Return what a server with this data directory has done."""
    files = sorted(directory.glob("version-2/log.*"), key=lambda file: int(file.suffix[1:], 16))
    return [transaction for file in files for transaction in _transactions(file.read_bytes())]


def _transactions(log: bytes) -> Iterator[Transaction]:
    reader = _Reader(log)
    if len(log) < 16 or reader.take(">iiq")[0] != _MAGIC:  # a file that has just been begun
        return
    while reader.left >= 12:
        reader.take(">q")  # checksum
        entry = reader.buffer()
        if not entry:  # files are made larger ahead of need
            return
        yield _transaction(_Reader(entry))
        reader.take(">b")  # end of the record


def _transaction(reader: _Reader) -> Transaction:
    session, _, zxid, _, kind = reader.take(">qiqqi")
    if kind == _MULTI:
        parts = reader.vector(lambda: (reader.take(">i")[0], reader.buffer()))
        return Transaction(zxid, session, tuple(_operation(each, _Reader(data)) for each, data in parts), several=True)
    if kind == _CLOSE_SESSION:
        gone = reader.vector(reader.text) if reader.left >= 4 else []
        return Transaction(zxid, session, tuple(Operation("delete", path) for path in gone), closed=True)
    return Transaction(zxid, session, (_operation(kind, reader),))


def _operation(kind: int, reader: _Reader) -> Operation:
    name = _KINDS.get(kind, "other")
    if name in ("refused", "other"):
        return Operation(name)
    path = reader.text()
    return Operation(name, path, reader.buffer() if name in ("create", "set") else b"")


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, layout: str) -> tuple[int, ...]:
        values = struct.unpack_from(layout, self._data, self._at)
        self._at += struct.calcsize(layout)
        return values

    def buffer(self) -> bytes:
        size = max(0, self.take(">i")[0])  # -1: null
        self._at += size
        return bytes(self._data[self._at - size : self._at])

    def text(self) -> str:
        return self.buffer().decode()

    def vector(self, read: Callable[[], T]) -> list[T]:
        return [read() for _ in range(max(0, self.take(">i")[0]))]
