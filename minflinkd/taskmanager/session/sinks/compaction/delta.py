"""Compacts a Delta table with the library's own operations: OPTIMIZE, and VACUUM of what the log has removed.

Both are safe beside other writers. OPTIMIZE is refused if somebody else has removed the same files meanwhile, and tried
again the next time; what it has written stays behind. This VACUUM (the library calls it lite) deletes only files that a
commit has removed. The full one would also delete files that no commit names: rows that wait for their checkpoint.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from minflinkd.jobgraph.model import Compaction
from minflinkd.jobgraph.table_sinks import COMPRESSION
from minflinkd.runtime.units import Duration
from minflinkd.taskmanager.session.plan.sink_checks import UnfitSink
from minflinkd.taskmanager.session.sinks.compaction.choice import fullest_first
from minflinkd.taskmanager.session.sinks.compaction.messages import Joined
from minflinkd.taskmanager.session.sinks.tables.delta import DeltaTarget
from minflinkd.taskmanager.session.sinks.tables.failures import Conflict, failing

if TYPE_CHECKING:
    from deltalake import DeltaTable

_MOST: Final = 100  # partitions in one run: each is a commit
_COMMITS: Final = timedelta(minutes=2)  # between two commits of a large partition: what is lost if it is ended
_PARTITION: Final = "partition."  # before the names of partition columns
_MARKED_DELETED: Final = "deletionVectors"
_NAMES: Final = {"LZ4": "LZ4_RAW"}  # of compressions: the library's, for those that Spark calls otherwise
_PARALLEL: Final = 8  # files that are looked for at a time
_RETENTION: Final = "delta.deletedFileRetentionDuration"
_WEEK: Final = 7 * 86400.0  # what it is unless the table says otherwise
_UNITS: Final = {"week": 7 * 86400.0, "day": 86400.0, "hour": 3600.0, "minute": 60.0, "second": 1.0}
_PART: Final = re.compile(rf"(\d+)\s*({'|'.join(_UNITS)})s?")
_MARGIN: Final = 3600.0  # seconds, at least, in which removed files can be deleted before the log forgets them


def compact(target: DeltaTarget, wanted: Compaction, about: dict[str, str]) -> Iterator[Joined]:
    """Join small files, partition by partition. `about`: what the history says of each commit.

    Raises TableFailed, UnfitSink.
    """
    if (table := target.open()) is None:
        return
    _check(target, table)
    for partition, size in fullest_first(_sizes(target, table).items(), wanted.target)[:_MOST]:
        joined = _optimized(target, table, dict(partition), size, about)  # type: ignore[call-overload]
        if joined.overtaken:
            with failing(target.name, "cannot be read"):
                table.update_incremental()
            _check(target, table)
        yield joined


def expire(target: DeltaTarget, wanted: Compaction, about: dict[str, str]) -> int:
    """Delete files that only older versions have, and return how many. Raises TableFailed, UnfitSink."""
    if wanted.expire is None or (table := target.open()) is None:
        return 0
    _check_retention(target, table, wanted.expire, wanted.every)
    old: dict[str, Any] = {"retention_hours": math.ceil(wanted.expire / 3600), "enforce_retention_duration": False}
    with failing(target.name, "was not cleaned of files that only older versions have"):
        removed = table.vacuum(**old, dry_run=True)
    # The log also lists those that are gone already, and each call is two commits, even if all are.
    with ThreadPoolExecutor(_PARALLEL, thread_name_prefix="removed-files") as pool:
        there = sum(pool.map(target.has_path, removed))
    if there:
        with failing(target.name, "was not cleaned of files that only older versions have"):
            table.vacuum(**old, dry_run=False, commit_properties=_properties(about))
    return there


def _check(target: DeltaTarget, table: DeltaTable) -> None:
    target.check_still(table)
    if _MARKED_DELETED in (table.protocol().writer_features or ()):
        raise UnfitSink(
            f"{target.name} uses {_MARKED_DELETED}, and is not compacted: deleted rows might come back",
            hint="leave compaction out, and use Spark's OPTIMIZE; or drop the feature of the table",
        )


def _check_retention(target: DeltaTarget, table: DeltaTable, expire: float, every: float) -> None:
    """Raise UnfitSink if the table's log forgets removed files before they may be deleted. They would stay for ever."""
    text = str(table.metadata().configuration.get(_RETENTION, ""))
    kept = sum(int(number) * _UNITS[unit] for number, unit in _PART.findall(text)) or _WEEK
    if expire + max(_MARGIN, 2 * every) > kept:
        raise UnfitSink(
            f"{target.name}: its log forgets removed files after {Duration(kept)}, and `expire` keeps them for "
            f"{Duration(expire)}, so nobody would delete them",
            hint=f"a shorter expire; or a longer {_RETENTION} of the table",
        )


def _sizes(target: DeltaTarget, table: DeltaTable) -> dict[Hashable, list[int]]:
    """Return the sizes of the files of each partition: pairs of column and value."""
    with failing(target.name, "did not say which files it has"):
        files = pa.table(table.get_add_actions(flatten=True))
    by = [name for name in files.column_names if name.startswith(_PARTITION)]
    found = defaultdict[Hashable, list[int]](list)
    for row in files.select([*by, "size_bytes"]).to_pylist():
        found[tuple((name.removeprefix(_PARTITION), row[name]) for name in by)].append(row["size_bytes"])
    return found


def _optimized(
    target: DeltaTarget, table: DeltaTable, partition: dict[str, Any], size: int, about: dict[str, str]
) -> Joined:
    """Join the files of a partition that are smaller than `size`."""
    filters = [(name, "=", "" if value is None else _text(value)) for name, value in partition.items()]
    try:
        with target.committing():
            found = table.optimize.compact(
                partition_filters=filters or None,
                target_size=size,
                max_concurrent_tasks=1,
                min_commit_interval=_COMMITS,
                writer_properties=_writer(target),
                commit_properties=_properties(about),
            )
    except Conflict:
        return Joined(overtaken=1)
    return Joined(files=found["numFilesRemoved"], into=found["numFilesAdded"])


def _writer(target: DeltaTarget) -> Any:
    """Return how the sink compresses its files; None: as the library does."""
    from deltalake import WriterProperties

    name: Any = target.settings.get(COMPRESSION, "").upper()
    return WriterProperties(compression=_NAMES.get(name, name)) if name else None


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _properties(about: dict[str, str]) -> Any:
    from deltalake import CommitProperties

    return CommitProperties(custom_metadata=about)
