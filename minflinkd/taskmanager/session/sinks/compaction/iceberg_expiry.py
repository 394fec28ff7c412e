"""Drops old snapshots of an Iceberg table, and deletes the files that only they have. The library leaves these files.

A file that no snapshot ever had is left alone: rows that wait for their checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from minflinkd.jobgraph.model import Compaction
from minflinkd.taskmanager.session.plan.sink_checks import UnfitSink
from minflinkd.taskmanager.session.sinks.tables.failures import TableFailed, failing
from minflinkd.taskmanager.session.sinks.tables.iceberg import IcebergTarget

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

_GC: Final = "gc.enabled"  # false: the files belong to somebody else


def expire(target: IcebergTarget, wanted: Compaction) -> int:
    """Drop what was replaced long ago, and return how many files were deleted. Raises TableFailed, UnfitSink.

    Snapshots that a branch or a tag names are kept. If another commit comes first, it is left for the next time.
    """
    if wanted.expire is None or (table := target.open()) is None:
        return 0
    if table.properties.get(_GC, "true").lower() == "false":
        raise UnfitSink(f"{target.name} has {_GC}=false, so its files may be needed by others", hint="leave expire out")
    with failing(target.name, "did not drop old snapshots"):
        old = replaced_before(table, (time.time() - wanted.expire) * 1000)
        if not old:
            return 0
        dropped = {snapshot.snapshot_id for snapshot in old}
        candidates = _only_in(table, old, [s for s in table.snapshots() if s.snapshot_id not in dropped])
        if not _dropped(table, dropped):
            return 0
        left = target.open()
        known = {snapshot.snapshot_id for snapshot in table.snapshots()}
        new = [s for s in left.snapshots() if s.snapshot_id not in known] if left is not None else []
        gone = candidates - _files(table, new)
    return _deleted(target, table, gone)


def replaced_before(table: Table, moment: float) -> list[Snapshot]:
    """Return the snapshots of the main branch that another one has replaced before `moment`, in ms since 1970.

    A query that has begun on one of them is older than that. The rest of a branch is its owner's.
    """
    log = sorted(table.history(), key=lambda entry: entry.timestamp_ms)
    replaced = {before.snapshot_id: after.timestamp_ms for before, after in pairwise(log)}
    named = {reference.snapshot_id for reference in table.metadata.refs.values()}
    return [s for s in table.snapshots() if replaced.get(s.snapshot_id, moment) < moment and s.snapshot_id not in named]


def _dropped(table: Table, snapshots: Iterable[int]) -> bool:
    """Drop snapshots; not if a branch or a tag has moved meanwhile, as it may name one of them now."""
    from pyiceberg.exceptions import CommitFailedException
    from pyiceberg.table.update import AssertRefSnapshotId
    from pyiceberg.table.update.snapshot import ExpireSnapshots

    still = tuple(
        AssertRefSnapshotId.model_validate(
            {"type": "assert-ref-snapshot-id", "ref": name, "snapshot-id": ref.snapshot_id}
        )
        for name, ref in table.metadata.refs.items()
    )
    try:
        with table.transaction() as transaction:
            transaction._stage((), still)
            ExpireSnapshots(transaction).by_ids(list(snapshots)).commit()
    except CommitFailedException:
        return False
    return True


def _only_in(table: Table, old: Iterable[Snapshot], kept: Iterable[Snapshot]) -> set[str]:
    """Return the files that only old snapshots need: of data, and of the metadata that lists them."""
    kept = list(kept)
    ours, others = _manifests(table, old), _manifests(table, kept)
    gone = {path: manifest for path, manifest in ours.items() if path not in others}
    found = set(gone) | {snapshot.manifest_list for snapshot in old}
    if gone:
        found |= _data_files(table, gone.values()) - _data_files(table, others.values())
    return found


def _files(table: Table, snapshots: Iterable[Snapshot]) -> set[str]:
    """Return all files that these snapshots need."""
    snapshots = list(snapshots)
    manifests = _manifests(table, snapshots)
    lists = {snapshot.manifest_list for snapshot in snapshots}
    return lists | set(manifests) | _data_files(table, manifests.values())


def _manifests(table: Table, snapshots: Iterable[Snapshot]) -> dict[str, Any]:
    return {found.manifest_path: found for snapshot in snapshots for found in snapshot.manifests(table.io)}


def _data_files(table: Table, manifests: Iterable[Any]) -> set[str]:
    return {
        entry.data_file.file_path
        for manifest in manifests
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
    }


def _deleted(target: IcebergTarget, table: Table, paths: Iterable[str]) -> int:
    """Delete files, and return how many. One that cannot be deleted does not keep the others. Raises TableFailed."""
    deleted, failure = 0, None
    for path in sorted(paths):
        try:
            with failing(target.name, "did not delete a file"):
                table.io.delete(path)
            deleted += 1
        except TableFailed as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                failure = error
    if failure is not None:
        raise failure
    return deleted
