"""Which files of a running query's checkpoint directory make a snapshot at a committed micro-batch (C11).

First the directory is listed. Then a pure function computes the closure from the listing and verifies it. Only then
are the files linked, or copied if they cannot be linked (`placing`). A file never changes once it has its name, so the
query keeps running meanwhile. Layout (Spark 4.3, state format v2):

    metadata                                     the query's id
    offsets/<batch>  commits/<batch>             one entry each per micro-batch
    sources/<log>/<entry>[.compact]              a file source's own log, numbered by its `logOffset`
    state/<operator>/_metadata/...               describes the operator; some records name files, see `schema_paths`
    state/<operator>/<partition>/[<store>/]      <version>_<id>.changelog, <version>_<id>.zip; SSTs/; _metadata/
"""

from __future__ import annotations

import json
import os
import re
import shutil
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec

from minflinkd.taskmanager.child.protocol import SnapshotFailed, SnapshotFile
from minflinkd.taskmanager.placing import link_or_copy
from minflinkd.taskmanager.session.state import schema_paths

_VERSION = re.compile(r"(\d+)_([0-9a-f-]{36})\.(changelog|zip)")
_NUMBER = re.compile(r"(\d+)(?:[._].*)?")
_COMPACT = ".compact"
_DESCRIBING = frozenset({"_metadata", "_stateSchema"})
_ATTEMPTS = 5  # maintenance may remove a file between listing and linking


class OffsetEntry(msgspec.Struct, frozen=True):
    """One entry of the offset log: the metadata line, then one offset as JSON per line (None: nothing read yet)."""

    metadata: dict[str, Any]
    offsets: tuple[str | None, ...]


NO_OFFSETS = OffsetEntry({}, ())


class CommitEntry(msgspec.Struct, frozen=True):
    """One entry of the commit log."""

    watermark_ms: int
    stores: dict[str, list[list[str]]]  # operator -> partition -> unique id of each store's version


def parse_offsets(text: str) -> OffsetEntry:
    """Parse an entry of the offset log. Raises SnapshotFailed for an unknown format."""
    version, _, body = text.partition("\n")
    if version != "v1":
        raise SnapshotFailed(f"the offset log has the unknown version {version!r}")
    lines = body.split("\n")
    return OffsetEntry(json.loads(lines[0]), tuple(None if line == "-" else line for line in lines[1:] if line))


def read_offsets(checkpoint: Path, batch: int) -> OffsetEntry:
    """Read an entry of the offset log. Raises SnapshotFailed, FileNotFoundError."""
    return parse_offsets((checkpoint / "offsets" / str(batch)).read_text("utf-8"))


def parse_commit(text: str) -> CommitEntry:
    """Parse an entry of the commit log. Raises SnapshotFailed for an unknown format."""
    version, _, body = text.partition("\n")
    if version not in ("v1", "v2"):
        raise SnapshotFailed(f"the commit log has the unknown version {version!r}")
    values = json.loads(body)
    return CommitEntry(int(values.get("nextBatchWatermarkMs", 0)), values.get("stateUniqueIds") or {})


class Boundary(msgspec.Struct, frozen=True):
    """The last micro-batches of a query: `started` has an offset entry, `committed` a commit entry. -1: none."""

    started: int
    committed: int


def boundary(offsets: Iterable[str], commits: Iterable[str]) -> Boundary:
    """Return the boundary that the file names in `offsets` and `commits` show."""
    return Boundary(_latest(offsets), _latest(commits))


def _latest(names: Iterable[str]) -> int:
    return max((int(name) for name in names if name.isdigit()), default=-1)


def read_boundary(checkpoint: Path) -> Boundary:
    """Read the boundary from a checkpoint directory.

    Lists the commit log first. A micro-batch that is committed meanwhile then looks as if it were in progress; in the
    other order, one could look committed that was never started.
    """
    commits = _names(checkpoint / "commits")
    return boundary(_names(checkpoint / "offsets"), commits)


