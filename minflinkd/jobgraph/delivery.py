"""What each kind of sink guarantees, and what a sink must declare for that (J12, J13). Pure.

Exactly-once holds across any failure if a sink stages durably and commits with the checkpoint, or if its rows replace
those with the same key. Any other sink sees some rows again after a restart: Spark's batch ids are not stable across a
restore, so they are no fence.
"""

from __future__ import annotations

from collections.abc import Callable

from minflinkd.jobgraph import formats
from minflinkd.jobgraph.faults import Faults, at, show
from minflinkd.jobgraph.model import CheckpointMode, Delivery, JobGraph, OutputMode, Sink

MOST_COLLECTED = 10_000  # rows of a collect sink
# Options whose values are columns, with commas between them; `jobgraph.changes` has the rules of the last two.
KEY, NEWEST_BY, DELETED = "key", "newest-by", "deleted"
KEYED_OPTIONS = frozenset({KEY, NEWEST_BY, DELETED})  # no storage, catalog or driver gets them
KEYED_FORMATS = ("jdbc", *formats.TABLE_FORMATS)
DATABASES = ("jdbc:postgresql:", "jdbc:mysql:")  # URLs of those that are written exactly-once

APPENDS = "delivery: at-least-once, which appends with any driver"

# Options of the sinks that are not Spark's writers: name -> what the value must be, for the fault.
_COLLECT = {"rows": f"a whole number, from 1 to {MOST_COLLECTED}"}
_CONSOLE = {"numRows": "a whole number, at least 1", "truncate": "true or false"}


# What to do if Kafka has lost the mark that says what an exactly-once sink has published: an option of the sink.
LOST_MARK, PUBLISH, SKIP = "lost-mark", "publish", "skip"
LARGEST = "kafka.max.request.size"  # in bytes: the sink itself compares the rows with it
LARGEST_RECORD = 1_048_576  # bytes: the client's default for that

# Options that an exactly-once kafka sink cannot have otherwise: name -> the values that fit, and why.
_TRANSACTIONAL = {
    "kafka.transactional.id": ((), "the transactional id is made of the job's id and the sink's name"),
    "kafka.enable.idempotence": (("true",), "transactions need an idempotent producer"),
    "kafka.acks": (("all", "-1"), "transactions need the acknowledgement of all replicas"),
    LOST_MARK: ((SKIP, PUBLISH), "this says what to do with rows of which nobody knows whether they are published"),
}


def delivery_of(sink: Sink) -> Delivery:
    """Return what the sink guarantees if checkpoints are exactly-once."""
    if sink.python is not None or sink.format == "kafka":
        return sink.delivery or Delivery.AT_LEAST_ONCE
    if sink.format == "jdbc":
        return sink.delivery or Delivery.EXACTLY_ONCE
    commits = sink.format in formats.FILE_FORMATS or sink.format in formats.TABLE_FORMATS
    return Delivery.EXACTLY_ONCE if commits else Delivery.AT_LEAST_ONCE


def stages(sink: Sink) -> bool:
    """Whether its rows become visible only once a checkpoint that covers them is complete."""
    return delivery_of(sink) is Delivery.EXACTLY_ONCE and not (sink.format == "jdbc" and key_of(sink))


def key_of(sink: Sink) -> tuple[str, ...]:
    """Return the columns that identify a row of a jdbc, delta or iceberg sink, whose rows replace each other."""
    return names_in(sink.options.get(KEY, "")) if sink.format in KEYED_FORMATS else ()


def names_in(option: str) -> tuple[str, ...]:
    """Return the columns that an option names."""
    return tuple(name for name in (part.strip() for part in option.split(",")) if name)


def delivery_in(graph: JobGraph, sink: Sink) -> Delivery:
    """Return what is shown for a sink of this job: at-least-once checkpoints repeat rows, unless the sink has a key."""
    weaker = graph.checkpointing.mode is CheckpointMode.AT_LEAST_ONCE and not key_of(sink)
    return Delivery.AT_LEAST_ONCE if weaker else delivery_of(sink)


def check_delivery(graph: JobGraph, sink: Sink, path: str, faults: Faults) -> None:
    """Check that the sink can give what was asked of it."""
    if sink.delivery is not Delivery.EXACTLY_ONCE:
        return
    where = at(path, "delivery")
    if graph.checkpointing.mode is CheckpointMode.AT_LEAST_ONCE and not key_of(sink):
        hint = "checkpointing.mode: exactly-once, or a jdbc sink with a key"
        faults.add(where, "a sink is not exactly-once where the checkpoints are at-least-once", hint)
    if sink.python is None and sink.format in formats.PASSING_FORMATS:
        hint = "leave it out; parquet, jdbc, kafka and a python class that stages and commits are exactly-once"
        faults.add(where, f"a {sink.format} sink is at-least-once: Spark cannot commit it with a checkpoint", hint)


