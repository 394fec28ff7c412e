"""The demo's flights, weighed by each version of a job in three ways: by a param, by its SQL and by its code.

A file of events is one day, and one micro-batch. A window is three days long, so the next version continues with state
that the version before it has counted. Every flight in a window shows which version counted it.
"""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.dataset

from tests.cluster import write_job

EXAMPLE = Path(__file__).parents[1] / "examples/flights"
WINDOW = 3 * 86_400  # seconds
CODE = """

WEIGHT = {weight}


def by_code(distances: Iterator[pd.Series]) -> Iterator[pd.Series]:
    for distance in distances:
        yield distance * WEIGHT


def weighed(inputs, params):
    flights = clean(inputs, params)
    application = flights.sparkSession.sparkContext.applicationId
    weigh = pandas_udf(by_code, "long")
    return flights.selectExpr("*", f"'{{application}}' AS application").withColumn("by_code", weigh("distance"))
"""
SQL = """
SELECT window(time, '3 days').start AS since, carrier, '${version}' AS version, count(*) AS flights,
       count_if(delay_class IN ('late', 'very late')) AS late, sum(distance * ${factor}) AS by_param,
       sum(distance * %(literal)d) AS by_sql, sum(by_code) AS by_code,
       min(application) AS application, max(application) AS last_application
FROM weighed GROUP BY window(time, '3 days'), carrier
"""
COLUMNS = ["since", "carrier", "flights", "late", "by_param", "by_sql", "by_code"]

Rows = list[tuple[Any, ...]]


@dataclass(frozen=True)
class Version:
    """A version of the job. Its number is written beside every row.

    No two of the weights are ever equal. Otherwise Spark could compute one sum for both.
    """

    number: int = 0
    factor: int = 2
    literal: int = 1000
    weight: int = 100
    parallelism: int = 1


@dataclass
class FlightsJob:
    """A job whose input grows by one file each time that the test releases one.

    `exchange`: one task weighs flights, and another one sums them.
    """

    base: Path
    exchange: bool = False
    _released: int = 0

    def __post_init__(self) -> None:
        self._unpacked = self.base / "unpacked"
        self._events = self.base / "events"
        self._events.mkdir(parents=True)
        _unpack(self._unpacked)
        self._days = sorted(self._unpacked.glob("flights-*.json"))

    @property
    def output(self) -> Path:
        return self.base / "out"

    @property
    def released(self) -> int:
        return self._released

    def release(self, days: int) -> None:
        for file in self._days[self._released : self._released + days]:
            (self._events / file.name).hardlink_to(file)
            self._released += 1

    def write(self, version: Version) -> Path:
        """Write the job file of a version and return its path."""
        code = (EXAMPLE / "flights.py").read_text() + CODE.format(weight=version.weight)
        (self.base / "flights.py").write_text(code)
        document = copy.deepcopy(_DOCUMENT)
        document["parallelism"] = version.parallelism
        document["params"] = {"version": f"{version.number:03}", "factor": version.factor}
        document["vertices"]["flights"]["source"]["path"] = str(self._events)
        document["vertices"]["sums"] = {
            "inputs": [{"id": "weighed", "exchange": self.exchange}],
            "sql": SQL % {"literal": version.literal},
        }
        document["vertices"]["out"]["sink"]["path"] = str(self.output)
        return write_job(self.base / "job.yaml", document)

    def batch(self, versions: Sequence[Version]) -> Rows:
        """Return the expected rows, computed by pandas. `versions`: which version counted the flights of each file."""
        days = []
        for file, version in zip(self._days, versions, strict=False):
            flights = pd.read_json(file, lines=True)
            flights = flights[flights["dep_delay"].notna()]
            seconds = (pd.to_datetime(flights["time"]) - pd.Timestamp(0, tz="UTC")) // pd.Timedelta(seconds=1)
            days.append(
                pd.DataFrame(
                    {
                        "since": seconds // WINDOW * WINDOW,
                        "carrier": flights["carrier"],
                        "flights": 1,
                        "late": (flights["dep_delay"] >= 15).astype(int),
                        "by_param": flights["distance"] * version.factor,
                        "by_sql": flights["distance"] * version.literal,
                        "by_code": flights["distance"] * version.weight,
                    }
                )
            )
        sums = pd.concat(days).groupby(["since", "carrier"], as_index=False).sum()
        return sorted(sums[COLUMNS].itertuples(index=False, name=None))

    def result(self) -> Rows:
        """Return what any reader of the output sees, each row as often as it occurs."""
        found = self._read()
        return sorted((int(row["since"].timestamp()), *(row[name] for name in COLUMNS[1:])) for row in found)

    def writers(self) -> list[str]:
        """Return the version that wrote each row, in the order of the windows."""
        return [row["version"] for row in sorted(self._read(), key=lambda row: row["since"])]

    def applications(self) -> set[str]:
        """Return the Spark applications that have counted flights."""
        return {row[name] for row in self._read() for name in ("application", "last_application")}

    def _read(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = pyarrow.dataset.dataset(self.output, format="parquet").to_table().to_pylist()
        return rows


_DOCUMENT: dict[str, Any] = {
    "name": "flights",
    "checkpointing": {"interval": "1 s", "num-retained": 20},
    "artifacts": ["flights.py"],
    "vertices": {
        "flights": {
            "source": {
                "format": "json",
                "schema": "carrier STRING, origin STRING, time TIMESTAMP, dep_delay DOUBLE, distance LONG",
                "options": {"maxFilesPerTrigger": 1},
            },
            "watermark": {"column": "time", "delay": "1 day"},
        },
        "weighed": {"inputs": ["flights"], "python": "flights:weighed"},
        "sums": {},
        "out": {"inputs": ["sums"], "sink": {"format": "parquet", "delivery": "exactly-once"}},
    },
}


def _unpack(directory: Path) -> None:
    """Unpack the flights with the demo's own script."""
    spec = importlib.util.spec_from_file_location("unpack", EXAMPLE / "unpack.py")
    assert spec is not None
    assert spec.loader is not None
    unpack = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(unpack)
    unpack.unpack(directory)
