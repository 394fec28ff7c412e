"""The rules for sinks that write tables: Delta Lake (K2) and Iceberg (K3). Pure."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

from minflinkd.jobgraph.delivery import KEY, KEYED_OPTIONS, key_of
from minflinkd.jobgraph.faults import Faults, at, show
from minflinkd.jobgraph.model import Compaction, Delivery, Sink
from minflinkd.runtime.units import Duration, MemorySize

# Options of both. All others are for the storage (delta), or for the catalog (iceberg).
SCHEMA, FAIL, ADD_COLUMNS = "schema", "fail", "add-columns"
COMPRESSION: Final = "compression"
_CHOICES: Final = {
    SCHEMA: ((FAIL, ADD_COLUMNS), "this says what to do with columns that the table does not have"),
    COMPRESSION: (("snappy", "zstd", "gzip", "lz4", "uncompressed"), "this is how Parquet files are compressed"),
}

# Options of iceberg.
TABLE, CATALOG, OF_CATALOG = "table", "catalog", "catalog."
_ICEBERG: Final = frozenset({SCHEMA, COMPRESSION, TABLE, CATALOG}) | KEYED_OPTIONS
_TABLE_NAME: Final = re.compile(r"[^.\s]+(\.[^.\s]+)+")

# Storages that the library deltalake reaches.
_SCHEMES: Final = ("", "file", "s3", "s3a", "gs", "az", "abfs", "abfss")

# What a compaction may ask for.
_TARGETS: Final = MemorySize(1024**2), MemorySize(4 * 1024**3)
_SOONEST: Final = Duration(1.0)
_KEPT: Final = Duration(3600.0)


def check_delta(sink: Sink, path: str, resolved: str | None, faults: Faults) -> None:
    """Check a delta sink. `resolved`: its path with the params filled in; None if that is a fault already."""
    _check_common(sink, path, faults)
    if sink.path is None:
        if not faults.touch(at(path, "path")):
            faults.add(path, "a delta sink needs a path", "path: <directory of the table>, such as s3://lake/flights")
    elif resolved is not None and (scheme := urlsplit(resolved).scheme) not in _SCHEMES:
        hint = f"a path, or one of {', '.join(f'{known}://' for known in _SCHEMES if known)}"
        faults.add(at(path, "path"), f"no Delta table can be written to {show(scheme)}", hint)


def check_iceberg(sink: Sink, path: str, resolved: str | None, faults: Faults) -> None:
    """Check an iceberg sink. `resolved`: the name of its table with the params filled in; None as above."""
    _check_common(sink, path, faults)
    options = at(path, "options")
    if sink.path is not None:
        faults.add(
            at(path, "path"), "an iceberg sink has no path: its catalog knows where the table is", "leave it out"
        )
    if not sink.options.get(TABLE):
        if not faults.touch(at(options, TABLE)):
            faults.add(path, f"an iceberg sink needs the option {TABLE}", "options: {catalog: prod, table: db.flights}")
    elif resolved is not None and not _TABLE_NAME.fullmatch(resolved):
        faults.add(at(options, TABLE), f"{show(resolved)} is no name of a table", "<namespace>.<table>: db.flights")
    for name in sink.options:
        if name not in _ICEBERG and not name.startswith(OF_CATALOG):
            hint = f"{', '.join(sorted(_ICEBERG))}; what begins with {OF_CATALOG} is for the catalog: catalog.uri"
            faults.add(at(options, name), f"an iceberg sink has no option {show(name)}", hint)


def check_compaction(sink: Sink, compaction: Compaction, path: str, faults: Faults) -> None:
    if sink.format == "delta":
        # The library's OPTIMIZE does not look whether another one has removed the same files: both add their rows.
        problem = "a Delta table is not compacted: two compactions by the library deltalake at once double the rows"
        faults.add(path, problem, "leave it out, and run OPTIMIZE in Spark")
    elif sink.format != "iceberg":
        problem = f"only tables of Iceberg are compacted, and this sink is {sink.format or 'python'}"
        faults.add(path, problem, "leave it out")
    least, most = _TARGETS
    if not least <= compaction.target <= most:
        faults.add(at(path, "target"), f"{compaction.target} is not between {least} and {most}", "128 MiB is usual")
    if compaction.every < _SOONEST:
        faults.add(at(path, "every"), f"{compaction.every} is less than {_SOONEST}", "10 min is usual")
    if compaction.expire is not None and compaction.expire < _KEPT:
        problem = f"{compaction.expire} is less than {_KEPT}: queries that run would lose files that they read"
        faults.add(at(path, "expire"), problem, "7 d is usual; leave it out to keep all snapshots")


def _check_common(sink: Sink, path: str, faults: Faults) -> None:
    options = at(path, "options")
    for name, (fits, meaning) in _CHOICES.items():
        if (value := sink.options.get(name)) is not None and value not in fits and "${" not in value:
            faults.add(at(options, name), f"{show(value)} is not a choice: {meaning}", " or ".join(fits))
    if KEY in sink.options and not key_of(sink):
        faults.add(at(options, KEY), "the key names no column", "key: carrier, or key: carrier, day")
    if key_of(sink) and COMPRESSION in sink.options:
        problem = "with a key the table's own properties say how its files are compressed"
        faults.add(at(options, COMPRESSION), problem, "leave it out")
    if "mode" in sink.options:
        hint = "leave it out; a sink with the option `key` replaces rows"
        faults.add(at(options, "mode"), "a stream is never written with a mode", hint)
    if sink.delivery is Delivery.AT_LEAST_ONCE:
        faults.add(at(path, "delivery"), f"a {sink.format} sink is always exactly-once", "leave it out")