def _names(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)
    except FileNotFoundError:
        return []


def listing(checkpoint: Path) -> set[str]:
    """Return the relative paths of all files except hidden ones (temporary files, Hadoop's checksums)."""
    return set(_walk(str(checkpoint), ""))


def _walk(root: str, below: str) -> Iterator[str]:
    try:
        entries = list(os.scandir(os.path.join(root, below)))
    except FileNotFoundError:
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        path = f"{below}/{entry.name}" if below else entry.name
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(root, path)
        else:
            yield path


def closure(
    files: set[str],
    batch: int,
    offsets: OffsetEntry,
    commit: CommitEntry,
    sst_files: Callable[[str], Iterable[str]],
    logs: Mapping[int, int] | None = None,
) -> set[str]:
    """Return exactly the files that Spark needs to start at `batch + 1`.

    Pure except for `sst_files`, which reads the list of SST files in a zip. `logs` maps a line of the offset log to the
    directory below `sources`. A line that is not in it belongs to a source without a log of its own. None: each line
    has the directory of the same number.

    Raises SnapshotFailed, which names what is missing.
    """
    wanted = {"metadata", f"offsets/{batch}", f"commits/{batch}"}
    if batch > 0:
        wanted |= {f"offsets/{batch - 1}", f"commits/{batch - 1}"}  # Spark reads the entry before the last as well
    directories = _by_directory(files)
    for log, offset in _logged(offsets, logs):
        wanted |= _source_log(directories.get(f"sources/{log}", []), log, offset)
    wanted |= _descriptions(directories, batch)
    stores = _stores(directories)
    for operator, partitions in commit.stores.items():
        for partition, ids in enumerate(partitions):
            place = f"state/{operator}/{partition}"
            wanted |= _partition(files, place, stores.get(place, {}), batch + 1, ids, sst_files)
    if missing := sorted(wanted - files):
        raise SnapshotFailed(f"batch {batch}: {', '.join(missing[:5])} missing from the checkpoint directory")
    return wanted


def _by_directory(files: set[str]) -> dict[str, list[str]]:
    """Group the file names by directory: a scan of all files for each of hundreds of partitions would be too slow."""
    found: dict[str, list[str]] = {}
    for path in files:
        directory, _, name = path.rpartition("/")
        found.setdefault(directory, []).append(name)
    return found


def _logged(offsets: OffsetEntry, logs: Mapping[int, int] | None) -> Iterator[tuple[int, str | None]]:
    """Yield the directory below `sources` and the offset for each source. A source that is read twice comes twice."""
    for line, offset in enumerate(offsets.offsets):
        if logs is None or line in logs:
            yield line if logs is None else logs[line], offset


def _source_log(names: list[str], log: int, offset: str | None) -> set[str]:
    prefix = f"sources/{log}/"
    position = _log_offset(offset)
    if position is None:  # not a file source: its directory holds an initial offset or start time, small, written once
        return {prefix + name for name in names}
    # Every so often Spark writes a compact entry that repeats all entries before it. So the last one up to the position
    # is enough, with the plain entries that follow it.
    compacted = [number for name in names if name.endswith(_COMPACT) and (number := _number(name)) <= position]
    if compacted:
        first, wanted = max(compacted), {f"{prefix}{max(compacted)}{_COMPACT}"}
    else:
        first, wanted = -1, set()
    return wanted | {f"{prefix}{number}" for number in range(first + 1, position + 1)}


def _log_offset(offset: str | None) -> int | None:
    value = json.loads(offset) if offset else None
    return int(value["logOffset"]) if isinstance(value, dict) and "logOffset" in value else None


