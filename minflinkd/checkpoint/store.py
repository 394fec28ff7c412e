"""A job's completed checkpoints in the storage: the metadata files *are* the store (C22, C25).

A checkpoint exists as soon as its metadata exists, and stops existing when its metadata is deleted. Its physical files
are deleted after that. So a crash between any two steps leaves a consistent store, and at worst orphans. The sweep of a
later leader removes those.

With several daemons, a checkpoint also needs a *pointer*: a record in the coordination service, which accepts writes
only from the leader (A11a). The pointer is written after the metadata and deleted before it. Metadata without a pointer
does not count: its writer was a leader that had been replaced, or that died before it wrote the pointer. Or a leader
died between the two deletions. The next leader deletes such metadata.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import structlog

from minflinkd.checkpoint import damage, layout
from minflinkd.checkpoint.damage import Damage, DamageRecord
from minflinkd.checkpoint.metadata import CompletedCheckpoint, CorruptMetadata, MetadataTooNew, decode, encode
from minflinkd.checkpoint.turn import StorageTurn
from minflinkd.checkpoint.verification import require_directory
from minflinkd.rpc.jobs import OrphanFile
from minflinkd.runtime.errors import Consequence, MinflinkError
from minflinkd.runtime.ids import JobId
from minflinkd.storage.interface import ObjectExists, ObjectNotFound, ObjectTooLarge, StorageUnavailable
from minflinkd.storage.location import Location
from minflinkd.storage.recording import RecordedStorage, StorageStatistics

log = structlog.get_logger(__name__)

POINTER_PAUSE = 0.2  # seconds between two series of attempts to write a pointer
_POINTER = re.compile(r"[0-9]{10,18}")  # what `_pointer` writes
ID_BLOCK = 16  # ids reserved at a time, with one small write


class WrongJob(MinflinkError):
    """The directory holds the checkpoints of another job."""

    code = "checkpoint-wrong-job"


@dataclass(frozen=True)
class SetAside:
    """Metadata that cannot be read. It stays where it is, and so does everything that it may refer to."""

    checkpoint_id: int
    path: str
    reason: str

    def record(self) -> DamageRecord:
        damaged = (Damage(layout.metadata_file(self.checkpoint_id), self.reason),)
        return DamageRecord(checkpoint_id=self.checkpoint_id, damage=damaged)


@dataclass(frozen=True)
class Recovered:
    """What a coordinator begins with. `completed` is in the order of ids."""

    completed: tuple[CompletedCheckpoint, ...] = ()
    set_aside: tuple[SetAside, ...] = ()
    last_id: int = 0  # the highest id ever allocated, as far as the storage shows
    sizes: Mapping[str, int] = field(default_factory=dict)  # bytes of the physical files that exist
    damaged: Mapping[int, DamageRecord] = field(default_factory=dict)  # the job went on from earlier ones than these


class CheckpointStorageUnfit(MinflinkError):
    """The storage is unfit for checkpoints. A recovery might miss the latest one and take its files for orphans."""

    code = "checkpoint-storage-unfit"
    consequence = Consequence.REFUSED


def require_fit(root: Location) -> None:
    """Raises CheckpointStorageUnfit. Recovery finds checkpoints by listing (A11)."""
    if not root.storage.capabilities.consistent_list:
        raise CheckpointStorageUnfit(
            f"the storage of {root.uri} may list new objects late (it has no consistent-list)",
            hint="set execution.checkpointing.dir to another storage; `minflinkd plugins` shows what each can do",
        )


class CheckpointStore:
    """The checkpoint directory of one job, as the coordinator of one leader uses it.

    `turn`: shared with the coordinators before and after it. `leads`: whether it is certain that no other daemon leads
    now; another leader may need files that nothing here refers to. `pointers`: their directory, if there may be other
    daemons. `submitted_ms`: when the job was submitted; an earlier checkpoint belongs to an earlier job with its id.
    """

    def __init__(
        self,
        location: Location,
        *,
        job_id: JobId,
        epoch: int,
        turn: StorageTurn | None = None,
        leads: Callable[[], bool] = lambda: True,
        pointers: Location | None = None,
        submitted_ms: int = 0,
    ) -> None:
        self._pointers = pointers
        self._submitted_ms = submitted_ms
        self._recorded = RecordedStorage(location.storage)
        self.location = replace(location, storage=self._recorded)
        self.job_id = job_id
        self.leads = leads
        self._epoch = epoch
        self._turn = turn or StorageTurn(f"job {job_id}")
        self._next_id = 1
        self._reserved = 1  # ids below this one are ours
        self._blocks: list[str] = []  # of ids, as far as known; the last one is in use
        self._allocating = asyncio.Lock()
        self._damaged: dict[int, DamageRecord] = {}  # those with a record

    def requests(self) -> StorageStatistics:
        """Return the requests that this coordinator has made to the storage, by kind (F10)."""
        return self._recorded.statistics()

    def path_of(self, checkpoint_id: int) -> str:
        """URI of the checkpoint's metadata. Any job can be started from it."""
        return self.location.child(layout.metadata_file(checkpoint_id)).uri

    async def recover(self) -> Recovered:
        """Read the store, once the work of earlier coordinators has ended.

        Unreadable metadata is reported and set aside. Metadata that will never get a pointer is deleted: a reader that
        does not know the pointers must not take it for a checkpoint.

        Raises StorageError if the storage does not answer, MetadataTooNew, WrongJob. Then it is not known which
        checkpoint is the latest, and continuing from an older one would lose data.
        """
        await self._turn.wait()
        completed: list[CompletedCheckpoint] = []
        set_aside: list[SetAside] = []
        unpointed: list[int] = []
        sizes: dict[str, int] = {}
        seen = 0
        pointed = None if self._pointers is None else await pointed_ids(self._pointers)
        async for entry in self.location.list():
            name = self.location.relative(entry.path)
            seen = max(seen, _highest_id(name))
            if layout.parse_id_block(name) is not None:
                self._blocks.append(name)
            if layout.is_physical_file(name):
                sizes[name] = entry.size
            if (skipped := layout.parse_damage_record(name)) is not None:
                self._damaged[skipped] = await self._damage_record(skipped)
            if (checkpoint_id := layout.parse_metadata_file(name)) is None:
                continue
            if pointed is not None and checkpoint_id not in pointed:
                unpointed.append(checkpoint_id)
                continue
            try:
                completed.append(await self._read_twice(checkpoint_id))
            except ObjectNotFound:
                continue  # deleted since it was listed
            except CorruptMetadata as error:
                log.error("checkpoint metadata set aside", path=self.path_of(checkpoint_id), reason=str(error))
                set_aside.append(SetAside(checkpoint_id, self.path_of(checkpoint_id), str(error)))
        known = {checkpoint.checkpoint_id for checkpoint in completed} | {one.checkpoint_id for one in set_aside}
        for missing in sorted((pointed or set()) - known):
            log.error("the metadata of a completed checkpoint is missing", path=self.path_of(missing))
            set_aside.append(SetAside(missing, self.path_of(missing), "it does not exist"))
        await self._delete_left(unpointed)
        self._next_id = self._reserved = seen + 1
        completed.sort(key=lambda checkpoint: checkpoint.checkpoint_id)
        return Recovered(tuple(completed), tuple(set_aside), seen, sizes, dict(self._damaged))

    async def allocate_id(self) -> int:
        """Return an id that no coordinator of this job has had or will have. Call it after `recover`.

        Raises StorageError.
        """
        async with self._allocating:
            if self._next_id >= self._reserved:
                await self._reserve()
            self._next_id += 1
            return self._next_id - 1

    def outdated_blocks(self) -> tuple[str, ...]:
        """Return the id blocks that nobody needs any more, each one once. The caller deletes them like metadata."""
        *outdated, latest = self._blocks
        self._blocks = [latest]
        return tuple(outdated)

    async def write(self, checkpoint: CompletedCheckpoint) -> None:
        """Add the checkpoint to the store, atomically. After an error the outcome is unknown: `discard` it."""
        file = self.location.child(layout.metadata_file(checkpoint.checkpoint_id))

        async def write() -> None:
            await file.write_bytes(encode(checkpoint))
            if self._pointers is not None:
                await self._point(self._pointers.child(_pointer(checkpoint.checkpoint_id)))

        await self._turn.take(write)

    async def mark_damaged(self, record: DamageRecord) -> None:
        """Record that the job goes on from an earlier checkpoint than this one. From then on nobody may restore it."""
        file = self.location.child(layout.damage_record(record.checkpoint_id))

        async def write() -> None:
            await file.write_bytes(damage.encode(record))

        await self._turn.take(write)
        self._damaged[record.checkpoint_id] = record

    async def discard(self, checkpoint_id: int) -> None:
        """Remove the checkpoint from the store. Its physical files stay. Idempotent."""
        await self.delete_metadata([layout.metadata_file(checkpoint_id)])

    async def delete_metadata(self, names: Sequence[str]) -> None:
        """Delete metadata files and id blocks by name. It does not wait for writes: no write touches these objects."""
        ids = [checkpoint_id for name in names if (checkpoint_id := layout.parse_metadata_file(name)) is not None]

        async def delete() -> None:
            if self._pointers is not None:
                await self._pointers.delete_children(map(_pointer, ids))
            await self.location.delete_children(names)
            if records := [layout.damage_record(number) for number in ids if number in self._damaged]:
                await self.location.delete_children(records)  # last: metadata without its record might be restored

        await self._turn.beside(delete)

    async def delete_files(self, names: Iterable[str]) -> None:
        """Delete physical files. Idempotent. Raises InvalidPhysicalFile before any is deleted."""
        checked = sorted(names)
        for name in checked:
            layout.parse_physical_file(name)
        if checked:
            await self._turn.beside(partial(self.location.delete_children, checked))

    async def physical_files(self) -> dict[str, tuple[int, int]]:
        """Return the epoch and checkpoint of each physical file that exists, by name. Raises StorageError."""
        return {file.name: layout.parse_physical_file(file.name) for file in await self.listed_files()}

    async def listed_files(self) -> list[OrphanFile]:
        """Return the physical files that exist, needed or not. Raises StorageError."""
        entries = [(self.location.relative(entry.path), entry) async for entry in self.location.list()]
        return [
            OrphanFile(name, entry.size, entry.modified_ms)
            for name, entry in entries
            if layout.is_physical_file(name)  # not metadata, reserved ids, or not ours
        ]

    async def orphans(self, recovered: Recovered) -> tuple[str, ...]:
        """Return the orphans of earlier leaders. Raises StorageError.

        Only files with our names, of epochs that have ended (A11). Returns nothing while any metadata is unreadable,
        because it may refer to any file.
        """
        if recovered.set_aside:
            log.warning("no sweep while checkpoint metadata is unreadable", directory=self.location.uri)
            return ()
        kept = frozenset[str]().union(*(checkpoint.physical_files() for checkpoint in recovered.completed))
        found = await self.physical_files()
        return tuple(name for name, (epoch, _) in found.items() if epoch < self._epoch and name not in kept)

    async def _point(self, pointer: Location) -> None:
        """Write a pointer, and retry as long as this daemon leads.

        A short outage of the coordination service must not fail checkpoints. After a few failures in a row the job
        would restart, under a leader that is about to end.
        """
        while True:
            try:
                with contextlib.suppress(ObjectExists):  # an earlier attempt wrote it, but its answer was lost
                    await pointer.create_exclusive(b"")
                return
            except StorageUnavailable:
                if not self.leads():
                    raise
            await asyncio.sleep(POINTER_PAUSE)

    async def _delete_left(self, ids: Iterable[int]) -> None:
        """Delete the metadata of earlier leaders of this job that has no pointer and will not get one."""
        for checkpoint_id in ids:
            left = await self._left(checkpoint_id) and self.leads()
            log.info("metadata that is no checkpoint", path=self.path_of(checkpoint_id), deleted=left)
            if left:
                await self.discard(checkpoint_id)

    async def _left(self, checkpoint_id: int) -> bool:
        """Whether an earlier leader of this job wrote the metadata. Then the fence keeps it from writing the pointer.

        Return False for a checkpoint from before the submission, of another job, or that cannot be read: somebody may
        need it.
        """
        try:
            checkpoint = await self._read(checkpoint_id)
        except (ObjectNotFound, CorruptMetadata, MetadataTooNew, WrongJob):
            return False
        return checkpoint.epoch < self._epoch and checkpoint.triggered_ms >= self._submitted_ms

    async def damage_of_metadata(self, checkpoint_id: int) -> Damage | None:
        """Read a checkpoint's metadata, and return what is wrong with it. Raises StorageError."""
        name = layout.metadata_file(checkpoint_id)
        try:
            await self._read_twice(checkpoint_id)
        except CorruptMetadata as error:
            return Damage(name, error.message)
        except ObjectNotFound:
            await require_directory(self.location)
            return Damage(name, "it is missing")
        return None

    async def _read_twice(self, checkpoint_id: int) -> CompletedCheckpoint:
        """Read metadata, and read it again if it is damaged: once may be an error of memory or of the network."""
        try:
            return await self._read(checkpoint_id)
        except CorruptMetadata:
            return await self._read(checkpoint_id)

    async def _damage_record(self, checkpoint_id: int) -> DamageRecord:
        try:
            data = await self.location.child(layout.damage_record(checkpoint_id)).read_bytes()
        except ObjectNotFound:
            data = b""
        return damage.decode(data, checkpoint_id)

    async def _read(self, checkpoint_id: int) -> CompletedCheckpoint:
        checkpoint = await read_checkpoint(self.location.child(layout.metadata_file(checkpoint_id)))
        if checkpoint.job_id != self.job_id:
            raise WrongJob(
                f"{self.path_of(checkpoint_id)} is a checkpoint of job {checkpoint.job_id}, not of {self.job_id}"
            )
        if checkpoint.checkpoint_id != checkpoint_id:
            raise CorruptMetadata(f"it says that it is checkpoint {checkpoint.checkpoint_id}")
        return checkpoint

    async def _reserve(self) -> None:
        """Reserve the next block of ids. If another coordinator has it, try the one after."""
        first = self._next_id
        mine = secrets.token_bytes(16)  # if the storage's answer is lost, this tells us whether the block is ours
        while True:
            try:
                await self.location.child(layout.id_block(first)).create_exclusive(mine)
                break
            except ObjectExists:
                self._blocks.append(layout.id_block(first))
                first += ID_BLOCK
        self._next_id, self._reserved = first, first + ID_BLOCK
        self._blocks.append(layout.id_block(first))


