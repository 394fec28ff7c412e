"""Messages to read a TaskManager's logs, by range."""

from __future__ import annotations

from minflinkd.rpc.messages.base import Message, Request


class LogFile(Message, frozen=True):
    name: str
    size: int
    modified_ms: int = 0  # 0: an earlier version, which does not say


class ListLogs(Request[tuple[LogFile, ...]], frozen=True):
    pass


class LogMark(Message, frozen=True):
    """Identifies a log up to a position. A file that was rotated or truncated since does not continue it."""

    file: str  # device and inode
    size: int
    end: str  # digest of the last bytes before `size`


class LogRange(Message, frozen=True):
    """Bytes of a log, inline or in a blob; fewer than requested if the log ends or the message is full."""

    mark: LogMark  # of the whole file as it is now
    continues: bool = True  # the file continues the mark that the reader knew
    data: bytes = b""
    blob: str = ""  # key of a TRANSIENT blob without a job; holds everything requested, up to the log's end


class ReadLog(Request[LogRange], frozen=True):
    name: str
    offset: int = 0
    length: int = 65536
    known: LogMark | None = None  # if the log does not continue it, no bytes are read
    upload: bool = False  # answer with a blob, unless the BlobServer does not accept it (B3)
