"""The rules for single vertices and settings, beyond their types: one function per rule.

Covers what can be checked without Spark and without the other vertices. `topology` checks the graph as a whole.
"""

from __future__ import annotations

import keyword
import re
from functools import partial
from pathlib import PurePath

from minflinkd.jobgraph import changes, delivery, formats, params, table_sinks
from minflinkd.jobgraph.bad_records import check_bad_records, senders
from minflinkd.jobgraph.faults import Faults, at, meant, nearest, show, vertex_path
from minflinkd.jobgraph.libraries import ARTIFACT_SUFFIXES, PROTECTED_MODULES
from minflinkd.jobgraph.model import (
    Artifact,
    CheckpointMode,
    Isolation,
    JobGraph,
    Recovery,
    Restore,
    RestoreMode,
    RuntimeMode,
    Sink,
    Source,
    Vertex,
)
from minflinkd.jobgraph.records import check_records
from minflinkd.jobgraph.resources import check_resources

_KINDS = ("source", "sql", "python", "sink")
_UNITS = "microsecond|millisecond|second|minute|hour|day|week|month|year"
_INTERVAL = re.compile(rf"\s*(interval\s+)?(\d+(\.\d+)?\s+({_UNITS})s?\s*)+", re.IGNORECASE)
_ABSOLUTE = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:/")


def check_job(graph: JobGraph, faults: Faults) -> None:
    """Check every rule for the job's settings and for each of its vertices."""
    _check_settings(graph, faults)
    _check_checkpointing(graph, faults)
    _check_artifacts(graph.artifacts, faults)
    _check_ids(graph, faults)
    check_resources(graph, faults)
    fed = senders(graph.vertices)
    for vertex in graph.vertices:
        _check_vertex(graph, vertex, faults)
        _check_inputs(vertex, vertex_path(vertex.id), faults, is_fed=vertex.id in fed)
    check_bad_records(graph, faults)
    if graph.script is not None:
        _check_reference(graph.script, "script", faults)
        if graph.vertices:
            faults.add("vertices", "a script defines the vertices itself", "leave one of the two out")


def _check_settings(graph: JobGraph, faults: Faults) -> None:
    if not graph.name.strip():
        faults.add("name", "the name is empty")
    if graph.max_parallelism is not None and graph.parallelism > graph.max_parallelism:
        faults.add("parallelism", f"{graph.parallelism} is more than max-parallelism, {graph.max_parallelism}")
    if graph.min_parallelism > graph.parallelism:
        faults.add("min-parallelism", f"{graph.min_parallelism} is more than parallelism, {graph.parallelism}")
    if graph.recovery is Recovery.HOT_STANDBY and graph.isolation is Isolation.JOB:
        problem = "a hot standby is a TaskManager for any job, and with `isolation: job` the job's code runs on none"
        faults.add("recovery", problem, "leave one of the two out")
    if graph.restore is not None:
        _check_restore(graph, graph.restore, faults)
    for name in graph.params:
        if not params.is_param_name(name):
            faults.add(at("params", name), f"{show(name)} is not a name", "a letter or _, then letters, digits, _ . -")
    for name in graph.spark:
        if (why := formats.refused_setting(name)) is not None:
            faults.add(at("spark", name), f"{show(name)} is not a setting of a job", why)


def _check_restore(graph: JobGraph, restore: Restore, faults: Faults) -> None:
    if isinstance(restore.offsets, str) and restore.offsets != "latest":
        faults.add("restore.offsets", f"{show(restore.offsets)} is not latest", "latest, or a mapping source -> offset")
    if restore.offsets is not None and restore.mode is RestoreMode.CLAIM:
        faults.add("restore.mode", "a start at offsets claims nothing", "leave the mode out")
    if isinstance(restore.offsets, dict):
        if restore.path is not None:
            faults.add("restore.path", "the offsets are given, so that nothing is read", "offsets: latest, or no path")
        sources = {vertex.id for vertex in graph.vertices if vertex.source is not None}
        for name in restore.offsets:
            if name.partition("#")[0] not in sources:
                hint = partial(meant, name, sources)
                faults.add(at("restore.offsets", name), f"there is no source {show(name)}", hint)
    elif restore.path is None:
        if not faults.touch("restore.path"):
            faults.add("restore.path", "path is missing", "of a savepoint, or of a checkpoint: <directory>/chk-<n>")
    elif not _ABSOLUTE.match(restore.path):
        faults.add("restore.path", f"{show(restore.path)} is not absolute", "/savepoints/savepoint-..., or a URI")


