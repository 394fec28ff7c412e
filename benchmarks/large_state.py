"""A job with state of a given size: one incompressible row of 1 KiB per key.

An event file names ranges of keys. A file with all keys creates or rewrites the state; one with a few of them is an
ordinary micro-batch. All events are in one hour of event time, which never ends, so the sink gets nothing.
"""

from __future__ import annotations

import json
import os
import random
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster import write_job

ROW = 1024  # bytes of state per key
SMALL = 10  # keys of an ordinary micro-batch
PLACES = 20  # places that `change` spreads over
_PIECES = ", ".join(f"unhex(sha2(concat(id, '-', salt, '-{i}'), 512))" for i in range(ROW // 64))
SQL = f"""
SELECT window(time, '1 hour').start AS hour, id, max(payload) AS payload, count(*) AS n
FROM (SELECT time, id, concat({_PIECES}) AS payload
      FROM (SELECT time, explode(sequence(first, first + keys - 1)) AS id, salt FROM loads))
GROUP BY window(time, '1 hour'), id
"""
TIME = "2023-11-14T22:30:00Z"


@dataclass
class LargeState:
    """`partitions` is the state's number of partitions. Event file i becomes micro-batch i."""

    base: Path
    partitions: int = 2
    _files: int = 0
    _keys: int = SMALL
    _chance: random.Random = field(default_factory=lambda: random.Random(1))

    @property
    def _events(self) -> Path:
        return self.base / "events"

    def load(self, megabytes: float) -> int:
        """Grow the state to this size, or rewrite all of it. Returns the micro-batch."""
        self._keys = max(SMALL, round(megabytes * 1_000_000 / ROW))
        return self._event((0, self._keys))

    def step(self) -> int:
        """Change a few keys. Returns the micro-batch."""
        return self._event((self._files * SMALL % (self._keys - SMALL + 1), SMALL))

    def change(self, share: float) -> int:
        """Change this share of the state, in random places. Returns the micro-batch."""
        keys = max(1, round(self._keys * share / PLACES))
        return self._event(*((self._chance.randrange(self._keys - keys + 1), keys) for _ in range(PLACES)))

    def _event(self, *ranges: tuple[int, int]) -> int:
        self._events.mkdir(parents=True, exist_ok=True)
        number, self._files = self._files, self._files + 1
        staged = self._events / f"_{number:05d}.json"
        lines = [json.dumps({"time": TIME, "first": first, "keys": keys, "salt": number}) for first, keys in ranges]
        staged.write_text("\n".join(lines))
        os.utime(staged, (1_700_000_000 + number,) * 2)  # sets the order in which Spark reads them
        staged.rename(self._events / f"{number:05d}.json")
        return number

    def write(self, name: str, *, interval: str) -> Path:
        directory = self.base / "job"
        directory.mkdir(parents=True, exist_ok=True)
        schema = "time TIMESTAMP, first BIGINT, keys BIGINT, salt BIGINT"
        source = {"format": "json", "path": str(self._events), "schema": schema, "options": {"maxFilesPerTrigger": 1}}
        document = {
            "name": name,
            "parallelism": self.partitions,
            "checkpointing": {"interval": interval},
            "vertices": {
                "loads": {"source": source, "watermark": {"column": "time", "delay": "1 hour"}},
                "states": {"inputs": ["loads"], "sql": SQL},
                "out": {"inputs": ["states"], "sink": {"format": "parquet", "path": str(self.base / "out")}},
            },
        }
        return write_job(directory / "job.yaml", document)
