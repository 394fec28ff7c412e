"""Two-phase publication of a files sink (J12): staged under names that readers skip, then published by a checkpoint.

Layout below the sink's directory `root`:

    _minflinkd/<job>/<sink>/staged/<attempt>/<epoch>/...   what micro-batches wrote, not yet visible
    _minflinkd/<job>/<sink>/publishing/<checkpoint>.json   what checkpoint n is about to publish; all files were found
    _minflinkd/<job>/<sink>/manifests/<checkpoint>.json    what checkpoint n published; its presence is the commit
    part-<writer>-<epoch>-....parquet                      published, each file whole, each row once

A file's final name is chosen when it is staged and never changes, so publishing twice has the same effect as once: each
file is renamed, in any order, and then the manifest is written. A published file belongs to its readers. If a record
(either of the two) names a file that is gone, a reader took it away, and it is not missed. Everything here is
idempotent and runs wherever the storage can be reached.

If a storage cannot rename, the file is copied and then the staged one is deleted. A publisher that dies in between
leaves both, and the next one copies again. So a reader that takes files away must wait for the manifest that names
them: once it exists, no staged file is left that could be copied.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable
from contextlib import suppress

import msgspec

from minflinkd.runtime.crash_points import CrashPoint, reach
from minflinkd.runtime.errors import Consequence
from minflinkd.storage.interface import ObjectNotFound, StorageCorrupt, StorageError
from minflinkd.storage.location import Location
from minflinkd.storage.parallel import for_each
from minflinkd.storage.registry import Storages

SERVICE_DIRECTORY = "_minflinkd"
MANIFESTS = "manifests"
PUBLISHING = "publishing"
_PARALLEL = 16  # renames at a time


class StagedFile(msgspec.Struct, frozen=True):
    """`staged` and `final` are relative to the sink's root."""

    staged: str
    final: str
    size: int = 0


class StagedToken(msgspec.Struct, frozen=True):
    """Lets a sink that commits by itself (jdbc, kafka, python) find what one micro-batch staged.

    `files` are in the snapshot that covers the token, if the sink has no other place for its rows.
    """

    attempt: str
    epoch: int
    token: str  # JSON
    files: tuple[str, ...] = ()


