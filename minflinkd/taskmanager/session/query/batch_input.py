"""Finds the input of a failed micro-batch: files and offsets, from the logs that Spark wrote before it began.

Spark does not say on which row a Python function raised, nor in which file that row was. But it records what a
micro-batch is going to read before it reads. That narrows the search for the record to a few files, or a range of
offsets.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from minflinkd.rpc.plan_sources import EXCHANGE, lines_with_logs, source_lines, source_names
from minflinkd.rpc.snapshot import PlanNode
from minflinkd.taskmanager.child.protocol import SnapshotFailed
from minflinkd.taskmanager.session.state import snapshot

MOST_FILES = 5  # files per source that are named; the others are counted
MOST_CHARACTERS = 300  # of an offset; a Kafka offset names every partition
_UNKNOWN_FORM = (ValueError, LookupError, TypeError, AttributeError)  # raised if Spark writes its logs in another form


def failed_input(checkpoint: Path, sources: tuple[PlanNode, ...]) -> str:
    """Describe the new input of the micro-batch that has begun and was not committed, by source.

    Example: `micro-batch 7 read events: /data/events/2.json; views: from {"views":{"0":12}} to {"views":{"0":15}}`.
    Returns "" if there is no such micro-batch, or nothing is known of its input. Exchanges are left out: users cannot
    look into them.
    """
    with suppress(OSError, *_UNKNOWN_FORM, SnapshotFailed):
        found = snapshot.read_boundary(checkpoint)
        if found.started > found.committed:
            said = "; ".join(_of_sources(checkpoint, sources, found.started))
            return f"micro-batch {found.started} read {said}" if said else ""
    return ""


def _of_sources(checkpoint: Path, sources: tuple[PlanNode, ...], batch: int) -> Iterator[str]:
    until = snapshot.read_offsets(checkpoint, batch).offsets
    since = snapshot.read_offsets(checkpoint, batch - 1).offsets if batch > 0 else (None,) * len(until)
    names, logs, told = source_names(sources), lines_with_logs(sources), set[int]()
    for line, node in sorted(source_lines(sources).items()):
        if node.kind == EXCHANGE or node.number in told or line >= len(until):
            continue
        told.add(node.number)
        before, after = since[line] if line < len(since) else None, until[line]
        if after is None or after == before:
            continue
        if (first := _log_offset(before)) is not None and (last := _log_offset(after)) is not None:
            files = list(_files(checkpoint / "sources" / str(logs[line]), first + 1, last))
            if files:
                more = f" and {len(files) - MOST_FILES} more" if len(files) > MOST_FILES else ""
                yield f"{names[node.number]}: {', '.join(files[:MOST_FILES])}{more}"
        else:
            begin = f"from {_short(before)} " if before is not None else ""
            yield f"{names[node.number]}: {begin}to {_short(after)}"


def _log_offset(offset: str | None) -> int | None:
    """Return the last entry of a file source's log that was read, -1 if none was; None for any other source."""
    if offset is None:
        return -1
    value = json.loads(offset)
    return int(value["logOffset"]) if isinstance(value, dict) and "logOffset" in value else None


def _files(log: Path, first: int, last: int) -> Iterator[str]:
    """Yield the paths in these entries of a file source's log.

    Every tenth entry is a compact one, which repeats all entries before it.
    """
    for number in range(first, last + 1):
        entry = next((path for path in (log / str(number), log / f"{number}.compact") if path.is_file()), None)
        if entry is None:
            continue
        for line in entry.read_text("utf-8").splitlines()[1:]:
            values: dict[str, Any] = json.loads(line)
            if values.get("batchId", number) == number:
                yield unquote(str(values["path"])).removeprefix("file://")


def _short(offset: str) -> str:
    return offset if len(offset) <= MOST_CHARACTERS else f"{offset[:MOST_CHARACTERS]}..."
