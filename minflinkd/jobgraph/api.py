"""Jobs in Python instead of YAML: the same document, the same validation, the same JobGraph.

job = Job("carrier-delays", parallelism=2, params={"minutes": 60})
flights = job.source("flights", format="json", path="/data/flights", schema="carrier STRING, time TIMESTAMP",
                     watermark=("time", "2 hours"))
delays = job.sql("delays", "SELECT window(time, '${minutes} minutes') AS w, count(*) AS n FROM flights GROUP BY 1",
                 inputs=[flights])
delays.sink("out", format="parquet", path="/data/out")
job.graph()
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, Unpack

from minflinkd.jobgraph.model import JobGraph, encode
from minflinkd.jobgraph.validation import parse_job

Options = Mapping[str, str | int | float | bool]


@dataclass(frozen=True)
class SinkContext:
    """What the class of an exactly-once python sink is made with, once an attempt.

    `job_id` and `sink` (the vertex's id) stay, `attempt_id` is another one after each restart.
    """

    job_id: str
    sink: str
    attempt_id: str
    params: Mapping[str, Any]


class VertexSettings(TypedDict, total=False):
    """What every vertex may have beside what it does."""

    parallelism: int
    slot_sharing_group: str
    watermark: tuple[str, str]  # column, delay: rows may come that late


class JobSettings(TypedDict, total=False):
    """The settings of a job file, with `_` for `-`; durations are numbers of seconds or texts such as `5 s`."""

    params: Mapping[str, Any]
    parallelism: int
    max_parallelism: int
    min_parallelism: int
    mode: str
    checkpointing: Mapping[str, Any]
    restart_strategy: Mapping[str, Any]
    restore: Mapping[str, Any]
    isolation: str
    spark: Options
    trigger_interval: float | str


class Stream:
    """What a vertex yields: the input of others."""

    def __init__(self, job: Job, vertex_id: str) -> None:
        self._job = job
        self.id = vertex_id

    def sink(
        self,
        id: str,
        *,
        format: str | None = None,
        path: str | None = None,
        partition_by: Sequence[str] = (),
        delivery: str | None = None,
        options: Options | None = None,
        python: str | None = None,
        output_mode: str | None = None,
        parallelism: int | None = None,
    ) -> None:
        """Write the stream: files, kafka, jdbc, console, collect by `format`, or what `python` names."""
        sink = {"format": format, "path": path, "delivery": delivery, "options": options, "python": python}
        vertex = {"inputs": [self.id], "sink": sink | {"partition-by": list(partition_by) or None}}
        self._job.add(id, vertex | {"output-mode": output_mode, "parallelism": parallelism})


class Job:
    """A job under construction. Nothing is checked before `graph()`, which then names every fault at once."""

    def __init__(self, name: str, **settings: Unpack[JobSettings]) -> None:
        self._settings = {"name": name} | {key.replace("_", "-"): value for key, value in settings.items()}
        self._vertices: list[dict[str, Any]] = []
        self._artifacts: list[dict[str, str]] = []

    def source(
        self,
        id: str,
        *,
        format: str | None = None,
        path: str | None = None,
        schema: str | None = None,
        options: Options | None = None,
        python: str | None = None,
        **settings: Unpack[VertexSettings],
    ) -> Stream:
        """Read any format of Spark's `readStream`, or what the function `python` (`module:function`) returns."""
        source = {"format": format, "path": path, "schema": schema, "options": options, "python": python}
        return self.add(id, {"source": source}, **settings)

    def sql(self, id: str, query: str, *, inputs: Sequence[Stream], **settings: Unpack[VertexSettings]) -> Stream:
        """One SQL query, in which every input is a view named by its id."""
        return self.add(id, {"sql": query, "inputs": [stream.id for stream in inputs]}, **settings)

    def python(
        self, id: str, reference: str, *, inputs: Sequence[Stream], **settings: Unpack[VertexSettings]
    ) -> Stream:
        """The function `reference` (`module:function`), called with the inputs and the job's params."""
        return self.add(id, {"python": reference, "inputs": [stream.id for stream in inputs]}, **settings)

    def add(self, id: str, vertex: Mapping[str, Any], **settings: Unpack[VertexSettings]) -> Stream:
        """Any vertex, as a job file would have it."""
        more: dict[str, Any] = {key.replace("_", "-"): value for key, value in settings.items()}
        if "watermark" in settings:
            more["watermark"] = dict(zip(("column", "delay"), settings["watermark"], strict=True))
        self._vertices.append({"id": id, **vertex, **more})
        return Stream(self, id)

    def artifact(self, path: str | Path) -> None:
        """A file of user code (.py, .zip, .whl), uploaded with the job."""
        self._artifacts.append({"name": Path(path).name, "path": str(path)})

    def document(self) -> dict[str, Any]:
        """The job as a job file would have it."""
        return {**self._settings, "vertices": self._vertices, "artifacts": self._artifacts}

    def graph(self, *, base: Path | None = None) -> JobGraph:
        """The JobGraph. Raises InvalidJobGraph with every fault; artifacts are looked up where `base` is given."""
        return parse_job(self.document(), base=base)

    def to_json(self) -> str:
        """The job as JSON: a job file, and what a submission carries. Raises InvalidJobGraph."""
        return encode(self.graph()).decode()
