"""Keeps the last lines that this process has logged, for those who cannot reach its stderr or the journal.

One tail per process: logging is global, too (`runtime/log.py`).
"""

from __future__ import annotations

import threading
from collections import deque
from typing import NamedTuple, TextIO

KEPT = 1024 * 1024  # bytes
LONGEST = 64 * 1024  # characters of one piece; longer ones are cut


class Kept(NamedTuple):
    """The end of a log, and how many bytes were before it: so a reader can follow the log by its offsets."""

    first: int
    data: bytes

    @property
    def end(self) -> int:
        return self.first + len(self.data)


class LogTail:
    """A stream that passes on what is written to another one, and remembers the end of it. Thread-safe."""

    def __init__(self, out: TextIO, kept: int = KEPT) -> None:
        self._out = out
        self._kept = kept
        self._pieces: deque[bytes] = deque()
        self._size = self._dropped = 0
        self._lock = threading.Lock()

    def write(self, text: str) -> int:
        written = self._out.write(text)
        piece = text[:LONGEST].encode(errors="replace")
        with self._lock:
            self._pieces.append(piece)
            self._size += len(piece)
            while self._size > self._kept:
                gone = len(self._pieces.popleft())
                self._size -= gone
                self._dropped += gone
        return written

    def flush(self) -> None:
        self._out.flush()

    def isatty(self) -> bool:
        return self._out.isatty()

    def fileno(self) -> int:
        return self._out.fileno()

    def end(self) -> Kept:
        with self._lock:
            return Kept(self._dropped, b"".join(self._pieces))