def check_jdbc(sink: Sink, path: str, resolved: Callable[[str], str | None], faults: Faults) -> None:
    """Check a jdbc sink. `resolved`: an option's value with the params filled in; None if that is a fault already."""
    options = at(path, "options")
    for name, example in (("url", "jdbc:postgresql://host:5432/database"), ("dbtable", "public.delays")):
        if not sink.options.get(name) and not faults.touch(at(options, name)):
            faults.add(path, f"a jdbc sink needs the option {name}", f"options: {{{name}: {example}}}")
    if sink.path is not None:
        faults.add(at(path, "path"), "a jdbc sink has no path", "options: {url: ..., dbtable: ...}")
    url = resolved(sink.options.get("url", ""))
    if url and not url.startswith("jdbc:"):
        faults.add(at(options, "url"), f"{show(url.partition('?')[0])} is not a JDBC URL", "jdbc:postgresql://host/db")
    elif url and not url.startswith(DATABASES) and delivery_of(sink) is Delivery.EXACTLY_ONCE:
        problem, hint = "only PostgreSQL and MySQL are written exactly-once, or by key", APPENDS
        if url.startswith("jdbc:mariadb:"):
            problem, hint = "Spark knows MariaDB by MySQL's URLs only", "jdbc:mysql://host/db?permitMysqlScheme"
        faults.add(at(options, "url"), problem, hint)
    if url and url.startswith("jdbc:mysql:") and delivery_of(sink) is Delivery.EXACTLY_ONCE:
        for name in sink.options:
            if name.lower() in ("createtableoptions", "createtablecolumntypes"):
                hint = "leave it out, and make the table yourself"
                faults.add(at(options, name), "Spark does not make the tables of MySQL here", hint)
    if KEY in sink.options and not key_of(sink):
        faults.add(at(options, KEY), "the key names no column", "key: carrier, or key: carrier, day")
    if key_of(sink) and sink.delivery is Delivery.AT_LEAST_ONCE:
        hint = "leave `delivery` out, or the key"
        faults.add(at(path, "delivery"), "rows that are known by a key are not written twice", hint)
    if "mode" in sink.options:
        faults.add(at(options, "mode"), "a stream is never written with a mode", "leave it out")


def check_collect(sink: Sink, path: str, faults: Faults) -> None:
    _check_options(sink, path, _COLLECT, faults)
    rows = sink.options.get("rows", "1")
    if not rows.isascii() or not rows.isdigit() or not 1 <= int(rows[:9]) <= MOST_COLLECTED:
        faults.add(at(at(path, "options"), "rows"), f"{show(rows)} is not {_COLLECT['rows']}")


def check_console(sink: Sink, path: str, faults: Faults) -> None:
    _check_options(sink, path, _CONSOLE, faults)
    rows = sink.options.get("numRows", "1")
    if not rows.isascii() or not rows.isdigit() or not int(rows):
        faults.add(at(at(path, "options"), "numRows"), f"{show(rows)} is not {_CONSOLE['numRows']}")


def check_noop(sink: Sink, path: str, faults: Faults) -> None:
    _check_options(sink, path, {}, faults)


def check_kafka(sink: Sink, path: str, faults: Faults) -> None:
    servers = "kafka.bootstrap.servers"
    if not sink.options.get(servers) and not faults.touch(at(at(path, "options"), servers)):
        faults.add(path, f"a kafka sink needs the option {servers}", f"options: {{{servers}: 'host:9092', topic: out}}")
    if sink.path is not None:
        faults.add(at(path, "path"), "a kafka sink has no path", "options: {topic: out}")
    options = at(path, "options")
    if delivery_of(sink) is not Delivery.EXACTLY_ONCE:
        if LOST_MARK in sink.options:
            faults.add(at(options, LOST_MARK), "only an exactly-once kafka sink has marks", "delivery: exactly-once")
        return
    for name, (fits, problem) in _TRANSACTIONAL.items():
        if (value := sink.options.get(name)) is not None and value not in fits and "${" not in value:
            faults.add(at(options, name), problem, " or ".join(["leave it out", *fits]))
    largest = sink.options.get(LARGEST, "1")
    if "${" not in largest and not (largest.isascii() and largest.isdigit()):
        faults.add(at(options, LARGEST), f"{show(largest)} is not a whole number of bytes", "1048576")


def refused_mode(sink: Sink, mode: OutputMode) -> tuple[str, str] | None:
    """Return why the sink cannot be written in this output mode, and what is possible; None if it can."""
    if mode is OutputMode.APPEND or sink.python is not None or sink.format in formats.PASSING_FORMATS:
        return None
    if sink.format in formats.FILE_FORMATS:
        problem = f"a files sink cannot take back the rows that {mode} would change"
        return problem, "append: a window is written once the watermark has passed it"
    if sink.format in formats.TABLE_FORMATS:
        if key_of(sink):
            return None
        problem = f"without a key a {sink.format} sink cannot take back the rows that {mode} would change"
        return problem, "options: {key: <the columns that a row is known by>}, or append"
    if sink.format == "jdbc":
        if key_of(sink):
            return None
        problem = f"without a key a jdbc sink cannot take back the rows that {mode} would change"
        return problem, "options: {key: <the columns that a row is known by>}, or append"
    if mode is OutputMode.COMPLETE:
        return "a kafka sink would get the whole result with each micro-batch", "update, or append"
    return None


def _check_options(sink: Sink, path: str, known: dict[str, str], faults: Faults) -> None:
    for name in sink.options:
        if name not in known:
            hint = ", ".join(f"{key}: {what}" for key, what in known.items()) or "leave it out"
            faults.add(at(at(path, "options"), name), f"a {sink.format} sink has no option {show(name)}", hint)
    if sink.path is not None:
        faults.add(at(path, "path"), f"a {sink.format} sink has no path", "leave it out")
