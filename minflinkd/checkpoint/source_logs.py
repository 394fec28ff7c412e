"""The logs of file sources, for jobs that start at recorded offsets with empty state (C26).

The offset of a file source is a place in its log of the files that it has seen: `{"logOffset": 7}`. Spark keeps it
in the query's checkpoint directory, so it is in checkpoints. Without it, no offset says which files were read: a file
that is copied late may be older than all of them.

Pure: this decides which logs are used, and where each source starts in them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minflinkd.checkpoint.offsets import Offsets, value
from minflinkd.rpc.plan_sources import source_logs, source_names
from minflinkd.rpc.snapshot import PlanNode, StateFile, TaskSnapshot

_ENTRY = re.compile(r"sources/([0-9]+)/(.+)")  # the log's directory, and what is in it


@dataclass(frozen=True)
class SourceLogs:
    """The logs of some sources, as if these were all sources of one query."""

    operators: tuple[PlanNode, ...] = ()
    files: tuple[StateFile, ...] = ()


def vertex_of(source: str) -> str:
    """Return the vertex of a source. A second source in one vertex has the name `<vertex>#2`."""
    return source.partition("#")[0]


def log_offset(offset: Any) -> int | None:
    """Return the last entry of the log that was read, by a file source's offset. None for any other source."""
    return int(offset["logOffset"]) if isinstance(offset, dict) and "logOffset" in offset else None


def logs_of(snapshots: Sequence[TaskSnapshot], vertices: Collection[str]) -> SourceLogs:
    """Return the logs that the snapshots have of the sources in these vertices."""
    operators: list[PlanNode] = []
    files: list[StateFile] = []
    for snapshot in snapshots:
        entries = dict[int, list[tuple[str, StateFile]]]()
        for file in snapshot.files:
            if match := _ENTRY.fullmatch(file.path):
                entries.setdefault(int(match[1]), []).append((match[2], file))
        logs = source_logs(snapshot.operators)
        for node in snapshot.operators:
            if node.stateful or node.number not in logs or node.vertex not in vertices:
                continue
            number = len(operators)
            operators.append(PlanNode(number=number, stateful=False, vertex=node.vertex, kind=node.kind))
            files += [StateFile(f"sources/{number}/{n}", f.handle) for n, f in entries.get(logs[node.number], ())]
    return SourceLogs(tuple(operators), tuple(files))


def with_logs_only(snapshot: TaskSnapshot, vertices: Collection[str]) -> TaskSnapshot:
    """Return what a start at the snapshot's offsets needs: the offsets, and the logs of the sources in `vertices`."""
    found = logs_of([snapshot], vertices)
    return TaskSnapshot(
        task_id=snapshot.task_id,
        attempt_id=snapshot.attempt_id,
        resource_id=snapshot.resource_id,
        checkpoint_id=snapshot.checkpoint_id,
        batch_id=-1,
        files=found.files,
        operators=found.operators,
        source_offsets={n: text for n, text in snapshot.source_offsets.items() if n not in snapshot.inputs},
    )


def sources_with_logs(snapshots: Sequence[TaskSnapshot]) -> dict[str, int]:
    """Return the file sources of which the snapshots have the log, and its last entry."""
    return {name: end for snapshot in snapshots for name, end in _ends(snapshot)}


def _ends(snapshot: TaskSnapshot) -> Iterator[tuple[str, int]]:
    present = {int(match[1]) for file in snapshot.files if (match := _ENTRY.fullmatch(file.path))}
    logs = source_logs(snapshot.operators)
    for number, name in source_names(snapshot.operators).items():
        end = log_offset(value(snapshot.source_offsets.get(name, "null")))
        if end is not None and logs.get(number) in present:
            yield name, end


def positions(recorded: Offsets, ends: Mapping[str, int]) -> tuple[dict[str, Any], frozenset[str]]:
    """Return where each source starts, and the vertices of which no log may be used.

    `ends`: the last entry of each log that is there. A log that ends before the recorded offset lacks the files that
    were read after it:

    - If no sink publishes with checkpoints, the source starts at the log's end and reads these files again, as it does
      after every restart.
    - Otherwise their rows are published, and must not be published again: the log is of no use.
    """
    found: dict[str, Any] = {}
    useless: set[str] = set()
    for task in recorded.tasks.values():
        for source, offset in task.latest.items():
            place, end = log_offset(offset), ends.get(source)
            short = place is not None and end is not None and end < place
            if short and task.staged:
                useless.add(vertex_of(source))
            found[source] = {**offset, "logOffset": end} if short and not task.staged else offset
    return found, frozenset(useless)


def without_log(offsets: Mapping[str, str], logs: SourceLogs) -> tuple[str, ...]:
    """Return the file sources that cannot start at their offset, because `logs` does not have their log."""
    entries = {match[1] for file in logs.files if (match := _ENTRY.fullmatch(file.path))}
    there = {name for number, name in source_names(logs.operators).items() if str(number) in entries}
    return tuple(name for name, text in offsets.items() if log_offset(value(text)) is not None and name not in there)
