"""The rules for sinks that append to tables (K2, K3, J4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from minflinkd.jobgraph.delivery import key_of, refused_mode, stages
from minflinkd.jobgraph.faults import GraphFault
from minflinkd.jobgraph.model import OutputMode, Sink
from minflinkd.jobgraph.validation import parse_job

DELTA = {"format": "delta", "path": "s3://lake/flights"}
ICEBERG = {"format": "iceberg", "options": {"table": "db.flights", "catalog.uri": "http://c:1"}}


def job(sink: dict[str, Any]) -> dict[str, Any]:
    vertices = {
        "rows": {"source": {"format": "rate"}},
        "out": {"inputs": ["rows"], "sink": sink},
    }
    return {"name": "tables", "vertices": vertices}


@pytest.mark.parametrize(
    "sink",
    [
        DELTA,
        DELTA | {"partition-by": ["day"], "options": {"schema": "add-columns", "AWS_REGION": "x"}},
        DELTA | {"path": "${where}/flights"},
        DELTA | {"delivery": "exactly-once"},
        ICEBERG,
        ICEBERG | {"partition-by": ["day"]},
        ICEBERG | {"compaction": {}},
        ICEBERG | {"compaction": {"target": "64 MiB", "every": "1 min", "expire": "7 d"}},
        {"format": "iceberg", "options": {"table": "a.b.c", "catalog": "prod", "compression": "zstd"}},
    ],
)
def test_a_table_can_be_named_in_these_ways(sink: dict[str, Any]) -> None:
    document = job(sink) | {"params": {"where": "abfss://lake@account.dfs.core.windows.net"}}
    assert parse_job(document).vertices[-1].sink is not None


@pytest.mark.parametrize(
    ("sink", "path", "problem"),
    [
        ({"format": "delta"}, "", "a delta sink needs a path"),
        (DELTA | {"path": "lake/flights"}, ".path", "is not an absolute path or URI"),
        (DELTA | {"path": "hdfs://n:1/lake"}, ".path", 'no Delta table can be written to "hdfs"'),
        (DELTA | {"options": {"schema": "merge"}}, ".options.schema", '"merge" is not a choice'),
        (DELTA | {"options": {"compression": "best"}}, ".options.compression", '"best" is not a choice'),
        (DELTA | {"options": {"mode": "append"}}, ".options.mode", "a stream is never written with a mode"),
        (DELTA | {"delivery": "at-least-once"}, ".delivery", "a delta sink is always exactly-once"),
        (DELTA | {"options": {"key": " , "}}, ".options.key", "the key names no column"),
        ({"format": "iceberg"}, "", "an iceberg sink needs the option table"),
        (ICEBERG | {"path": "/lake"}, ".path", "an iceberg sink has no path"),
        ({"format": "iceberg", "options": {"table": "flights"}}, ".options.table", "is no name of a table"),
        (DELTA | {"compaction": {}}, ".compaction", "a Delta table is not compacted: two compactions by"),
        (ICEBERG | {"compaction": {"target": "big"}}, ".compaction.target", '"big" is not a size such as'),
        (ICEBERG | {"compaction": {"target": "1 KiB"}}, ".compaction.target", "1 KiB is not between 1 MiB and 4 GiB"),
        (ICEBERG | {"compaction": {"every": "1 ms"}}, ".compaction.every", "1 ms is less than 1 s"),
        (ICEBERG | {"compaction": {"expire": "1 min"}}, ".compaction.expire", "queries that run would lose files"),
        (
            {"format": "parquet", "path": "/x", "compaction": {}},
            ".compaction",
            "only tables of Iceberg are compacted, and this sink is parquet",
        ),
        (
            {"python": "a:B", "compaction": {}},
            ".compaction",
            "only tables of Iceberg are compacted, and this sink is python",
        ),
        (
            {"format": "iceberg", "options": {"table": "db.t", "uri": "x"}},
            ".options.uri",
            'an iceberg sink has no option "uri"',
        ),
    ],
)
def test_what_is_wrong_with_a_table_is_told_at_its_place(
    sink: dict[str, Any], path: str, problem: str, faults: Callable[[object], dict[str, GraphFault]]
) -> None:
    """Before anything looks for the table (J4)."""
    ((where, fault),) = faults(job(sink)).items()
    assert where == f"vertices.out.sink{path}"
    assert problem in fault.problem


def test_only_a_table_with_a_key_takes_rows_back() -> None:
    """K4"""
    plain, keyed = Sink(format="delta", path="/x"), Sink(format="delta", path="/x", options={"key": "a, b"})
    for sink in (plain, keyed, Sink(format="iceberg")):
        assert refused_mode(sink, OutputMode.APPEND) is None
        for mode in (OutputMode.UPDATE, OutputMode.COMPLETE):
            refused = refused_mode(sink, mode)
            assert refused is None if sink is keyed else "without a key" in (refused or ("",))[0]
    assert key_of(keyed) == ("a", "b")
    assert stages(keyed), "its rows are merged with a checkpoint"
