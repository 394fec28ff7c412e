"""How the past is stored: in blocks of 60 rows, each in a file of its own that is written whole.

Of the last hour there are fine blocks of 5 minutes, of the last day coarse ones of an hour. A daemon writes only files
of its own epoch, so that one that has been replaced changes nothing. Whoever reads them reads those of all epochs.
"""

from __future__ import annotations

import re
import zlib
from array import array
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from minflinkd.metrics.history.book import KEPT_MS, HistoryBook, JobPast, Mark, MarkKind
from minflinkd.metrics.history.encoding import UNKNOWN
from minflinkd.metrics.history.series import CLUSTER, JOB, TASK, Layout
from minflinkd.metrics.history.track import Resolution, Track
from minflinkd.runtime.errors import Consequence, MinflinkError
from minflinkd.runtime.ids import JobId

ROWS: Final = 60  # of a block
LARGEST: Final = 64 << 20  # bytes of a block when it is unpacked
_FORMAT: Final = 1
_NAME: Final = re.compile(r"(fine|coarse)-(\d{1,12})-(\d{1,12})")


class UnreadableHistory(MinflinkError):
    """A stored part of the metrics' past cannot be read. It is left out."""

    code = "unreadable-history"
    consequence = Consequence.REFUSED


class BlockName(NamedTuple):
    resolution: Resolution
    number: int  # of the block: its first slot / ROWS
    epoch: int

    @classmethod
    def parsed(cls, text: str) -> BlockName | None:
        """Return None for what is no name of a block."""
        found = _NAME.fullmatch(text)
        return found and cls(Resolution[found[1].upper()], int(found[2]), int(found[3]))

    def __str__(self) -> str:
        return f"{self.resolution.name.lower()}-{self.number:09d}-{self.epoch:09d}"

    @property
    def start(self) -> int:
        """Its first slot."""
        return self.number * ROWS

    @property
    def start_ms(self) -> int:
        return self.start * self.resolution

    @property
    def end_ms(self) -> int:
        return (self.start + ROWS) * self.resolution

    @property
    def hour(self) -> int:
        """The number of the coarse block of the same time."""
        return self.start_ms // (ROWS * Resolution.COARSE)


class StoredTrack(msgspec.Struct, frozen=True, array_like=True):
    id: str  # of a task; "" of a job or the cluster
    wide: bytes  # codes of two bytes, little-endian, by series and then by slot
    narrow: bytes


class StoredJob(msgspec.Struct, frozen=True, array_like=True):
    job_id: str
    name: str
    heard_ms: int
    tracks: tuple[StoredTrack, ...]  # its own has the id ""
    marks: tuple[tuple[int, str, str], ...]  # that were told in the time of the block


class Block(msgspec.Struct, frozen=True, array_like=True):
    format: int
    resolution: int
    start: int
    layouts: dict[str, tuple[tuple[str, bool], ...]]  # by kind of subject: series, and whether they are wide
    cluster: StoredTrack | None
    jobs: tuple[StoredJob, ...]


def block_number(resolution: Resolution, at_ms: int) -> int:
    return at_ms // (ROWS * resolution)


def outlived(name: BlockName, now_ms: int, due_hours: set[int]) -> bool:
    """Whether a block may be deleted. Fine ones stay until their hour is stored in a coarse one."""
    if name.resolution is Resolution.COARSE:
        return name.end_ms < now_ms - KEPT_MS
    return name.end_ms < now_ms - Resolution.FINE.kept * Resolution.FINE and name.hour not in due_hours


def taken_from(book: HistoryBook, resolution: Resolution, number: int) -> Iterator[StoredJob | StoredTrack]:
    """Yield what a block has, a job at a time, and then the cluster. The caller may do something else in between."""
    start = number * ROWS
    begin_ms, end_ms = start * resolution, (start + ROWS) * resolution
    for job_id, past in list(book.jobs.items()):
        tracks = [(""), *past.tasks]
        stored = [
            found
            for task_id in tracks
            if (found := _stored(task_id, past.tasks[task_id] if task_id else past.track, resolution, start))
        ]
        marks = tuple(
            (at, kind.value, text) for (at, kind), (text, told) in past.marks.items() if begin_ms <= told < end_ms
        )
        if stored or marks:
            yield StoredJob(str(job_id), past.name, past.heard_ms, tuple(stored), marks)
    if (cluster := _stored("", book.cluster, resolution, start)) is not None:
        yield cluster