def _check_checkpointing(graph: JobGraph, faults: Faults) -> None:
    checkpointing = graph.checkpointing
    if checkpointing.timeout is not None and not checkpointing.timeout:
        faults.add("checkpointing.timeout", "no checkpoint completes within 0 s")
    if graph.mode is not RuntimeMode.STREAMING or checkpointing.interval is None or checkpointing.interval:
        return
    staged = any(delivery.stages(v.sink) for v in graph.vertices if v.sink is not None)
    if staged or checkpointing.mode is CheckpointMode.EXACTLY_ONCE:
        faults.add(
            "checkpointing.interval",
            "0 turns checkpoints off, and an exactly-once sink publishes with a checkpoint only",
            "an interval such as 5 s, or `mode: batch`, which makes one checkpoint at its end",
        )


def _check_artifacts(artifacts: tuple[Artifact, ...], faults: Faults) -> None:
    seen: set[str] = set()
    for i, artifact in enumerate(artifacts):
        path = at("artifacts", i)
        if artifact.name != PurePath(artifact.name).name or artifact.name in ("", "..") or "\0" in artifact.name:
            faults.add(path, f"{show(artifact.name)} is not a file name", "{name: flights.py, path: src/flights.py}")
        elif not artifact.name.endswith(ARTIFACT_SUFFIXES):
            problem = f"{show(artifact.name)} cannot be loaded into a running session"
            faults.add(path, problem, f"one of {', '.join(ARTIFACT_SUFFIXES)}")
        elif artifact.name.endswith(".py") and artifact.name.removesuffix(".py") in PROTECTED_MODULES:
            problem = f"{show(artifact.name)} has the name of a module that is never replaced, and would not be found"
            hint = "rename it: the standard library, pyspark, py4j and minflinkd keep their names to themselves"
            faults.add(path, problem, hint)
        if artifact.name in seen:
            faults.add(path, f"{show(artifact.name)} is the name of two artifacts", "give one of them another `name`")
        seen.add(artifact.name)
        if artifact.path is None and artifact.key is None:
            faults.add(path, "the artifact has neither a path nor a key", "`path`: where the file is")
        if artifact.size < 0:
            faults.add(at(path, "size"), f"{artifact.size} bytes")


def _check_ids(graph: JobGraph, faults: Faults) -> None:
    """SQL sees vertices as views, and the case of view names does not matter: `A` would be read for `a`."""
    seen: dict[str, str] = {}
    for vertex in graph.vertices:
        other = seen.setdefault(vertex.id.lower(), vertex.id)
        if other != vertex.id:
            problem = f"{vertex.id} and {other} differ in upper and lower case only, and are the same name in SQL"
            faults.add(vertex_path(vertex.id), problem, f"rename one of them: {vertex.id}_2, for example")


def _check_vertex(graph: JobGraph, vertex: Vertex, faults: Faults) -> None:
    path = vertex_path(vertex.id)
    given = [kind for kind in _KINDS if getattr(vertex, kind) is not None]
    if len(given) > 1:
        faults.add(path, f"the vertex is {' and '.join(given)} at once", f"one of {', '.join(_KINDS)} a vertex")
    elif not given and not any(faults.touch(at(path, kind)) for kind in _KINDS):
        faults.add(path, "the vertex does nothing", f"give it one of {', '.join(_KINDS)}")
    _check_parallelism(graph, vertex, path, faults)
    _check_params(graph, vertex, path, faults)
    if vertex.source is not None:
        _check_source(graph, vertex.source, at(path, "source"), faults)
    if vertex.sql is not None and not vertex.sql.strip():
        faults.add(at(path, "sql"), "the SQL is empty")
    if vertex.python is not None:
        _check_reference(vertex.python, at(path, "python"), faults)
    if vertex.sink is not None:
        _check_sink(graph, vertex.sink, at(path, "sink"), faults)
    _check_watermark(graph, vertex, path, faults)
    _check_output_mode(vertex, path, faults)


def _check_parallelism(graph: JobGraph, vertex: Vertex, path: str, faults: Faults) -> None:
    if vertex.parallelism is None:
        return
    if vertex.parallelism < 1:
        faults.add(at(path, "parallelism"), f"{show(vertex.parallelism)} is not a whole number, at least 1")
    elif graph.max_parallelism is not None and vertex.parallelism > graph.max_parallelism:
        problem = f"{show(vertex.parallelism)} is more than max-parallelism, {graph.max_parallelism}"
        faults.add(at(path, "parallelism"), problem)


