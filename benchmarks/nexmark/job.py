"""The jobs of examples/nexmark on the benchmark's events: as jobs of minflinkd, and as streams of plain PySpark.

A job keeps its query. Its sources become views of one stream of events, as Nexmark has them, and its sink drops the
rows. Where an exchange only makes every change of a result visible in files, it is left out, and the query runs in
update mode. Query 4 needs its exchange, since Spark has no aggregate that updates over another one; plain PySpark
cannot run it.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from ruamel.yaml import YAML

from benchmarks.nexmark.events import SCHEMA

EXAMPLE = Path(__file__).parents[2] / "examples/nexmark"
QUERIES = sorted((file.stem for file in EXAMPLE.glob("q*.yaml")), key=lambda name: int(name[1:]))
IN_TWO_TASKS = ("q4",)
VIEWS = {
    "person": "SELECT person.*, dateTime FROM events WHERE kind = 0",
    "auction": "SELECT auction.*, dateTime FROM events WHERE kind = 1",
    "bid": "SELECT bid.*, dateTime FROM events WHERE kind = 2",
}

Document = dict[str, Any]


def document(query: str, load: Path, *, parallelism: int) -> Document:
    """Return the job file. It reads `load/events`, one file a micro-batch, and never ends."""
    found: Document = YAML(typ="safe").load(EXAMPLE / f"{query}.yaml")
    vertices, mode, late = dict[str, Any](), "append", dict[str, Any]()
    for name, vertex in found["vertices"].items():
        if "source" in vertex:
            vertices[name] = {"inputs": ["events"], "sql": VIEWS[name]}
            late |= {key: vertex[key] for key in ("watermark",) if key in vertex}
            continue
        if query not in IN_TWO_TASKS:
            mode = next((edge["output-mode"] for edge in vertex["inputs"] if "output-mode" in edge), mode)
            vertex = vertex | {"inputs": [edge if isinstance(edge, str) else edge["id"] for edge in vertex["inputs"]]}
        if "sink" in vertex:
            vertex = vertex | {"sink": {"format": "noop"}}
            vertex |= {"output-mode": mode} if query not in IN_TWO_TASKS else {}
        vertices[name] = vertex
    source = {"format": "json", "path": str(load / "events"), "schema": SCHEMA, "options": {"maxFilesPerTrigger": 1}}
    return {
        "name": found["name"],
        "parallelism": parallelism,
        "params": {"input": str(load)},
        "checkpointing": {"interval": "10 s"},
        "artifacts": [str(EXAMPLE / name) for name in found.get("artifacts", ())],
        "vertices": {"events": {"source": source, **late}, **vertices},
    }


def stream(job: Document, spark: SparkSession) -> tuple[DataFrame, str]:
    """Return the job's query as a stream of plain PySpark, with its output mode."""
    frames: dict[str, DataFrame] = {}
    for name, vertex in job["vertices"].items():  # each comes after what it reads
        if "sink" in vertex:
            (last,) = vertex["inputs"]
            return frames[last], vertex["output-mode"]
        if "source" in vertex:
            source = vertex["source"]
            reader = spark.readStream.format(source["format"]).schema(source["schema"]).options(**source["options"])
            frames[name] = reader.load(source["path"])
        elif "sql" in vertex:
            frames[name] = spark.sql(vertex["sql"])
        else:
            module, _, function = vertex["python"].partition(":")
            inputs = {each: frames[each] for each in vertex["inputs"]}
            frames[name] = getattr(importlib.import_module(module), function)(inputs, job["params"])
        if (late := vertex.get("watermark")) is not None:
            frames[name] = frames[name].withWatermark(late["column"], late["delay"])
        frames[name].createOrReplaceTempView(name)
    raise ValueError(f"{job['name']} has no sink")


def bring_code(spark: SparkSession) -> None:
    """Let this process and its Python workers import the code of the jobs."""
    sys.path.append(str(EXAMPLE))
    spark.sparkContext.addPyFile(str(EXAMPLE / "nexmark.py"))