async def latest_stored(directory: Location, pointers: Location | None) -> int:
    """Return the id of a job's latest complete checkpoint, by the name of its metadata; 0 if there is none.

    `pointers`: the directory of the job's pointers. None: checkpoints need no pointer.
    """
    pointed = None if pointers is None else await pointed_ids(pointers)
    numbers = [layout.parse_metadata_file(directory.relative(entry.path)) async for entry in directory.list()]
    counts = (number for number in numbers if number is not None and (pointed is None or number in pointed))
    return max(counts, default=0)


async def read_checkpoint(metadata: Location) -> CompletedCheckpoint:
    """Read any job's checkpoint from its metadata file.

    Raises ObjectNotFound, CorruptMetadata, MetadataTooNew, StorageError.
    """
    try:
        return decode(await metadata.read_bytes())
    except ObjectTooLarge as error:
        raise CorruptMetadata(str(error)) from error


async def pointed_ids(pointers: Location) -> set[int]:
    """Return the ids of the checkpoints that have a pointer."""
    found = set()
    async for entry in pointers.list():
        if _POINTER.fullmatch(name := pointers.relative(entry.path)):
            found.add(int(name))
        else:  # not ours; the job can use its checkpoints all the same (A12)
            log.error("a record among a job's pointers that names no checkpoint is ignored", path=entry.path)
    return found


def _pointer(checkpoint_id: int) -> str:
    return f"{checkpoint_id:010d}"


def _highest_id(name: str) -> int:
    """The highest checkpoint id that the object's `name` shows to be taken."""
    if (checkpoint_id := layout.parse_metadata_file(name)) is not None:
        return checkpoint_id
    if (first := layout.parse_id_block(name)) is not None:
        return first + ID_BLOCK - 1
    try:
        return layout.parse_physical_file(name)[1]
    except layout.InvalidPhysicalFile:
        return 0
