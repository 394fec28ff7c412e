"""Fetches segments from physical files and writes them as the files that they were (F1)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import xxhash

from minflinkd.filemerging.segments import RangedRead, Segment, checksum, plan_reads
from minflinkd.rpc.snapshot import StateHandle
from minflinkd.storage.interface import ObjectNotFound, StorageCorrupt
from minflinkd.storage.location import Location, relative_path
from minflinkd.storage.os_errors import os_errors
from minflinkd.storage.parallel import for_each


async def read_segments(
    root: Location, wanted: Mapping[str, StateHandle], target: Path, *, parallelism: int = 8
) -> int:
    """Write each `path: handle` of `wanted` to `target / path`, and return the number of bytes fetched.

    `root` is the directory that handles are relative to. Raises StorageCorrupt, with the physical file and the segment,
    if bytes are missing or differ from those written. Raises InvalidPath for a path that leaves `target`.
    """
    for path in wanted:
        relative_path(path)
    reads = plan_reads(wanted)
    with os_errors(target):
        await asyncio.to_thread(_make_directories, target, wanted)

    async def fetch(read: RangedRead) -> int:
        splitter = _Splitter(read, target)
        try:
            async for piece in root.child(read.file).open_read(read.offset, read.length):
                with os_errors(target):
                    await asyncio.to_thread(splitter.feed, piece)
            splitter.check_end()
        except ObjectNotFound as error:
            raise StorageCorrupt(f"the physical file {read.file} is missing in {root.uri}") from error
        finally:
            await asyncio.to_thread(splitter.close)
        return read.length

    return sum(await for_each(reads, fetch, limit=parallelism))


def _make_directories(target: Path, wanted: Mapping[str, StateHandle]) -> None:
    """Make the directories, and the empty files: nothing is fetched for these."""
    for directory in {(target / path).parent for path in wanted} | {target}:
        directory.mkdir(parents=True, exist_ok=True)
    for path, handle in wanted.items():
        if not handle.length:
            if handle.checksum != checksum(b""):
                raise StorageCorrupt(f"segment {path} of {handle.file} is empty, but was not when it was written")
            (target / path).write_bytes(b"")


class _Splitter:
    """Cuts the bytes of one ranged read into files. Runs in threads."""

    def __init__(self, read: RangedRead, target: Path) -> None:
        self._read = read
        self._target = target
        self._position = read.offset
        self._segments = list(reversed(read.segments))
        self._hasher = xxhash.xxh3_128()
        self._files: list[BinaryIO] = []
        self._lock = threading.Lock()

    def feed(self, piece: bytes) -> None:
        with self._lock:
            rest = memoryview(piece)
            while rest and self._segments:
                segment = self._segments[-1]
                start, end = segment.handle.offset, segment.handle.offset + segment.handle.length
                if self._position < start:  # a gap between two segments
                    taken = min(start - self._position, len(rest))
                else:
                    taken = min(end - self._position, len(rest))
                    self._write(segment, rest[:taken])
                self._position += taken
                rest = rest[taken:]
                if self._position == end:
                    self._finish(segment)

    def check_end(self) -> None:
        if self._segments:
            raise self._corrupt(self._segments[-1], f"the file ends at {self._position}")

    def close(self) -> None:
        with self._lock:
            self._segments.clear()
            self._close_files()

    def _write(self, segment: Segment, data: memoryview) -> None:
        if not self._files:
            for path in segment.paths:
                self._files.append((self._target / path).open("wb", buffering=0))
        self._hasher.update(data)
        for file in self._files:
            rest = data
            while rest:
                rest = rest[file.write(rest) :]

    def _finish(self, segment: Segment) -> None:
        found = self._hasher.hexdigest()
        if found != segment.handle.checksum:
            raise self._corrupt(segment, f"checksum {found} instead of {segment.handle.checksum}")
        self._close_files()
        self._hasher.reset()
        self._segments.pop()

    def _close_files(self) -> None:
        while self._files:
            self._files.pop().close()

    def _corrupt(self, segment: Segment, why: str) -> StorageCorrupt:
        handle = segment.handle
        return StorageCorrupt(
            f"physical file {handle.file}, segment {segment.paths[0]} (offset {handle.offset}, {handle.length} bytes):"
            f" {why}",
            hint="restore an earlier checkpoint",
        )
