"""Compacts an Iceberg table. The library `pyiceberg` cannot; it reads, writes and commits the files here.

A compaction changes no row: its snapshot says so (`replace`), so readers of changes skip it. Another writer may commit
first. Then the same new files are committed on top of that, as long as all files that they replace are still there and
no row of them was deleted meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from minflinkd.jobgraph.model import Compaction
from minflinkd.taskmanager.session.plan.sink_checks import UnfitSink
from minflinkd.taskmanager.session.sinks.compaction.choice import SizedFile, groups
from minflinkd.taskmanager.session.sinks.compaction.messages import Joined
from minflinkd.taskmanager.session.sinks.tables.failures import Conflict, TableFailed, failing
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
_ANY_SIZE: Final = str(2**50)
_COMMIT: Final = "minflinkd.commit"  # in the summary of a snapshot: which attempt to commit has made it


def compact(target: IcebergTarget, wanted: Compaction, about: dict[str, str]) -> Iterator[Joined]:
    """Join small files. `about`: what the summary of each snapshot says.

    The rows of one joined file are in memory at a time. Raises TableFailed, UnfitSink.
    """
    if (table := target.open()) is None:
        return
    _check(target, table)
    chosen = groups(_files(target, table), wanted.target)
    for first in range(0, len(chosen), _AT_ONCE):
        yield _joined(target, table, chosen[first : first + _AT_ONCE], about)


def _check(target: IcebergTarget, table: Table) -> None:
    target.check_still(table)
    check_replaceable(table, target.name, "it is not compacted", "leave compaction out")
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


def _joined(
    target: IcebergTarget, table: Table, chosen: Sequence[Sequence[SizedFile]], about: dict[str, str]
) -> Joined:
    added: list[Any] = []
    removed = [sized.file.file for group in chosen for sized in group]
    try:
        for group in chosen:
            with failing(target.name, "could not be compacted"):
                added += _written(table, [sized.file for sized in group])
        _check_rows(target, removed, added)
    except BaseException:
        with suppress(Exception):
            discard(table, added)
        raise
    if _committed(target, table, Rewritten(removed, added), about):  # if it raises, the table may have the files
        return Joined(files=len(removed), into=len(added))
    with failing(target.name, "did not delete a file"):
        discard(table, added)
    return Joined(overtaken=1)


def _written(table: Table, tasks: Sequence[Any]) -> list[Any]:
    """Write the rows of some files of one partition to one. Files without rows become none."""
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan, _dataframe_to_data_files
    from pyiceberg.table import TableProperties

    rows = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue()).to_table(tasks)
    if not len(rows):
        return []
    # The library would divide rows among files by their size in memory, which is several times that on disk.
    properties = table.properties | {TableProperties.WRITE_TARGET_FILE_SIZE_BYTES: _ANY_SIZE}
    one_file = table.metadata.model_copy(update={"properties": properties})
    return list(_dataframe_to_data_files(one_file, in_order(table, rows), table.io, uuid4(), count()))


def _check_rows(target: IcebergTarget, removed: Sequence[Any], added: Sequence[Any]) -> None:
    """Raise TableFailed unless as many rows were written as were read: nobody looks at a commit that changes none."""
    read, written = (sum(file.record_count for file in files) for files in (removed, added))
    if read != written:
        raise TableFailed(
            f"{target.name}: files with {read:,} rows were joined to files with {written:,}, and are left as they are",
            hint="please report this, with the table's schema and partitions; leave compaction out",
        )


def _committed(target: IcebergTarget, table: Table, changes: Rewritten, about: dict[str, str]) -> bool:
    """Commit, beside the commits of others. Return False if they have changed what was read."""
    base, now, own = table, table, {_COMMIT: uuid4().hex}
    for _ in range(_TRIES):
        try:
            with (
                target.committing(now, {}, about | own) as update,
                producer_of(changes, update, replaces=True) as producer,
            ):
                for file in changes.removed:
                    producer.delete_data_file(file)
                for file in changes.added:
                    producer.append_data_file(file)
        except Conflict:
            found = target.open()
            # A catalog's client whose answer was lost has asked twice. Others may have changed the files since.
            if found is not None and any(_is(snapshot, own) for snapshot in found.snapshots()):
                return True
            if found is None or not _is_alike(base, found) or not _has(found, changes.removed):
                return False
            now = found
        else:
            return True
    return False


def _is(snapshot: Any, own: dict[str, str]) -> bool:
    return snapshot.summary is not None and all(snapshot.summary.get(key) == value for key, value in own.items())


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
