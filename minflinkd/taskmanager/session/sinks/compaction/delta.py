"""Compacts a Delta table with the library's own operations: OPTIMIZE, and VACUUM of what the log has removed.

Both are safe beside other writers. OPTIMIZE fails if somebody else has removed the same files meanwhile, and is tried
again the next time. This VACUUM (the library calls it lite) deletes only files that a commit has removed. The full one
would also delete files that no commit names: rows that wait for their checkpoint.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from minflinkd.jobgraph.model import Compaction
from minflinkd.jobgraph.table_sinks import COMPRESSION
from minflinkd.taskmanager.session.plan.sink_checks import UnfitSink
from minflinkd.taskmanager.session.sinks.compaction.choice import fullest_first
from minflinkd.taskmanager.session.sinks.compaction.result import Joined
from minflinkd.taskmanager.session.sinks.tables.delta import DeltaTarget
from minflinkd.taskmanager.session.sinks.tables.failures import Conflict, failing

if TYPE_CHECKING:
    from deltalake import DeltaTable

_MOST: Final = 100  # partitions in one run: each is a commit
_PARTITION: Final = "partition."  # before the names of partition columns
_NAMES: Final = {"LZ4": "LZ4_RAW"}  # of compressions: the library's, for those that Spark calls otherwise
_MARKED_DELETED: Final = "deletionVectors"


def compact(target: DeltaTarget, wanted: Compaction, told: dict[str, str]) -> Joined:
    """Join small files, partition by partition. `told`: what the history says of each commit.

    Raises TableFailed, UnfitSink.
    """
    joined = Joined()
    if (table := target.open()) is None:
        return joined
    _check(target, table)
    partitions = _sizes(target, table)
    for partition in fullest_first(partitions.items(), wanted.target)[:_MOST]:
        joined += _optimized(target, table, dict(partition), wanted.target, told)  # type: ignore[call-overload]
    return joined


def expire(target: DeltaTarget, wanted: Compaction, told: dict[str, str]) -> int:
    """Delete files that only older versions have, and return how many. Raises TableFailed."""
    if wanted.expire is None or (table := target.open()) is None:
        return 0
    old: dict[str, Any] = {"retention_hours": math.ceil(wanted.expire / 3600), "enforce_retention_duration": False}
    with failing(target.name, "was not cleaned of files that only older versions have"):
        removed = table.vacuum(**old, dry_run=True)
    # The log remembers for a week what it has removed, and each call is two commits, even if all of it is gone.
    if not any(target.has_path(path) for path in removed):
        return 0
    with failing(target.name, "was not cleaned of files that only older versions have"):
        return len(table.vacuum(**old, dry_run=False, commit_properties=_properties(told)))


def _check(target: DeltaTarget, table: DeltaTable) -> None:
    target.check_still(table)
    if _MARKED_DELETED in (table.protocol().writer_features or ()):
        raise UnfitSink(
            f"{target.name} uses {_MARKED_DELETED}, and is not compacted: deleted rows might come back",
            hint="leave compaction out, and use Spark's OPTIMIZE; or drop the feature of the table",
        )


def _sizes(target: DeltaTarget, table: DeltaTable) -> dict[Hashable, list[int]]:
    """Return the sizes of the files of each partition: pairs of column and text."""
    with failing(target.name, "did not say which files it has"):
        files = pa.table(table.get_add_actions(flatten=True))
    by = [name for name in files.column_names if name.startswith(_PARTITION)]
    found = defaultdict[Hashable, list[int]](list)
    for row in files.select([*by, "size_bytes"]).to_pylist():
        found[tuple((name.removeprefix(_PARTITION), row[name]) for name in by)].append(row["size_bytes"])
    return found


def _optimized(
    target: DeltaTarget, table: DeltaTable, partition: dict[str, Any], size: int, told: dict[str, str]
) -> Joined:
    filters = [(name, "=", "" if value is None else _text(value)) for name, value in partition.items()]
    try:
        with target.committing():
            found = table.optimize.compact(
                partition_filters=filters or None,
                target_size=size,
                max_concurrent_tasks=1,
                writer_properties=_writer(target),
                commit_properties=_properties(told),
            )
    except Conflict:
        with failing(target.name, "cannot be read"):
            table.update_incremental()
        return Joined(overtaken=1)
    return Joined(files=found["numFilesRemoved"], into=found["numFilesAdded"], commits=int(found["numFilesAdded"] > 0))


def _writer(target: DeltaTarget) -> Any:
    """Return how the sink compresses its files; None: as the library does."""
    from deltalake import WriterProperties

    name: Any = target.settings.get(COMPRESSION, "").upper()
    return WriterProperties(compression=_NAMES.get(name, name)) if name else None


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _properties(told: dict[str, str]) -> Any:
    from deltalake import CommitProperties

    return CommitProperties(custom_metadata=told)
