"""Physical files and the segments in them (F1): names, header, checksums, and the plan for reading segments."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import xxhash

from minflinkd.rpc.snapshot import StateHandle
from minflinkd.runtime.ids import AttemptId, ResourceId

# Magic, then the version of the format. The first segment begins after it. No reader checks it: only metadata of a
# later version names a file of another version.
HEADER = b"MFDSEG\x00\x01"
CHUNK = 1024 * 1024  # bytes


def physical_file_name(
    epoch: int, checkpoint_id: int, attempt_id: AttemptId, resource_id: ResourceId, sequence: int
) -> str:
    """Return the name, relative to the job's checkpoint directory.

    It is never used twice: an attempt makes a checkpoint only once (F5).
    """
    return f"{epoch}-{checkpoint_id:09d}-{resource_id}-{attempt_id}-{sequence:03d}.seg"


def checksum(data: bytes) -> str:
    return xxhash.xxh3_128_hexdigest(data)


@dataclass(frozen=True)
class Segment:
    """A segment and the files made from it. One handle may stand for several files with the same content."""

    handle: StateHandle
    paths: tuple[str, ...]


@dataclass(frozen=True)
class RangedRead:
    """One request: a range of a physical file that holds `segments`, in order and without overlap."""

    file: str
    offset: int
    length: int
    segments: tuple[Segment, ...]


def plan_reads(
    wanted: Mapping[str, StateHandle], *, max_gap: int = 64 * 1024, max_length: int = 64 * 1024 * 1024
) -> list[RangedRead]:
    """Return the requests that fetch `wanted` (path -> handle).

    Neighbours in a physical file share a request, even across a gap of `max_gap` bytes, while the request stays within
    `max_length`. So a large file is still fetched by several requests at once. Empty segments need no request.
    """
    paths: dict[StateHandle, list[str]] = defaultdict(list)
    for path, handle in wanted.items():
        paths[handle].append(path)
    reads: list[RangedRead] = []
    group: list[Segment] = []

    def close() -> None:
        if group:
            first, last = group[0].handle, group[-1].handle
            length = last.offset + last.length - first.offset
            reads.append(RangedRead(first.file, first.offset, length, tuple(group)))
            group.clear()

    for handle in sorted(paths, key=lambda h: (h.file, h.offset, h.length)):
        if handle.length and group:
            first, last = group[0].handle, group[-1].handle
            gap = handle.offset - (last.offset + last.length)
            length = handle.offset + handle.length - first.offset
            if handle.file != last.file or not 0 <= gap <= max_gap or length > max_length:
                close()
        if handle.length:
            group.append(Segment(handle, tuple(paths[handle])))
    close()
    return reads
