"""The upload of one snapshot: only what no confirmed checkpoint holds, compared by name or content (C12).

A state file has a unique name and never changes, so comparing names is enough. Any other file (a log entry, the
description of an operator) may have other content under the same name after a restore, and the same content under
another name in the next checkpoint. Such files are compared by content. Small files are read in batches: a switch to a
thread costs more than reading one of them.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import structlog
import xxhash

from minflinkd.filemerging.segments import CHUNK, checksum
from minflinkd.rpc.snapshot import StateFile, StateHandle
from minflinkd.runtime.crash_points import CrashPoint, reach
from minflinkd.storage.os_errors import os_errors
from minflinkd.taskmanager.child.protocol import SnapshotFile

log = structlog.get_logger(__name__)

SMALL = 256 * 1024  # bytes; smaller files are read whole
_BATCH = CHUNK  # bytes of small files held in memory at a time
_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_UNIQUE = re.compile(rf"state/.*{_UUID}.*\.(changelog|zip|sst|log)|sinks/.*/[0-9a-f]{{32}}\.parquet")

Content = tuple[int, str]  # length and checksum


class Segments(Protocol):
    """Where state files are appended: a `PhysicalFileWriter`, or a task's part in one."""

    async def append(self, source: bytes | Path) -> StateHandle: ...

    async def append_all(self, pieces: Sequence[tuple[bytes, str]]) -> list[StateHandle]: ...


@dataclass(frozen=True)
class Uploaded:
    """The files of a snapshot, in the given order. `size` bytes in `count` pieces were uploaded."""

    files: tuple[StateFile, ...]
    size: int
    count: int


@dataclass(frozen=True)
class Rewritten:
    """The files of a snapshot, in the given order. `size` bytes were uploaded again, from `worn` to `into` files."""

    files: tuple[StateFile, ...]
    size: int
    worn: frozenset[str]
    into: frozenset[str]


@dataclass(frozen=True)
class UploadPlan:
    """What to do with each file.

    `held` files need not be read. `small` are batches of files to read. `large` files are handled one by one.
    """

    held: Mapping[str, StateHandle]
    small: tuple[tuple[SnapshotFile, ...], ...]
    large: tuple[SnapshotFile, ...]


def plan_upload(files: Iterable[SnapshotFile], known: Mapping[str, StateHandle]) -> UploadPlan:
    """Plan an upload. `known` is what the last confirmed checkpoint holds, by path. Pure."""
    held: dict[str, StateHandle] = {}
    small: list[SnapshotFile] = []
    large: list[SnapshotFile] = []
    for file in files:
        handle = known.get(file.path)
        if handle is not None and handle.length == file.size and _UNIQUE.fullmatch(file.path):
            held[file.path] = handle
        else:
            (small if file.size <= SMALL else large).append(file)
    return UploadPlan(held, tuple(_batches(small)), tuple(large))


async def upload(
    segments: Segments, directory: Path, files: Sequence[SnapshotFile], known: Mapping[str, StateHandle]
) -> Uploaded:
    """Append the new ones of the `files` in `directory` to `segments`, which the caller commits.

    Raises StorageError. Errors of the local disk are raised as StorageUnavailable and the like.
    """
    plan = plan_upload(files, known)
    handles = dict(plan.held)
    held: dict[Content, StateHandle] = {(handle.length, handle.checksum): handle for handle in known.values()}
    size = count = 0
    for batch in plan.small:
        with os_errors(directory):
            contents = await asyncio.to_thread(_read, directory, batch)
        new = {content: data for content, data in contents if content not in held}
        written = await segments.append_all([(data, digest) for (_, digest), data in new.items()])
        held.update(zip(new, written, strict=True))
        size += sum(handle.length for handle in written)
        count += len(written)
        handles.update((file.path, held[content]) for file, (content, _) in zip(batch, contents, strict=True))
    lengths = {length for length, _ in held}
    for file in plan.large:
        handle = None
        if file.size in lengths:  # otherwise the checksum cannot match: save one reading
            with os_errors(directory):
                handle = held.get((file.size, await asyncio.to_thread(_checksum, directory / file.path)))
        if handle is None:
            handle = await segments.append(directory / file.path)
            size += handle.length
            count += 1
            held[handle.length, handle.checksum] = handle
            lengths.add(handle.length)
        handles[file.path] = handle
    return Uploaded(tuple(StateFile(file.path, handles[file.path]) for file in files), size, count)


async def rewrite(
    segments: Segments, directory: Path, files: Sequence[StateFile], worn: Set[str], *, until: float = math.inf
) -> Rewritten:
    """Append again those of `files` that lie in `worn` physical files (F6). They are in `directory` as well.

    A file that is damaged there stays where it is. Files not begun before `until`, on the monotonic clock, wait for the
    next checkpoint. Raises StorageError.
    """
    moved: dict[StateHandle, StateHandle] = {}
    size = 0
    for name in sorted(worn):  # one after another, so that those begun in time are finished
        held = {file.path: file.handle for file in {f.handle: f for f in files if f.handle.file == name}.values()}
        plan = plan_upload([SnapshotFile(path, handle.length) for path, handle in held.items()], {})
        for batch in (*plan.small, *((file,) for file in plan.large)):
            if time.monotonic() >= until:
                break
            written = await _append_again(segments, directory, [(file.path, held[file.path]) for file in batch])
            reach(CrashPoint.REWRITE)
            size += sum(handle.length for handle in written.values())
            moved.update((old, new) for old, new in written.items() if new.checksum == old.checksum)
    return Rewritten(
        files=tuple(StateFile(file.path, moved.get(file.handle, file.handle)) for file in files),
        size=size,
        worn=frozenset(old.file for old in moved),
        into=frozenset(new.file for new in moved.values()),
    )


async def _append_again(
    segments: Segments, directory: Path, files: Sequence[tuple[str, StateHandle]]
) -> dict[StateHandle, StateHandle]:
    """Append small files, or one file of any size.

    A damaged file gets no new handle, or one with another checksum.
    """
    if len(files) == 1:
        ((path, old),) = files
        written = {old: await segments.append(directory / path)}
    else:
        with os_errors(directory):
            contents = await asyncio.to_thread(_read, directory, [SnapshotFile(path, h.length) for path, h in files])
        whole = [
            (old, data)
            for (_, old), (content, data) in zip(files, contents, strict=True)
            if content == (old.length, old.checksum)
        ]
        handles = await segments.append_all([(data, old.checksum) for old, data in whole])
        written = {old: new for (old, _), new in zip(whole, handles, strict=True)}
    damaged = [path for path, old in files if old not in written or written[old].checksum != old.checksum]
    if damaged:
        log.warning("local copies of state files are not what was uploaded", directory=str(directory), files=damaged)
    return written


def _batches(files: Iterable[SnapshotFile]) -> Iterator[tuple[SnapshotFile, ...]]:
    batch: list[SnapshotFile] = []
    size = 0
    for file in files:
        if batch and size + file.size > _BATCH:
            yield tuple(batch)
            batch, size = [], 0
        batch.append(file)
        size += file.size
    if batch:
        yield tuple(batch)


def _read(directory: Path, files: Iterable[SnapshotFile]) -> list[tuple[Content, bytes]]:
    pieces = [(directory / file.path).read_bytes() for file in files]
    return [((len(data), checksum(data)), data) for data in pieces]


def _checksum(path: Path) -> str:
    hasher = xxhash.xxh3_128()
    with path.open("rb", buffering=0) as file:
        while piece := file.read(CHUNK):
            hasher.update(piece)
    return hasher.hexdigest()