def encoded(resolution: Resolution, number: int, parts: Sequence[StoredJob | StoredTrack]) -> bytes:
    layouts = {
        layout.kind: tuple((series.name, series.codec.wide) for series in layout.series)
        for layout in (TASK, JOB, CLUSTER)
    }
    jobs = tuple(part for part in parts if isinstance(part, StoredJob))
    cluster = next((part for part in parts if isinstance(part, StoredTrack)), None)
    block = Block(_FORMAT, resolution, number * ROWS, layouts, cluster, jobs)
    return zlib.compress(msgspec.msgpack.encode(block), 1)


def decoded(data: bytes) -> Block:
    """Raises UnreadableHistory."""
    try:
        unpacking = zlib.decompressobj()
        block = msgspec.msgpack.decode(unpacking.decompress(data, LARGEST), type=Block)
    except (zlib.error, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableHistory(f"it is no block of metrics: {error}") from error
    if block.format != _FORMAT or block.resolution not in tuple(Resolution):
        raise UnreadableHistory(f"its format is {block.format}, from another version of minflinkd")
    return block


def add(book: HistoryBook, block: Block) -> Iterator[None]:
    """Add a stored block to what is known. It yields after each job: the caller may do something else in between."""
    resolution = Resolution(block.resolution)
    if block.cluster is not None:
        _fill(book.cluster, block, block.cluster)
    yield
    for job in block.jobs:
        past = book.heard_of(JobId(job.job_id), _name(book, job), job.heard_ms)
        if past is not None:
            _add_job(book, past, block, job, resolution)
        yield


def _name(book: HistoryBook, job: StoredJob) -> str:
    known = book.jobs.get(JobId(job.job_id))
    return known.name if known is not None and known.heard_ms >= job.heard_ms else job.name


def _add_job(book: HistoryBook, past: JobPast, block: Block, job: StoredJob, resolution: Resolution) -> None:
    end_ms = (block.start + ROWS) * resolution
    kinds = frozenset(MarkKind)
    for at, kind, text in sorted(job.marks):
        if kind in kinds and (at, MarkKind(kind)) not in past.marks:
            past.mark([Mark(at, MarkKind(kind), text)], min(job.heard_ms, end_ms - 1))
    for stored in job.tracks:
        track = past.track if not stored.id else book.task_of(past, stored.id, job.heard_ms)
        if track is not None:
            _fill(track, block, stored)


def _fill(track: Track, block: Block, stored: StoredTrack) -> None:
    """Series are found by their names: another version may have others."""
    codes: dict[str, Sequence[int]] = {}
    wide = array("H", stored.wide)
    wides = narrows = 0
    for name, is_wide in block.layouts.get(track.layout.kind, ()):
        if is_wide:
            codes[name] = wide[wides * ROWS : (wides + 1) * ROWS]
            wides += 1
        else:
            codes[name] = stored.narrow[narrows * ROWS : (narrows + 1) * ROWS]
            narrows += 1
    widths = dict(block.layouts.get(track.layout.kind, ()))
    nothing = [UNKNOWN] * ROWS
    columns = [
        found if widths.get(series.name) is series.codec.wide and len(found := codes[series.name]) == ROWS else nothing
        for series in track.layout.series
    ]
    track.fill(Resolution(block.resolution), block.start, columns)


def _stored(name: str, track: Track, resolution: Resolution, start: int) -> StoredTrack | None:
    columns = track.columns(resolution, start, start + ROWS)
    if not any(map(any, columns)):
        return None
    layout: Layout = track.layout
    wide = b"".join(array("H", columns[number]).tobytes() for number in layout.wide)
    return StoredTrack(name, wide, b"".join(bytes(columns[number]) for number in layout.narrow))
