"""What a shape writes, and what any reader of it sees."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.csv
import pyarrow.dataset
import pyarrow.parquet

from minflinkd.jobgraph import model
from tests.lakes import LOGS, REPLACING, Delta, read_iceberg
from tests.shapes.rows import COLUMNS, SECOND, Row

FILES = ("parquet", "json", "csv", "orc")
TABLES = ("delta", "iceberg")
LINES = "SELECT to_json(named_struct('id', id, 'k', k, 'ts', unix_micros(ts), 'v', v)) AS value FROM {rows}"

SINK = '''
class Files:
    """A sink that takes part in checkpoints: a file for each micro-batch, which a commit renames."""

    def __init__(self, context):
        self.context = context
        self.base = Path(context.params["output"]) / context.sink
        self.staging = self.base / "_staged"
        self.staging.mkdir(parents=True, exist_ok=True)

    def stage(self, batch, epoch):
        rows = batch.selectExpr("id", "k", "unix_micros(ts) AS ts", "v").collect()
        name = f"{self.context.attempt_id}-{epoch}-{uuid.uuid4().hex}.json"
        (self.staging / name).write_text("".join(json.dumps(row.asDict()) + "\\n" for row in rows))
        return {"name": name}

    def commit(self, checkpoint_id, tokens):
        for token in tokens:
            if (staged := self.staging / token["name"]).exists():
                staged.rename(self.base / ("part-" + token["name"]))

    def abort(self, tokens):
        wanted = None if tokens is None else {token["name"] for token in tokens}
        for staged in self.staging.iterdir():
            if wanted is None or staged.name in wanted:
                staged.unlink(missing_ok=True)
'''


@dataclass(frozen=True)
class Sink:
    """A sink. `mode` None is append; `update` and `complete` are only for `Totals` and python sinks."""

    id: str
    input: str
    format: str  # one of FILES or TABLES, text (a line of JSON a row), console (not compared), or python
    partitioned: bool = False
    mode: str | None = None
    exchange: bool = False
    compacted: bool = False

    @property
    def name(self) -> str:
        mode = f" {self.mode}" if self.mode else ""
        return f"Sink {self.format}{mode}{' partitioned' * self.partitioned}{' compacted' * self.compacted}"

    def vertices(self, version: int = 1) -> dict[str, Any]:
        """The sink, and what makes texts of rows for one that takes texts."""
        edge: Any = {"id": self.input, "exchange": True} if self.exchange else self.input
        if self.exchange and self.mode:
            edge["output-mode"] = self.mode
        made: dict[str, Any] = {}
        if self.format == "text":
            made[f"{self.id}_lines"] = {"inputs": [edge], "sql": LINES.format(rows=self.input)}
            edge = f"{self.id}_lines"
        return made | {self.id: self._vertex(edge, version)}

    def _vertex(self, edge: Any, version: int) -> dict[str, Any]:
        found: dict[str, Any] = {"inputs": [edge]}
        if self.format == "python":
            found["sink"] = {"python": "shape:Files", "delivery": "exactly-once"}
        elif self.format == "console":
            found["sink"] = {"format": "console", "options": {"numRows": 3}}
        elif self.format == "iceberg":
            found["sink"] = {"format": "iceberg", "options": self._table("${output}")}
        else:
            found["sink"] = {"format": self.format, "path": f"${{output}}/{self.id}"}
        if self.is_keyed:
            found["sink"]["options"] = found["sink"].get("options", {}) | {"key": "k"}
        if self.partitioned:
            found["sink"]["partition-by"] = ["k"]
        if self.format == "iceberg" and self.compacted == (version == 1):  # the next version changes it
            found["sink"]["compaction"] = {"target": "1 MiB", "every": "2 s"}
        if self.mode is not None:
            found["output-mode"] = self.mode
        return found

    def _table(self, output: str) -> dict[str, str]:
        """Options of an Iceberg table, with a catalog of its own beside the directory of the output."""
        catalog = {"type": "sql", "uri": f"sqlite:///{output}.{self.id}.db", "warehouse": f"file://{output}"}
        return {"table": f"tables.{self.id}"} | {f"catalog.{name}": value for name, value in catalog.items()}

    @property
    def is_keyed(self) -> bool:
        """Whether a row replaces the one with the same `k`."""
        return self.format in TABLES and self.mode is not None

    def wanted(self, rows: Sequence[Row]) -> Counter[Row]:
        return Counter(_coarse(r) for r in rows)

    @property
    def is_compared(self) -> bool:
        return self.format != "console"

    @property
    def is_of_files(self) -> bool:
        return self.format in (*FILES, "text")

    def found(self, output: Path) -> Counter[Row]:
        rows = self._read_table(output) if self.format in TABLES else self._read(output / self.id)
        if self.mode in ("update", "complete") and not self.is_keyed:  # the last change of each key
            last: dict[str, Row] = {}
            for row in rows:
                last[row.k] = max(row, last.get(row.k, row))
            rows = list(last.values())
        return Counter(_coarse(r) for r in rows)

    def _read_table(self, output: Path) -> list[Row]:
        return [Row(r["id"], r["k"], _micros(r["ts"]), r["v"]) for r in self._rows_of_table(output)]

    def _rows_of_table(self, output: Path) -> list[dict[str, Any]]:
        """Return the rows, none if no row has made the table."""
        if self.format == "delta":
            return Delta(output).rows(self.id) if (output / self.id).exists() else []
        there = Path(f"{output}.{self.id}.db").exists()
        return read_iceberg(model.Sink(format="iceberg", options=self._table(str(output)))) if there else []

    def _read(self, directory: Path) -> list[Row]:
        if self.format == "python":
            lines = (line for file in sorted(directory.glob("part-*")) for line in file.read_text().splitlines())
            return [Row(**json.loads(line)) for line in lines]
        if not directory.exists():
            return []
        if self.format == "text":
            files = [path for path in directory.rglob("part-*") if path.is_file()]
            return [Row(**json.loads(line)) for file in files for line in file.read_text().splitlines()]
        options: dict[str, Any] = {"format": self.format, "partitioning": "hive" if self.partitioned else None}
        if self.format == "csv":
            names = [name for name in COLUMNS if name != "k" or not self.partitioned]
            reading = pyarrow.csv.ReadOptions(column_names=names)
            options["format"] = pyarrow.dataset.CsvFileFormat(read_options=reading)
        files = [path for path in directory.rglob("part-*") if path.stat().st_size]
        if not files:
            return []
        found = pyarrow.dataset.dataset(directory, exclude_invalid_files=True, **options).to_table().to_pylist()
        return [Row(r["id"], r["k"], _micros(r["ts"]), r["v"]) for r in found]


@dataclass(frozen=True)
class BadRecords(Sink):
    """Gets the rows that a vertex rejects. `input`: the vertex. `format`: json, text, parquet, delta or iceberg."""

    def _vertex(self, edge: Any, version: int) -> dict[str, Any]:
        return {"sink": super()._vertex(edge, version)["sink"]}

    def found(self, output: Path) -> Counter[Row]:
        found = [json.loads(record) for record in self._records(output)]
        return Counter(_coarse(Row(r["id"], r["k"], _micros(r["ts"]), r["v"])) for r in found)

    def vertices(self, version: int = 1) -> dict[str, Any]:
        return {self.id: self._vertex(self.input, version)}

    def _records(self, output: Path) -> list[str]:
        if self.format in TABLES:
            return [row["record"] for row in self._rows_of_table(output)]
        files = [path for path in (output / self.id).rglob("part-*") if path.stat().st_size]
        if self.format == "parquet":
            return [row["record"] for file in files for row in pyarrow.parquet.read_table(file).to_pylist()]
        return [json.loads(line)["record"] for file in files for line in file.read_text().splitlines()]


def leftovers(output: Path) -> list[str]:
    """Return the staged and temporary files that are still there."""
    found = (path for path in output.rglob("*") if path.is_file() and not path.name.startswith("part-"))
    found = (path for path in found if not REPLACING.fullmatch(path.name))
    return [str(path.relative_to(output)) for path in found if not LOGS & {*path.parts}]


def differences(found: Counter[Row], wanted: Counter[Row]) -> str:
    """Return "" if the two are equal, or how many rows are missing or surplus, with some of them."""
    told = []
    for what, rows in (("missing", wanted - found), ("surplus", found - wanted)):
        if rows:
            some = "; ".join(f"{count} x {tuple(row)}" for row, count in sorted(rows.items())[:3])
            told.append(f"{rows.total()} of {wanted.total()} rows {what}, such as {some}")
    return ", ".join(told)


def total(rows: Iterable[Counter[Row]]) -> int:
    return sum(counted.total() for counted in rows)


def _coarse(row: Row) -> Row:
    """Cut the time to milliseconds: text formats write no more."""
    return row._replace(ts=row.ts // 1000)


def _micros(value: Any) -> int:
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if value.tzinfo is None:
        value = value.replace(tzinfo=UTC)
    return int(value.timestamp()) * SECOND + value.microsecond
