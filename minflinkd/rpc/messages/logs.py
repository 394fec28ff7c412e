"""The logs of a TaskManager, by range."""

from __future__ import annotations

from minflinkd.rpc.messages.base import Message, Request


class LogFile(Message, frozen=True):
    name: str
    size: int


class ListLogs(Request[tuple[LogFile, ...]], frozen=True):
    pass


class LogMark(Message, frozen=True):
    """By which a log is known again: a file that was rotated or truncated does not continue what it marks."""

    file: str  # device and inode
    size: int
    end: str  # digest of the last bytes before `size`


class LogRange(Message, frozen=True):
    """Bytes of a log, here or in a blob; fewer than were asked for where the log or a message ends before."""

    mark: LogMark  # of the whole file now
    continues: bool = True  # it goes on from the mark that the reader knew
    data: bytes = b""
    blob: str = ""  # the key of a TRANSIENT blob of no job, with all that was asked for, as far as the log goes


class ReadLog(Request[LogRange], frozen=True):
    name: str
    offset: int = 0
    length: int = 65536
    known: LogMark | None = None  # where the log does not continue it, no bytes are read
    upload: bool = False  # as a blob, unless the BlobServer does not take it (B3)