def _descriptions(directories: Mapping[str, list[str]], batch: int) -> set[str]:
    """Return operator metadata and state schemas. Of those numbered by micro-batch, only those up to this one."""
    return {
        f"{directory}/{name}"
        for directory, names in directories.items()
        if directory.startswith("state/") and not _DESCRIBING.isdisjoint(directory.split("/"))
        for name in names
        if _number(name) <= batch  # -1: without a number
    }


def _number(name: str) -> int:
    match = _NUMBER.fullmatch(name)
    return int(match[1]) if match else -1


class _Version(msgspec.Struct, frozen=True):
    number: int
    id: str
    is_base: bool  # True: a RocksDB snapshot; False: a changelog
    path: str


def _stores(directories: Mapping[str, list[str]]) -> dict[str, dict[str, list[_Version]]]:
    """Return the versions of each store: partition's directory -> directory of a store in it -> its versions."""
    found: dict[str, dict[str, list[_Version]]] = {}
    for directory, names in directories.items():
        if not directory.startswith("state/"):
            continue
        versions = [
            _Version(int(match[1]), match[2], match[3] == "zip", f"{directory}/{name}")
            for name in names
            if (match := _VERSION.fullmatch(name))
        ]
        if versions:
            found.setdefault("/".join(directory.split("/")[:3]), {})[directory] = versions
    return found


def _partition(
    files: set[str],
    place: str,
    stores: Mapping[str, list[_Version]],
    version: int,
    ids: list[str],
    sst_files: Callable[[str], Iterable[str]],
) -> set[str]:
    """Return the latest base snapshot of each store of a partition, the SST files it names, and every later changelog.

    Raises SnapshotFailed if no store has one of the committed ids.
    """
    wanted: set[str] = set()
    heads = set(ids)
    for home, versions in stores.items():
        chain = _store(files, home, [each for each in versions if each.number <= version], version, sst_files)
        heads -= {each.id for each in versions if each.path in chain}
        wanted |= chain
    if heads:
        raise SnapshotFailed(f"{place} has no version {version} with the committed id {', '.join(sorted(heads))}")
    return wanted


def _store(
    files: set[str],
    home: str,
    versions: Iterable[_Version],
    version: int,
    sst_files: Callable[[str], Iterable[str]],
) -> set[str]:
    changelogs: dict[int, set[str]] = {}
    zips: dict[int, set[str]] = {}
    for each in versions:
        (zips if each.is_base else changelogs).setdefault(each.number, set()).add(each.path)
    base, chain = 0, set[str]()
    # Skip a base snapshot if not all of its SST files are there: an older one with more changelogs is the same state.
    for candidate in sorted(zips, reverse=True):
        named = {f"{home}/SSTs/{name}" for path in zips[candidate] for name in sst_files(path)}
        if named <= files:
            base, chain = candidate, zips[candidate] | named
            break
    for number in range(base, version + 1):
        chain |= changelogs.get(number, set())
        if number > base and number not in changelogs:
            raise SnapshotFailed(f"{home} has no changelog of version {number}, and no snapshot after it")
    return chain


@lru_cache(maxsize=4096)  # a path is never reused for another file (C10a), and every checkpoint asks for each
def sst_files(zip_file: Path) -> tuple[str, ...]:
    """Return the SST files that a RocksDB snapshot names. Raises SnapshotFailed, FileNotFoundError."""
    try:
        with zipfile.ZipFile(zip_file) as archive, archive.open("metadata") as text:
            text.readline()  # the version of the format
            values = json.loads(text.readline())
    except (zipfile.BadZipFile, KeyError, json.JSONDecodeError) as error:
        raise SnapshotFailed(f"{zip_file.name} is not a RocksDB snapshot: {error}") from error
    return tuple(str(entry["dfsSstFileName"]) for entry in values.get("sstFiles", ()))


