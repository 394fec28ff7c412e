"""Having the disk write what lies in the kernel's memory, without waiting for it, so that a later fsync is short."""

from __future__ import annotations

import ctypes
import sys

_SYNC_FILE_RANGE_WRITE = 2


def start_writing_back(fd: int, at: int, size: int) -> None:
    """A hint: where the system knows no such thing, or refuses, nothing is done."""
    if _sync_file_range is not None:
        _sync_file_range(fd, at, size, _SYNC_FILE_RANGE_WRITE)


_sync_file_range = getattr(ctypes.CDLL(None), "sync_file_range", None) if sys.platform == "linux" else None
if _sync_file_range is not None:
    _sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
