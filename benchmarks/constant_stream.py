"""A query with constant input and state of a given size, the same for all sides of a comparison.

Spark's own `rate-micro-batch` source gives every micro-batch ten rows, as fast as they are requested. The rows of the
first one cover all keys and so create the state: 1 KiB per key, incompressible. Every later one changes ten keys. The
output mode is update: the sink gets the ten changed rows, with the version of the query that counted them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import batch_files
from tests.cluster import write_job

ROWS = 10  # per micro-batch
KEY = 1024  # bytes of state per key
SOURCE = "rate-micro-batch"
_PIECES = ", ".join(f"unhex(sha2(concat(id, '-{i}'), 512))" for i in range(KEY // 64))


@dataclass(frozen=True)
class ConstantStream:
    """`megabytes` is the size of the state; 0: ten keys."""

    base: Path
    megabytes: int = 0

    @property
    def output(self) -> Path:
        return self.base / "out"

    @property
    def options(self) -> dict[str, str]:
        return {"rowsPerBatch": str(ROWS), "numPartitions": "2", "startTimestamp": "1700000000000"}

    @property
    def _keys_a_row(self) -> int:
        """Keys for each row of the first micro-batch."""
        return max(1, round(self.megabytes * 1_000_000 / KEY / ROWS))

    def sql(self, version: str) -> str:
        """Return the SQL. A new version of the query differs in `version` only."""
        many = self._keys_a_row
        return f"""
SELECT id, '{version}' AS version, length(max(payload)) AS size, count(*) AS n
FROM (SELECT id, concat({_PIECES}) AS payload
      FROM (SELECT explode(CASE WHEN value < {ROWS} THEN sequence(value * {many}, (value + 1) * {many} - 1)
                                ELSE array(value % {many * ROWS}) END) AS id FROM events))
GROUP BY id
"""

    def write(self, version: str, partitions: int, *, interval: str, highest: int | None = None) -> Path:
        """Write the job file of a version. `highest`: its max-parallelism."""
        self.base.mkdir(parents=True, exist_ok=True)
        document: dict[str, Any] = {
            "name": f"constant stream, {self.megabytes} MB",
            "parallelism": partitions,
            **({"max-parallelism": highest} if highest is not None else {}),
            "params": {"version": version, "output": str(self.output)},
            "checkpointing": {"interval": interval},
            "artifacts": [{"name": "batch_files.py", "path": batch_files.__file__}],
            "vertices": {
                "events": {"source": {"format": SOURCE, "options": self.options}},
                "counts": {"inputs": ["events"], "sql": self.sql("${version}")},
                "out": {
                    "inputs": ["counts"],
                    "output-mode": "update",
                    "sink": {"python": "batch_files:BatchFiles", "delivery": "exactly-once"},
                },
            },
        }
        return write_job(self.base / "job.yaml", document)

    def is_seen(self, version: str) -> bool:
        return bool(self._shown(version))

    def visible_gap(self, old: str, new: str) -> float:
        """Return the seconds from the last visible rows of one version to the first of the next."""
        return min(self._shown(new)) - max(self._shown(old))

    def visible_gap_at(self, version: str, moment: float) -> float:
        """Return the seconds between the rows that became visible last before a moment and first after it."""
        shown = self._shown(version)
        return min(at for at in shown if at > moment) - max(at for at in shown if at <= moment)

    def _shown(self, version: str) -> list[float]:
        """Return when the files became visible: the last change of a file is its rename."""
        return [file.stat().st_ctime for file in self.output.glob(f"{version}-*")]

    def to_json(self) -> str:
        return json.dumps({"base": str(self.base), "megabytes": self.megabytes})

    @classmethod
    def from_json(cls, text: str) -> ConstantStream:
        found = json.loads(text)
        return cls(Path(found["base"]), found["megabytes"])
