"""Tables of Delta Lake and Iceberg for tests, with readers of their own as far as possible."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet

from minflinkd.jobgraph.model import Sink
from tests.servers.s3 import ACCESS_KEY, BUCKET, REGION, SECRET_KEY

Row = dict[str, Any]
# Files that replace others in an Iceberg table, as pyiceberg names them. One that no snapshot has is not left over: an
# older snapshot had it, or a commit that died.
REPLACING = re.compile(r"\d{5}-\d+-[0-9a-f-]{36}\.parquet")
LOGS = frozenset({"manifests", "_delta_log", "metadata"})  # directories that say what files and tables were published


class Lake(ABC):
    """Where tables are, and how they are named and read. `address`: of a server that speaks S3; None: a local disk."""

    def __init__(self, directory: Path, address: str | None = None) -> None:
        self.directory = directory
        self.address = address
        directory.mkdir(parents=True, exist_ok=True)

    def sink(self, table: str, *, partition_by: Sequence[str] = (), **options: str) -> Sink:
        written = self.described(table)
        return Sink(
            format=written["format"],
            path=written.get("path"),
            partition_by=tuple(partition_by),
            options=written.get("options", {}) | options,
        )

    @abstractmethod
    def described(self, table: str) -> dict[str, Any]:
        """Return the sink as a job file has it."""

    @abstractmethod
    def rows(self, table: str) -> list[Row]:
        """Return all rows that readers see."""

    def values(self, table: str, column: str = "value") -> list[Any]:
        return sorted(row[column] for row in self.rows(table))

    @property
    def files(self) -> pyarrow.fs.FileSystem:
        if self.address is None:
            return pyarrow.fs.LocalFileSystem()
        host = self.address.removeprefix("http://")
        return pyarrow.fs.S3FileSystem(
            access_key=ACCESS_KEY, secret_key=SECRET_KEY, region=REGION, endpoint_override=host, scheme="http"
        )

    def data_files(self, table: str) -> set[str]:
        """Return the paths of all files of rows in the table's directory, also of those that nobody sees."""
        below = pyarrow.fs.FileSelector(self.root(table), recursive=True, allow_not_found=True)
        found = self.files.get_file_info(below)
        return {each.path for each in found if each.path.endswith(".parquet") and "/_delta_log/" not in each.path}

    def root(self, table: str) -> str:
        return f"{self.directory}/{table}" if self.address is None else f"{BUCKET}/{self.directory.name}/{table}"


class Delta(Lake):
    def described(self, table: str) -> dict[str, Any]:
        if self.address is None:
            return {"format": "delta", "path": self.root(table)}
        options = {
            "AWS_ENDPOINT_URL": self.address,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": REGION,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        }
        return {"format": "delta", "path": f"s3://{self.root(table)}", "options": options}

    def rows(self, table: str) -> list[Row]:
        log = self.log(table)
        return [
            {name: convert(log.types, name, value) for name, value in (row | add["partitionValues"]).items()}
            for path, add in log.files.items()
            for row in self._read(f"{self.root(table)}/{path}", add)
        ]

    def _read(self, path: str, add: Mapping[str, Any]) -> list[Row]:
        with self.files.open_input_file(path) as file:
            found = pa.parquet.read_table(file).to_pylist()
        assert len(found) == json.loads(add["stats"])["numRecords"]
        return found

    def log(self, table: str) -> DeltaLog:
        """Read the log as its protocol says, without the library. Not for a hundred commits: they have a checkpoint."""
        log = DeltaLog()
        selector = pyarrow.fs.FileSelector(f"{self.root(table)}/_delta_log", allow_not_found=True)
        for info in sorted(self.files.get_file_info(selector), key=lambda info: info.path):
            if info.path.endswith(".json") and not info.path.endswith("_last_checkpoint"):
                with self.files.open_input_stream(info.path) as file:
                    log.play(map(json.loads, file.read().decode().splitlines()))
        return log


@dataclass
class DeltaLog:
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    types: dict[str, Any] = field(default_factory=dict)
    commits: list[dict[str, Any]] = field(default_factory=list)

    def play(self, actions: Any) -> None:
        for action in actions:
            if (add := action.get("add")) is not None:
                assert add["path"] not in self.files, "a file was added twice"
                self.files[unquote(add["path"])] = add
            if (remove := action.get("remove")) is not None:
                self.files.pop(unquote(remove["path"]), None)
            if (metadata := action.get("metaData")) is not None:
                self.types = {each["name"]: each["type"] for each in json.loads(metadata["schemaString"])["fields"]}
            if (info := action.get("commitInfo")) is not None:
                self.commits.append(info)


def convert(types: Mapping[str, Any], name: str, value: Any) -> Any:
    """Return a value as it is; the text of a partition as what it stands for."""
    return int(value) if isinstance(value, str) and types.get(name) in ("long", "integer") else value


class Iceberg(Lake):
    """Has a catalog in SQLite."""

    def described(self, table: str) -> dict[str, Any]:
        return {
            "format": "iceberg",
            "options": {"catalog": "lake", "table": f"db.{table}"}
            | {f"catalog.{name}": value for name, value in self.settings.items()},
        }

    @property
    def settings(self) -> dict[str, str]:
        catalog = {"type": "sql", "uri": f"sqlite:///{self.directory}/catalog.db"}
        if self.address is None:
            return catalog | {"warehouse": f"file://{self.directory}"}
        return catalog | {
            "warehouse": f"s3://{BUCKET}/{self.directory.name}",
            "s3.endpoint": self.address,
            "s3.region": REGION,
            "s3.access-key-id": ACCESS_KEY,
            "s3.secret-access-key": SECRET_KEY,
        }

    def root(self, table: str) -> str:
        return super().root(f"db/{table}")

    def catalog(self) -> Any:
        from pyiceberg.catalog import load_catalog  # it takes a second

        return load_catalog("lake", **self.settings)

    def table(self, table: str) -> Any:
        return open_iceberg(Sink(**self.described(table)))

    def rows(self, table: str) -> list[Row]:
        return read_iceberg(Sink(**self.described(table)))


def open_iceberg(sink: Sink) -> Any:
    """Return the table that a sink names."""
    from pyiceberg.catalog import load_catalog  # it takes a second

    settings = {name.removeprefix("catalog."): text for name, text in sink.options.items() if "catalog." in name}
    return load_catalog(sink.options.get("catalog", "default"), **settings).load_table(sink.options["table"])


def read_iceberg(sink: Sink) -> list[Row]:
    return list(open_iceberg(sink).scan().to_arrow().to_pylist())
