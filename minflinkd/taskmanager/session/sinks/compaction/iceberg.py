"""Compacts an Iceberg table. The library `pyiceberg` cannot; it reads, writes and commits the files here.

A compaction changes no row: its snapshot says so (`replace`), so readers of changes skip it. If another commit comes
first, it is based on that one instead, as long as all files that were joined are still there and no row of them has
been deleted. What was written need not be written again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from minflinkd.jobgraph.model import Compaction
from minflinkd.taskmanager.session.plan.sink_checks import UnfitSink
from minflinkd.taskmanager.session.sinks.compaction.choice import SizedFile, groups
from minflinkd.taskmanager.session.sinks.compaction.result import Joined
from minflinkd.taskmanager.session.sinks.tables.failures import Conflict, failing
from minflinkd.taskmanager.session.sinks.tables.iceberg import IcebergTarget
from minflinkd.taskmanager.session.sinks.tables.iceberg_merges import (
    Rewritten,
    check_replaceable,
    discard,
    in_order,
    producer_of,
)

if TYPE_CHECKING:
    from pyiceberg.table import Table

_TRIES: Final = 10  # of a commit, beside those of other writers
_AT_ONCE: Final = 8  # groups in one commit: what a commit that is given up has written in vain
_ANY_SIZE: Final = str(2**62)


def compact(target: IcebergTarget, wanted: Compaction, told: dict[str, str]) -> Joined:
    """Join small files. `told`: what the summary of each snapshot says.

    The rows of one joined file are in memory at a time. Raises TableFailed, UnfitSink.
    """
    joined = Joined()
    if (table := target.open()) is None:
        return joined
    _check(target, table)
    chosen = groups(_files(target, table), wanted.target)
    for first in range(0, len(chosen), _AT_ONCE):
        joined += _joined(target, table, chosen[first : first + _AT_ONCE], told)
    return joined


def _check(target: IcebergTarget, table: Table) -> None:
    target.check_still(table)
    check_replaceable(table, target.name)
    if _has_deletes(table):
        raise UnfitSink(
            f"{target.name} has delete files, and is not compacted: deleted rows might come back",
            hint="leave compaction out, and use Spark's rewrite_data_files",
        )


def _has_deletes(table: Table) -> bool:
    from pyiceberg.manifest import ManifestContent

    snapshot = table.current_snapshot()
    manifests = snapshot.manifests(table.io) if snapshot is not None else []
    return any(
        manifest.content == ManifestContent.DELETES and (manifest.has_added_files() or manifest.has_existing_files())
        for manifest in manifests
    )


def _files(target: IcebergTarget, table: Table) -> list[SizedFile]:
    """Return the files that were written with the partitions that the table has now."""
    with failing(target.name, "did not say which files it has"):
        found = [task for task in table.scan().plan_files() if task.file.spec_id == table.metadata.default_spec_id]
    return [SizedFile(task.file.file_size_in_bytes, str(task.file.partition), task) for task in found]


def _joined(target: IcebergTarget, table: Table, chosen: Sequence[Sequence[SizedFile]], told: dict[str, str]) -> Joined:
    added: list[Any] = []
    try:
        for group in chosen:
            with failing(target.name, "could not be compacted"):
                added += _written(table, [sized.file for sized in group])
    except BaseException:
        with suppress(Exception):
            discard(table, added)
        raise
    changes = Rewritten([sized.file.file for group in chosen for sized in group], added)
    if _committed(target, table, changes, told):  # if it fails, nobody knows whether the table has the files
        return Joined(files=len(changes.removed), into=len(changes.added), commits=1)
    with failing(target.name, "did not delete a file"):
        discard(table, added)
    return Joined(overtaken=1)


def _written(table: Table, tasks: Sequence[Any]) -> list[Any]:
    """Write the rows of some files of one partition to one."""
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan, _dataframe_to_data_files
    from pyiceberg.table import TableProperties

    rows = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue()).to_table(tasks)
    # The library would divide rows among files by their size in memory, which is several times that on disk.
    properties = table.properties | {TableProperties.WRITE_TARGET_FILE_SIZE_BYTES: _ANY_SIZE}
    one_file = table.metadata.model_copy(update={"properties": properties})
    return list(_dataframe_to_data_files(one_file, in_order(table, rows), table.io, uuid4(), count()))


def _committed(target: IcebergTarget, table: Table, changes: Rewritten, told: dict[str, str]) -> bool:
    """Commit, beside the commits of others. Return False if they have changed what was read."""
    base, now = table, table
    for _ in range(_TRIES):
        try:
            with target.committing(now, {}, told) as update, producer_of(changes, update, replaces=True) as producer:
                for file in changes.removed:
                    producer.delete_data_file(file)
                for file in changes.added:
                    producer.append_data_file(file)
        except Conflict:
            found = target.open()
            if found is not None and _has(found, changes.added):
                return True  # the catalog's answer was lost, and its client has asked twice
            if found is None or not _is_alike(base, found) or not _has(found, changes.removed):
                return False
            now = found
        else:
            return True
    return False


def _is_alike(before: Table, now: Table) -> bool:
    """Whether files that were written for a table still fit."""
    same = (
        before.metadata.table_uuid == now.metadata.table_uuid
        and before.metadata.default_spec_id == now.metadata.default_spec_id
        and before.schema() == now.schema()
    )
    return same and not _has_deletes(now)


def _has(table: Table, files: Sequence[Any]) -> bool:
    there = {task.file.file_path for task in table.scan().plan_files()}
    return all(file.file_path in there for file in files)


def expire(target: IcebergTarget, wanted: Compaction) -> int:
    """Drop old snapshots, and delete the files that only they have. Return how many. Raises TableFailed.

    Snapshots that a branch or a tag names are kept. The library drops snapshots, and leaves their files. A file that no
    snapshot ever had is left alone: rows that wait for their checkpoint.
    """
    if wanted.expire is None or (table := target.open()) is None:
        return 0
    since = (time.time() - wanted.expire) * 1000
    with failing(target.name, "did not drop old snapshots"):
        named = {reference.snapshot_id for reference in table.metadata.refs.values()}
        old = [s for s in table.snapshots() if s.timestamp_ms < since and s.snapshot_id not in named]
        if not old:
            return 0
        before = _reached(table, old)
        table.maintenance.expire_snapshots().by_ids([snapshot.snapshot_id for snapshot in old]).commit()
        left = target.open()
        if left is None:
            return 0
        gone = before - _reached(left, left.snapshots())
    for path in sorted(gone):
        with failing(target.name, "did not delete a file"), suppress(FileNotFoundError):
            left.io.delete(path)
    return len(gone)


def _reached(table: Table, snapshots: Sequence[Any]) -> set[str]:
    """Return every file that these snapshots need: of data, and of the metadata that lists them."""
    found, seen = set[str](), set[str]()
    for snapshot in snapshots:
        found.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path in seen:
                continue
            seen.add(manifest.manifest_path)
            found.add(manifest.manifest_path)
            entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
            found.update(entry.data_file.file_path for entry in entries)
    return found