def _check_inputs(vertex: Vertex, path: str, faults: Faults, *, is_fed: bool) -> None:
    """`is_fed`: it gets bad records, and needs no inputs."""
    inputs = at(path, "inputs")
    if vertex.kind == "source" and vertex.inputs:
        faults.add(inputs, "a source has no inputs", "make it a sql or python vertex, or leave the inputs out")
    elif vertex.kind in ("sql", "python") and not vertex.inputs and not faults.touch(inputs):
        faults.add(path, f"the {vertex.kind} vertex has no inputs", "inputs: [<ids of the vertices that it reads>]")
    elif vertex.kind == "sink" and not vertex.inputs and not is_fed and not faults.touch(inputs):
        faults.add(path, "the sink has no input", "inputs: [<id of the vertex that it writes>]")
    elif vertex.kind == "sink" and len(vertex.inputs) > 1:
        faults.add(inputs, f"a sink has one input, not {len(vertex.inputs)}", "unite them in a sql vertex before it")


def _check_params(graph: JobGraph, vertex: Vertex, path: str, faults: Faults) -> None:
    if faults.touch("params") and not graph.params:
        return
    for keys, text in params.places(vertex):
        where = path
        for key in keys:
            where = at(where, key)
        for error in params.problems(text, graph.params, secrets=params.may_name_secrets(keys)):
            faults.add(where, error.message, error.hint)
            if faults.full:  # the hints take time
                return


def _check_source(graph: JobGraph, source: Source, path: str, faults: Faults) -> None:
    if source.python is not None:
        _check_reference(source.python, at(path, "python"), faults)
        for key, value in (("format", source.format), ("path", source.path), ("schema", source.schema)):
            if value:
                faults.add(at(path, key), f"a python source has no {key}: its function returns the DataFrame")
        check_records(source, path, faults)
        return
    if not source.format:
        if not faults.touch(at(path, "format")) and not faults.touch(at(path, "python")):
            faults.add(path, "the source has neither a format nor a python function", "format: json, for example")
        return
    if source.format in formats.FILE_FORMATS:
        if source.path is None and not faults.touch(at(path, "path")):
            faults.add(path, f"a {source.format} source needs a path", "path: <directory of the files>")
        if not source.schema and source.format != "text" and not faults.touch(at(path, "schema")):
            faults.add(path, f"a {source.format} source needs a schema", "schema: carrier STRING, time TIMESTAMP")
    _check_path(graph, source.path, at(path, "path"), faults)
    check_records(source, path, faults)
    _check_options(source.format, source.options, at(path, "options"), faults, reads=True)
    for name, value in source.options.items():
        if name.lower() == "cleansource" and value.lower() != "off":
            problem = "Spark would delete or move files that a restored job must read again"
            faults.add(at(at(path, "options"), name), problem, "leave it out, and clean up outside the job")


def _check_sink(graph: JobGraph, sink: Sink, path: str, faults: Faults) -> None:
    check_records(sink, path, faults)
    delivery.check_delivery(graph, sink, path, faults)
    if sink.partition_by and sink.format not in (*formats.FILE_FORMATS, *formats.TABLE_FORMATS):
        faults.add(at(path, "partition-by"), "only files and tables are partitioned", "leave it out")
    if sink.compaction is not None:
        table_sinks.check_compaction(sink, sink.compaction, at(path, "compaction"), faults)
    changes.check_changes(sink, path, faults)
    if sink.python is not None:
        _check_reference(sink.python, at(path, "python"), faults)
        for key, value in (("format", sink.format), ("path", sink.path), ("options", sink.options)):
            if value:
                faults.add(at(path, key), f"a python sink has no {key}: its function gets the rows")
    elif sink.format in formats.FILE_FORMATS:
        if sink.path is None and not faults.touch(at(path, "path")):
            faults.add(path, f"a {sink.format} sink needs a path", "path: <directory to write to>")
        _check_path(graph, sink.path, at(path, "path"), faults)
        _check_options(sink.format, sink.options, at(path, "options"), faults, reads=False)
    elif sink.format == "delta":
        table_sinks.check_delta(sink, path, _filled(graph, sink.path or ""), faults)
        _check_path(graph, sink.path, at(path, "path"), faults)
    elif sink.format == "iceberg":
        table_sinks.check_iceberg(sink, path, _filled(graph, sink.options.get(table_sinks.TABLE, "")), faults)
    elif sink.format == "jdbc":
        delivery.check_jdbc(sink, path, lambda text: _filled(graph, text), faults)
    elif sink.format == "kafka":
        delivery.check_kafka(sink, path, faults)
        _check_options(sink.format, sink.options, at(path, "options"), faults, reads=False)
    elif sink.format == "collect":
        delivery.check_collect(sink, path, faults)
    elif sink.format == "console":
        delivery.check_console(sink, path, faults)
    elif sink.format == "noop":
        delivery.check_noop(sink, path, faults)
    elif sink.format:
        hint = meant(sink.format, formats.SINK_FORMATS, "one of")
        faults.add(at(path, "format"), f"unknown sink format {show(sink.format)}", hint)
    elif not faults.touch(at(path, "format")) and not faults.touch(at(path, "python")):
        faults.add(path, "the sink has no format", f"format: one of {', '.join(formats.SINK_FORMATS)}; or python")


