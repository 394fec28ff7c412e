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
from minflinkd.jobgraph.places import file_name
from minflinkd.jobgraph.validation import parse_job

Options = Mapping[str, str | int | float | bool]


@dataclass(frozen=True)
class SinkContext:
    """What the class of an exactly-once python sink is made with, once per attempt.

    `job_id` and `sink` (the vertex's id) stay the same. `attempt_id` differs after each restart.
    """

    job_id: str
    sink: str
    attempt_id: str
    params: Mapping[str, Any]


class VertexSettings(TypedDict, total=False):
    """Settings that every vertex may have, besides what it does."""

    parallelism: int
    slot_sharing_group: str
    watermark: tuple[str, str]  # column, delay: how late rows may come
    on_bad_record: str | Mapping[str, str]  # `fail`, `drop`, or `{"to": "bad"}`: a sink that `add` has added


class JobSettings(TypedDict, total=False):
    """The settings of a job file, with `_` for `-`. Durations are numbers of seconds, or texts such as `5 s`."""

    params: Mapping[str, Any]
    parallelism: int
    max_parallelism: int
    min_parallelism: int
    mode: str
    input_range: Mapping[str, Any]
    checkpointing: Mapping[str, Any]
    restart_strategy: Mapping[str, Any]
    restore: Mapping[str, Any]
    isolation: str
    recovery: str
    execution: str
    spark: Options
    trigger_interval: float | str
    autoscaler: Mapping[str, Any]
    resources: Mapping[str, float | str]  # of each slot: {"memory": "2 GB", "gpu": 1}
    slot_sharing_groups: Mapping[str, Mapping[str, Mapping[str, float | str]]]  # {"heavy": {"resources": {...}}}


class Stream:
    """The output of a vertex, which others take as input."""

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
        compaction: Mapping[str, str] | None = None,
        python: str | None = None,
        output_mode: str | None = None,
        parallelism: int | None = None,
    ) -> None:
        """Write the stream to files, tables, kafka, jdbc, console or collect, or to what `python` names."""
        sink = {"format": format, "path": path, "delivery": delivery, "options": options, "python": python}
        more = {"compaction": compaction, "partition-by": list(partition_by) or None}
        vertex = {"inputs": [self.id], "sink": {**sink, **more}}
        self._job.add(id, vertex | {"output-mode": output_mode, "parallelism": parallelism})


class Job:
    """A job under construction. Nothing is checked before `graph()`, which then reports every fault at once."""

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
        """Add one SQL query. Every input is a view named by its id."""
        return self.add(id, {"sql": query, "inputs": [stream.id for stream in inputs]}, **settings)

    def python(
        self, id: str, reference: str, *, inputs: Sequence[Stream], **settings: Unpack[VertexSettings]
    ) -> Stream:
        """Add the function `reference` (`module:function`). It is called with the inputs and the job's params."""
        return self.add(id, {"python": reference, "inputs": [stream.id for stream in inputs]}, **settings)

    def add(self, id: str, vertex: Mapping[str, Any], **settings: Unpack[VertexSettings]) -> Stream:
        """Add any vertex, in the form that it has in a job file."""
        more: dict[str, Any] = {key.replace("_", "-"): value for key, value in settings.items()}
        if "watermark" in settings:
            more["watermark"] = dict(zip(("column", "delay"), settings["watermark"], strict=True))
        self._vertices.append({"id": id, **vertex, **more})
        return Stream(self, id)

    def artifact(self, path: str | Path) -> None:
        """Add a file of user code (.py, .zip, .whl), by its path or a URL. It is uploaded with the job."""
        self._artifacts.append({"name": file_name(str(path)), "path": str(path)})

    def document(self) -> dict[str, Any]:
        """Return the job in the form that it has in a job file."""
        return {**self._settings, "vertices": self._vertices, "artifacts": self._artifacts}

    def graph(self, *, base: Path | None = None) -> JobGraph:
        """Return the JobGraph. Raises InvalidJobGraph with every fault. With `base`, artifacts are looked up there."""
        return parse_job(self.document(), base=base)

    def to_json(self) -> str:
        """Return the job as JSON: a job file, and the content of a submission. Raises InvalidJobGraph."""
        return encode(self.graph()).decode()