class SinkTransaction(msgspec.Struct, frozen=True, kw_only=True):
    """What one sink of one task publishes when a checkpoint completes.

    Either `files` below `root`, a URI, which any process that reaches the storage can publish; or `tokens`, which the
    sink itself commits where it runs (`root` is then empty).
    """

    job_id: str
    sink: str
    root: str = ""
    checkpoint_id: int
    files: tuple[StagedFile, ...] = ()
    tokens: tuple[StagedToken, ...] = ()


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What one checkpoint published, for readers that want all of it together. Names are relative to the root."""

    version: int = 1
    job_id: str
    sink: str
    checkpoint_id: int
    files: tuple[tuple[str, int], ...]  # (name, bytes)


class SinkNotSupported(StorageError):
    """The storage cannot make a file appear atomically."""

    code = "sink-needs-atomic-rename"
    consequence = Consequence.REFUSED


def staged_directory(job_id: str, sink: str, attempt: str, epoch: int) -> str:
    """Return the directory where one micro-batch of one attempt writes, relative to the root."""
    return f"{service_directory(job_id, sink)}/staged/{attempt}/{epoch}"


def final_name(job_id: str, sink: str, attempt: str, epoch: int, name: str) -> str:
    """Return the published name, relative to the root, of a file staged as `name`.

    `name` is relative to the staged directory; a partitioned sink's `column=value/` is kept. No other file of any job
    or attempt gets the same name.
    """
    directory, _, file = name.rpartition("/")
    writer = hashlib.sha256(f"{job_id}/{sink}/{attempt}".encode()).hexdigest()[:12]
    file = f"part-{writer}-{epoch:09d}-{file.removeprefix('part-')}"
    return f"{directory}/{file}" if directory else file


async def make_durable(storages: Storages, transaction: SinkTransaction) -> None:
    """Flush what Spark staged to disk, if the storage has one, before its checkpoint is acknowledged.

    A file may be published meanwhile, as part of an earlier checkpoint; it is then durable under its final name.
    Raises SinkNotSupported, and ObjectNotFound naming a file that is neither staged nor published.
    """
    if not transaction.files:
        return
    place = _publishing(storages.at(transaction.root))
    records = _Records(place.child(service_directory(transaction.job_id, transaction.sink)))

    async def flush(file: StagedFile) -> None:
        try:
            await place.storage.sync([place.child(file.staged).path])
        except ObjectNotFound as missing:
            try:
                await place.storage.sync([place.child(file.final).path])
            except ObjectNotFound:
                if not await records.name(file.final):
                    raise missing from None

    await for_each(transaction.files, flush, limit=_PARALLEL)


async def publish(storages: Storages, transaction: SinkTransaction) -> int:
    """Make a completed checkpoint's files visible. Returns how many this call moved (0: published before).

    Raises StorageCorrupt, naming a file that is neither staged nor published, or a checkpoint that published others.
    """
    if not transaction.files:
        return 0  # no manifest: an idle sink would add a file with every checkpoint
    place = _publishing(storages.at(transaction.root))
    service = place.child(service_directory(transaction.job_id, transaction.sink))
    leftovers = sorted({_epoch_directory(transaction, file) for file in transaction.files})
    record = f"{transaction.checkpoint_id:09d}.json"
    mark, manifest = service.child(PUBLISHING, record), service.child(MANIFESTS, record)
    content, moved = _manifest(transaction), 0
    if not await _says(manifest, content):
        if not await _says(mark, content):
            records = _Records(service)
            await for_each(transaction.files, lambda file: _see(place, records, file), limit=_PARALLEL)
            await mark.write_bytes(content)
        moved = sum(await for_each(transaction.files, lambda file: _publish_file(place, file), limit=_PARALLEL))
        reach(CrashPoint.PUBLISH)
        await manifest.write_bytes(content)
    await mark.delete()
    for directory in leftovers:
        await place.child(directory).delete_tree()  # files that Spark left next to the data
    return moved


async def discard_staged(
    storages: Storages, root: str, job_id: str, sink: str, keep: Iterable[str] = frozenset()
) -> int:
    """Delete staged files that no completed checkpoint covers: all but the paths in `keep` (relative to the root).
    Returns how many files it deleted. The JobMaster calls it before it deploys tasks that stage new files."""
    place = storages.at(root)
    staged = place.child(service_directory(job_id, sink), "staged")
    kept, doomed = frozenset(keep), list[str]()
    async for entry in staged.list():
        if place.relative(entry.path) not in kept:
            doomed.append(entry.path)
    await place.storage.delete([*doomed, staged.path], below=staged.path)
    return len(doomed)


async def remove_service_directories(storages: Storages, root: str, job_id: str, *, manifests: bool = False) -> None:
    """At the end of a job, delete what its sinks staged below this root. Manifests stay, unless `manifests`."""
    place = storages.at(root)
    service = place.child(SERVICE_DIRECTORY, job_id)
    doomed = list[str]()
    async for entry in service.list():
        _, _, below_sink = service.relative(entry.path).partition("/")
        if manifests or not below_sink.startswith(f"{MANIFESTS}/"):
            doomed.append(entry.path)
    await place.storage.delete([*doomed, service.path], below=place.path)


def service_directory(job_id: str, sink: str) -> str:
    """Return where a sink keeps what readers skip, relative to its root."""
    return f"{SERVICE_DIRECTORY}/{job_id}/{sink}"


def _epoch_directory(transaction: SinkTransaction, file: StagedFile) -> str:
    """Return the epoch directory of a staged file, which will be deleted. Raises StorageCorrupt if it is in none."""
    prefix = f"{service_directory(transaction.job_id, transaction.sink)}/staged/"
    attempt, _, rest = file.staged.removeprefix(prefix).partition("/")
    epoch, _, name = rest.partition("/")
    if not (file.staged.startswith(prefix) and attempt and epoch and name):
        raise StorageCorrupt(f"{file.staged!r} is no staged file of sink {transaction.sink}")
    return f"{prefix}{attempt}/{epoch}"


def _publishing(place: Location) -> Location:
    can = place.storage.capabilities
    if not (can.atomic_rename or can.server_side_copy):
        raise SinkNotSupported(
            f"{place.uri}: the sink needs atomic rename or copies on the server, and this storage has neither",
            hint="`minflinkd plugins` shows what each storage can do",
        )
    return place


def _manifest(transaction: SinkTransaction) -> bytes:
    files = tuple(sorted((file.final, file.size) for file in transaction.files))
    manifest = Manifest(
        job_id=transaction.job_id,
        sink=transaction.sink,
        checkpoint_id=transaction.checkpoint_id,
        files=files,
    )
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1)


async def _says(record: Location, content: bytes) -> bool:
    """Whether a record exists. Raises StorageCorrupt if it has other content."""
    try:
        before = await record.read_bytes()
    except ObjectNotFound:
        return False
    if before != content:
        raise StorageCorrupt(
            f"{record.uri} says that this checkpoint published other files",
            hint="two runs share one job id and checkpoint number: start the job under a new id",
        )
    return True


async def _see(place: Location, records: _Records, file: StagedFile) -> None:
    """Check a file. Raises StorageCorrupt if it is neither staged nor was ever published."""
    for name in (file.staged, file.final):
        if await place.child(name).exists():
            return
    if not await records.name(file.final):
        raise StorageCorrupt(f"{place.uri}: {file.staged} is neither staged nor published as {file.final}")


class _Records:
    """The records of what checkpoints of a sink have published, or were about to publish. Each is read once.

    The newest are read first, because a file is usually in one of them.
    """

    def __init__(self, service: Location) -> None:
        self._service = service
        self._turn = asyncio.Lock()
        self._known = set[str]()  # paths of records that were listed
        self._unread = list[Location]()  # manifests; the newest last
        self._finals = set[str]()

    async def name(self, final: str) -> bool:
        """Whether a record names the file."""
        async with self._turn:
            if not await self._find(final):
                await self._list()  # list again: the file may just have been published
                await self._find(final)
            return final in self._finals

    async def _find(self, final: str) -> bool:
        while final not in self._finals and self._unread:
            await self._read(self._unread.pop())
        return final in self._finals

    async def _list(self) -> None:
        for mark in await self._new(PUBLISHING):  # before listing the manifests, because a mark becomes one
            await self._read(mark)
        self._unread = await self._new(MANIFESTS)

    async def _new(self, directory: str) -> list[Location]:
        records = self._service.child(directory)
        new = [entry.path async for entry in records.list() if entry.path not in self._known]
        self._known.update(new)
        return [records.child(records.relative(path)) for path in new]

    async def _read(self, record: Location) -> None:
        with suppress(ObjectNotFound, msgspec.DecodeError):  # published meanwhile, or not our file
            manifest = msgspec.json.decode(await record.read_bytes(), type=Manifest)
            self._finals.update(final for final, _ in manifest.files)


async def _publish_file(place: Location, file: StagedFile) -> int:
    """Publish a file. Returns 1 if this call moved it, 0 if an earlier one did; a reader may have taken it since."""
    staged, final = place.child(file.staged), place.child(file.final)
    try:
        if place.storage.capabilities.atomic_rename:
            await staged.rename(final)
        else:
            await place.storage.copy(staged.path, final.path)
            await staged.delete()
        return 1
    except ObjectNotFound:
        pass
    try:
        found = await final.stat()
    except ObjectNotFound:
        return 0
    if file.size and found.size != file.size:
        raise StorageCorrupt(f"{final.uri} has {found.size} bytes, but {file.size} were staged")
    return 0