def _filled(graph: JobGraph, text: str) -> str | None:
    """Return the text with the params filled in; None if one is missing, which is a fault of its own."""
    return None if any(params.problems(text, graph.params)) else params.substitute(text, graph.params)


def _check_path(graph: JobGraph, path: str | None, where: str, faults: Faults) -> None:
    if path is None or any(params.problems(path, graph.params)):
        return
    full = params.substitute(path, graph.params)
    if not _ABSOLUTE.match(full):
        hint = "TaskManagers have working directories of their own: /data/flights, or s3://bucket/flights"
        faults.add(where, f"{show(full)} is not an absolute path or URI", hint)


def _check_options(format: str, options: dict[str, str], path: str, faults: Faults, *, reads: bool) -> None:
    for name in options:
        if (why := formats.refused_option(name)) is not None:
            faults.add(at(path, name), f"{show(name)} is not an option of a vertex", why)
        elif faults.may_guess() and (known := formats.misspelt_option(format, name, reads=reads)) is not None:
            faults.add(at(path, name), f"unknown option {show(name)}", f"did you mean {known}?")


def _check_reference(reference: str, path: str, faults: Faults) -> None:
    """Check for `module:function`. The TaskManager, which has the artifacts, finds out whether they exist."""
    module, _, function = reference.partition(":")
    names = [*module.split("."), function]
    if not all(name.isidentifier() and not keyword.iskeyword(name) for name in names):
        stem = module.removesuffix(".py").replace("/", ".")
        guess = f"{stem}:{function}" if function else ":".join(stem.rsplit(".", 1))
        close = guess != reference and re.fullmatch(r"[\w.]+:\w+", guess)
        hint = f"did you mean {guess}?" if close else "such as flights:clean"
        faults.add(path, f"{show(reference)} is not module:function", hint)


def _check_watermark(graph: JobGraph, vertex: Vertex, path: str, faults: Faults) -> None:
    if vertex.watermark is None:
        return
    if vertex.kind == "sink":
        faults.add(at(path, "watermark"), "a sink has no watermark", "set it on the vertex that yields the event time")
    delay = vertex.watermark.delay
    if any(params.problems(delay, graph.params)):
        return
    delay = params.substitute(delay, graph.params)
    if not _INTERVAL.fullmatch(delay):
        where = at(at(path, "watermark"), "delay")
        faults.add(where, f"{show(delay)} is not an interval of Spark", _interval_hint(delay))


def _interval_hint(delay: str) -> str:
    match = re.fullmatch(r"\s*(\d+)\s*([A-Za-z]+)\s*", delay)
    unit = {"s": "second", "m": "minute", "h": "hour", "d": "day"}.get(match[2]) if match else None
    unit = unit or (match and nearest(match[2].rstrip("s"), _UNITS.split("|")))
    return f"did you mean {match[1]} {unit}s?" if match and unit else "2 hours, 30 seconds, 1 day 12 hours"


def _check_output_mode(vertex: Vertex, path: str, faults: Faults) -> None:
    if vertex.output_mode is None:
        return
    where = at(path, "output-mode")
    if vertex.kind != "sink":
        faults.add(where, f"output-mode is a setting of sinks, not of a {vertex.kind} vertex", "set it on the sink")
    elif vertex.sink is not None and (refused := delivery.refused_mode(vertex.sink, vertex.output_mode)) is not None:
        faults.add(where, *refused)
