"""Keeps the last lines that this process has logged, for those who cannot reach its stderr or the journal.

One tail per process: logging is global, too (`runtime/log.py`).
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TextIO

KEPT = 1024 * 1024  # characters
LONGEST = 64 * 1024  # characters of one piece; longer ones are cut


class LogTail:
    """A stream that passes on what is written to another one, and remembers the end of it. Thread-safe."""

    def __init__(self, out: TextIO, kept: int = KEPT) -> None:
        self._out = out
        self._kept = kept
        self._pieces: deque[str] = deque()
        self._size = 0
        self._lock = threading.Lock()

    def write(self, text: str) -> int:
        written = self._out.write(text)
        piece = text[:LONGEST]
        with self._lock:
            self._pieces.append(piece)
            self._size += len(piece)
            while self._size > self._kept:
                self._size -= len(self._pieces.popleft())
        return written

    def flush(self) -> None:
        self._out.flush()

    def isatty(self) -> bool:
        return self._out.isatty()

    def fileno(self) -> int:
        return self._out.fileno()

    def text(self) -> str:
        with self._lock:
            return "".join(self._pieces)