def link(
    checkpoint: Path, batch: int, target: Path, logs: Mapping[int, int] | None = None
) -> tuple[list[SnapshotFile], OffsetEntry]:
    """Link, or otherwise copy, the closure at `batch` into the new directory `target`. `logs`: as in `closure`.

    Raises SnapshotFailed, and OSError for disk errors; nothing is left in `target` then.
    """
    for attempt in range(_ATTEMPTS):
        try:
            offsets = read_offsets(checkpoint, batch)
            commit = parse_commit((checkpoint / "commits" / str(batch)).read_text("utf-8"))
            files = listing(checkpoint)
            wanted = closure(files, batch, offsets, commit, lambda path: sst_files(checkpoint / path), logs)
            return _link(checkpoint, sorted(wanted), target), offsets
        except (FileNotFoundError, SnapshotFailed) as error:
            remove(target)
            if attempt == _ATTEMPTS - 1:
                raise SnapshotFailed(f"no consistent snapshot of batch {batch}: {error}") from error
        except BaseException:
            remove(target)
            raise
    raise AssertionError("unreachable")


def _link(checkpoint: Path, paths: list[str], target: Path) -> list[SnapshotFile]:
    made: set[str] = set()
    files = []
    for path in paths:
        place = os.path.join(target, path)
        if (directory := os.path.dirname(place)) not in made:
            os.makedirs(directory, exist_ok=True)
            made.add(directory)
        source = os.path.join(checkpoint, path)
        size = _relocatable(Path(source), Path(place)) if schema_paths.is_record(path) else link_or_copy(source, place)
        files.append(SnapshotFile(path, size))
    return files


def _relocatable(source: Path, target: Path) -> int:
    """Copy a record with its absolute paths made relative. Returns the size of the copy in bytes."""
    try:
        data = schema_paths.relative(source.read_text("utf-8")).encode()
    except ValueError as error:
        raise SnapshotFailed(f"Spark's record {source} cannot be read: {error}") from error
    target.write_bytes(data)
    return len(data)


def remove(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)


def cut_off(checkpoint: Path, batch: int, logs: Mapping[int, int] | None = None) -> None:
    """Remove what a query has planned after micro-batch `batch` but not processed. `logs`: as in `closure`."""
    for entry in (checkpoint / "offsets").iterdir():
        if entry.name.isdigit() and int(entry.name) > batch:
            entry.unlink()
    for log, offset in _logged(read_offsets(checkpoint, batch), logs):
        if (position := _log_offset(offset)) is not None:
            for entry in (checkpoint / "sources" / str(log)).iterdir():
                if _number(entry.name) > position:
                    entry.unlink()


def renew_query_id(checkpoint: Path) -> None:
    """Give the query a new id: with the old one, Spark would take the restored query for the running original."""
    # Write a new file instead of changing the old one, which may be a hard link into a snapshot.
    place, new = checkpoint / "metadata", checkpoint / ".metadata.new"
    new.write_text(json.dumps({"id": str(uuid4())}), "utf-8")
    new.replace(place)


def plan_empty_batch(checkpoint: Path, batch: int) -> None:
    """Make Spark begin with one empty micro-batch after `batch`, as if it had planned that before a crash.

    Otherwise a restored query without new data runs no micro-batch, and nothing fires its open windows (J8a).
    """
    entry = read_offsets(checkpoint, batch)
    commit = parse_commit((checkpoint / "commits" / str(batch)).read_text("utf-8"))
    metadata = entry.metadata | {
        "batchWatermarkMs": max(int(entry.metadata.get("batchWatermarkMs", 0)), commit.watermark_ms)
    }
    lines = ["v1", json.dumps(metadata), *("-" if offset is None else offset for offset in entry.offsets)]
    (checkpoint / "offsets" / str(batch + 1)).write_text("\n".join(lines), "utf-8")


def named_offsets(entry: OffsetEntry, names: Mapping[int, str]) -> dict[str, str]:
    """Return Spark's offset as JSON by source name (C26)."""
    return {
        names.get(ordinal, f"source-{ordinal}"): offset
        for ordinal, offset in enumerate(entry.offsets)
        if offset is not None
    }
