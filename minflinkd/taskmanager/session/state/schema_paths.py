"""Makes the paths to the schemas of `transformWithState` relative in snapshots, and absolute again after a restore.

Spark finds these schemas by absolute paths, in the records next to the state:

    state/<operator>/_metadata/v2/<batch>     "stateSchemaFilePaths": ["file:/.../state/0/_stateSchema/default/0_<id>"]

A restore has its files elsewhere: in the directory of another attempt, perhaps on another host. So in a snapshot these
paths are relative to the operator's directory, and they are made absolute again before a query starts from it. Older
snapshots hold absolute paths, which are corrected in the same way.

A relative path is the same in the snapshots of all attempts, and so is the whole record. So it is uploaded only once,
and a TaskManager's own copy of a snapshot matches the uploaded checksums.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from minflinkd.runtime.errors import MinflinkError

_RECORD = re.compile(r"state/[^/]+/_metadata/v2/[^/]+")
_SCHEMAS = "_stateSchema"
_PATHS = "stateSchemaFilePaths"


class StateNotRestored(MinflinkError):
    """A record about the state in a snapshot cannot be read."""

    code = "state-not-restored"


def is_record(path: str) -> bool:
    """Whether a path in the checkpoint directory belongs to a record that names schemas."""
    return _RECORD.fullmatch(path) is not None


def relative(text: str) -> str:
    """Return a record with its schema paths relative to the operator's directory. Pure.

    Raises ValueError for a record in an unknown form.
    """
    return _with_paths(text, "")


def absolute(text: str, operator: Path) -> str:
    """Return a record with its schema paths in this directory of the operator, whatever they were before. Pure.

    Raises ValueError for a record in an unknown form.
    """
    return _with_paths(text, f"file:{operator}/")


def _with_paths(text: str, directory: str) -> str:
    version, separator, body = text.partition("\n")
    record: Any = json.loads(body)
    if version != "v2" or not isinstance(record, dict):
        raise ValueError(f"it has the unknown version {version!r}")
    for store in record.get("stateStoreInfo", ()):
        if _PATHS in store:
            store[_PATHS] = [_within(path, directory) for path in store[_PATHS]]
    return f"{version}{separator}{json.dumps(record, separators=(',', ':'), ensure_ascii=False)}"


def _within(path: str, directory: str) -> str:
    _, found, name = path.rpartition(f"{_SCHEMAS}/")
    if not found:
        raise ValueError(f"it names {path}, which is no state schema of Spark")
    return f"{directory}{_SCHEMAS}/{name}"


def localize(checkpoint: Path) -> None:
    """Make the schema paths in all records of a query's checkpoint directory point into that directory.

    Files are replaced and never written to, as they may be links into a snapshot. Raises StateNotRestored, OSError.
    """
    for path in sorted(checkpoint.glob("state/*/_metadata/v2/*")):
        if path.name.startswith("."):
            continue
        text = path.read_text("utf-8")
        try:
            local = absolute(text, path.parents[2])
        except ValueError as error:
            raise StateNotRestored(f"Spark's record {path.relative_to(checkpoint)} cannot be read: {error}") from error
        if local != text:
            _replace(path, local)


def _replace(path: Path, text: str) -> None:
    new = path.with_name(f".{path.name}.new")
    new.write_text(text, "utf-8")
    new.replace(path)
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)  # Hadoop's checksum of the old contents
