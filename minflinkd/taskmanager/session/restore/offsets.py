"""Starts a query at given offsets, with empty state (C26).

Spark starts at given offsets only after a committed micro-batch, and a stateful operator only after one that has
written its state. So one micro-batch without input is run, in a directory of its own. Then the given offsets are
written into its entry in the offset log.
"""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

from minflinkd.checkpoint.layout import PACKED
from minflinkd.rpc.plan_sources import source_lines, source_logs, source_names
from minflinkd.runtime.errors import MinflinkError
from minflinkd.taskmanager.child.protocol import Restored
from minflinkd.taskmanager.session.plan.plan import Plan
from minflinkd.taskmanager.session.restore.repartition import PARTITIONS
from minflinkd.taskmanager.session.spark.failures import query_failure
from minflinkd.taskmanager.session.spark.session import Session
from minflinkd.taskmanager.session.state import snapshot

_METADATA = "org.apache.spark.sql.execution.streaming.checkpointing.OffsetSeqMetadata"


class OffsetsNotUsable(MinflinkError):
    """A source cannot start at the given offset."""

    code = "offsets-not-usable"


class EmptyBatchFailed(MinflinkError):
    """The micro-batch without input failed, after which the query should have started."""

    code = "empty-batch-failed"


def start_at(session: Session, plan: Plan, laid_out: Path, target: Path, restored: Restored) -> None:
    """Make `target` a checkpoint directory from which the plan's query starts at `restored.offsets`.

    A source that is not named there starts at its beginning. `laid_out` has the logs of file sources, in the places
    where the query with the operators `restored.operators` had them. Raises OffsetsNotUsable, EmptyBatchFailed.
    """
    numbers = {name: number for number, name in plan.source_names.items()}
    logs = _logs(laid_out, restored)
    check(restored.offsets, numbers, logs)
    empty = target.with_name("empty")
    of_lines = {line: node.number for line, node in source_lines(plan.operators).items()}
    _plan_batch(session, plan, empty, len(of_lines))
    _run(session, plan, empty)
    empty.rename(target)  # for a while, maintenance of the first run's stores may still write to the old path
    directories = source_logs(plan.operators)
    for name, log in logs.items():
        place = target / "sources" / str(directories[numbers[name]])
        snapshot.remove(place)
        place.parent.mkdir(exist_ok=True)
        log.rename(place)
        _unpack(place)
    offsets = {numbers[name]: offset for name, offset in restored.offsets.items()}
    entry = target / "offsets" / "0"
    lines = entry.read_text("utf-8").split("\n")[:2]
    _replace(entry, "\n".join([*lines, *(offsets.get(of_lines[line], "-") for line in range(len(of_lines)))]))
    snapshot.renew_query_id(target)


def check(offsets: Mapping[str, str], numbers: Mapping[str, int], logs: Mapping[str, Path]) -> None:
    """Raise OffsetsNotUsable if a named source does not exist, or the log that its offset refers to is not there."""
    for name, offset in offsets.items():
        if name not in numbers:
            known = ", ".join(sorted(numbers))
            raise OffsetsNotUsable(f"there is no source {name} to start at an offset", hint=f"the sources are {known}")
        if _is_log_offset(offset) and name not in logs:
            raise OffsetsNotUsable(
                f"the offset of the file source {name} is a place in its log of files, which is not there",
                hint="name a savepoint or checkpoint as restore.path, which has the log; or leave the source out, and "
                "move away what was read",
            )


def _is_log_offset(offset: str) -> bool:
    try:
        value = json.loads(offset)
    except ValueError:
        return False
    return isinstance(value, dict) and "logOffset" in value


def _logs(laid_out: Path, restored: Restored) -> dict[str, Path]:
    """Return the log directory by source name, for the sources in `restored.offsets`."""
    directories, names = source_logs(restored.operators), source_names(restored.operators)
    found = {names[number]: laid_out / "sources" / str(log) for number, log in directories.items()}
    return {name: place for name, place in found.items() if name in restored.offsets and place.is_dir()}


def _unpack(log: Path) -> None:
    """Unpack the entries of a log that outlived its checkpoint."""
    for entry in sorted(log.glob(f"*{PACKED}")):
        with gzip.open(entry) as packed, entry.with_suffix("").open("wb") as plain:
            shutil.copyfileobj(packed, plain)
        entry.unlink()


def _plan_batch(session: Session, plan: Plan, directory: Path, count: int) -> None:
    """Write a directory as if Spark had planned the first micro-batch, without input, and then died."""
    metadata: Any = session.jvm
    for part in _METADATA.split("."):
        metadata = getattr(metadata, part)
    (directory / "offsets").mkdir(parents=True)
    (directory / "metadata").write_text(json.dumps({"id": str(uuid4())}), "utf-8")
    values = json.loads(str(metadata.apply(0, 0, plan.spark._jsparkSession.conf()).json()))
    partitions = plan.spark.conf.get(PARTITIONS)  # Spark reads it from a setting that only a running query has
    values["conf"] = {key: value for key, value in values["conf"].items() if value is not None} | {
        PARTITIONS: partitions
    }
    (directory / "offsets" / "0").write_text("\n".join(["v1", json.dumps(values), *["-"] * count]), "utf-8")


def _run(session: Session, plan: Plan, directory: Path) -> None:
    """Run the planned micro-batch. It needs no sinks, as there is nothing to write. Raises EmptyBatchFailed."""
    query = (
        plan.require()
        .writeStream.format("noop")
        .outputMode(plan.output_mode.value)
        .option("checkpointLocation", str(directory))
        .trigger(once=True)
        .start()
    )
    java_query: Any = query._jsq
    java_query.awaitTermination(60_000)
    if java_query.isActive():
        java_query.stop()
        raise EmptyBatchFailed("a micro-batch without input did not end within 60 s")
    if snapshot.read_boundary(directory).committed != 0:
        raise EmptyBatchFailed(f"a micro-batch without input failed: {query_failure(java_query).message}")


def _replace(path: Path, text: str) -> None:
    new = path.with_name(f".{path.name}.new")
    new.write_text(text, "utf-8")
    new.replace(path)
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
