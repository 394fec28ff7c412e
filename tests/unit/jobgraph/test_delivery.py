"""The guarantee of each kind of sink (J13)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from minflinkd.jobgraph.delivery import (
    MOST_COLLECTED,
    check_collect,
    check_console,
    check_delivery,
    check_jdbc,
    check_kafka,
    check_noop,
    delivery_in,
    refused_mode,
    stages,
)
from minflinkd.jobgraph.faults import Faults, InvalidJobGraph
from minflinkd.jobgraph.model import Checkpointing, CheckpointMode, Delivery, JobGraph, OutputMode, Sink
from minflinkd.jobgraph.validation import parse_job

ONCE, LEAST = Delivery.EXACTLY_ONCE, Delivery.AT_LEAST_ONCE
EXACT = JobGraph(name="job", vertices=())
LOOSE = JobGraph(name="job", vertices=(), checkpointing=Checkpointing(mode=CheckpointMode.AT_LEAST_ONCE))
GUARANTEES = {
    "files": (Sink(format="parquet", path="/x"), ONCE, LEAST, True),
    "delta": (Sink(format="delta", path="/x"), ONCE, LEAST, True),
    "iceberg": (Sink(format="iceberg"), ONCE, LEAST, True),
    "kafka": (Sink(format="kafka"), LEAST, LEAST, False),
    "kafka by checkpoints": (Sink(format="kafka", delivery=ONCE), ONCE, LEAST, True),
    "console": (Sink(format="console"), LEAST, LEAST, False),
    "collect": (Sink(format="collect"), LEAST, LEAST, False),
    "noop": (Sink(format="noop"), LEAST, LEAST, False),
    "a python function": (Sink(python="a:b"), LEAST, LEAST, False),
    "a python class that commits": (Sink(python="a:B", delivery=ONCE), ONCE, LEAST, True),
    "jdbc by checkpoints": (Sink(format="jdbc"), ONCE, LEAST, True),
    "jdbc by key": (Sink(format="jdbc", options={"key": "a, b"}), ONCE, ONCE, False),
    "jdbc that appends": (Sink(format="jdbc", delivery=LEAST), LEAST, LEAST, False),
}


@pytest.mark.parametrize("kind", GUARANTEES)
def test_each_sink_has_a_guarantee(kind: str) -> None:
    """The guarantee depends on the mode of checkpoints, and says whether rows wait for a checkpoint (J13)."""
    sink, exact, loose, staged = GUARANTEES[kind]
    assert (delivery_in(EXACT, sink), delivery_in(LOOSE, sink), stages(sink)) == (exact, loose, staged)


@pytest.mark.parametrize(
    ("sink", "mode"),
    [
        ({"format": "console"}, "complete"),
        ({"format": "noop"}, "complete"),
        ({"format": "collect", "options": {"rows": 50}}, "complete"),
        ({"format": "kafka", "options": {"kafka.bootstrap.servers": "h:1", "topic": "t"}}, "update"),
        ({"format": "jdbc", "options": {"url": "${db}", "dbtable": "t", "key": "carrier"}}, "update"),
        ({"format": "jdbc", "options": {"url": "jdbc:mysql://h/d", "dbtable": "t"}, "delivery": "at-least-once"}, None),
        ({"python": "flights:write"}, "update"),
        ({"python": "flights:Sink", "delivery": "exactly-once"}, None),
    ],
)
def test_sinks_of_all_kinds_are_accepted(document: dict[str, Any], sink: dict[str, Any], mode: str | None) -> None:
    """J2, J8a"""
    document["params"] = (document.get("params") or {}) | {"db": "jdbc:postgresql://h/d"}
    document["vertices"]["out"] = {"inputs": ["delays"], "sink": sink, "output-mode": mode}
    assert parse_job(document).vertex("out").sink is not None


Told = list[tuple[str, str, str]]  # path, problem, hint
URL, TABLE = "jdbc:postgresql://host/db", "out"
WHOLE, COLUMNS = {"url": URL, "dbtable": TABLE}, "key: carrier, or key: carrier, day"
NOT_TWICE = "rows that are known by a key are not written twice"
ONLY_THESE = "only PostgreSQL and MySQL are written exactly-once, or by key"
APPENDS = "delivery: at-least-once, which appends with any driver"
JDBC: dict[str, tuple[Sink, Told]] = {
    "whole": (Sink(format="jdbc", options=WHOLE), []),
    "with a key": (Sink(format="jdbc", options=WHOLE | {"key": "a,b"}), []),
    "another database that appends": (
        Sink(format="jdbc", options=WHOLE | {"url": "jdbc:sqlserver://host"}, delivery=LEAST),
        [],
    ),
    "without options": (
        Sink(format="jdbc"),
        [
            ("s", "a jdbc sink needs the option url", "options: {url: jdbc:postgresql://host:5432/database}"),
            ("s", "a jdbc sink needs the option dbtable", "options: {dbtable: public.delays}"),
        ],
    ),
    "with a path": (
        Sink(format="jdbc", options=WHOLE, path="/out"),
        [("s.path", "a jdbc sink has no path", "options: {url: ..., dbtable: ...}")],
    ),
    "another kind of URL": (
        Sink(format="jdbc", options=WHOLE | {"url": "postgresql://host/db?password=secret"}),
        [("s.options.url", '"postgresql://host/db" is not a JDBC URL', "jdbc:postgresql://host/db")],
    ),
    "mysql": (Sink(format="jdbc", options=WHOLE | {"url": "jdbc:mysql://host/db"}), []),
    "mysql with a key": (Sink(format="jdbc", options=WHOLE | {"url": "jdbc:mysql://host/db", "key": "a"}), []),
    "mysql with a table of Spark": (
        Sink(format="jdbc", options=WHOLE | {"url": "jdbc:mysql://host/db", "createTableOptions": "ENGINE=Aria"}),
        [
            (
                "s.options.createTableOptions",
                "Spark does not make the tables of MySQL here",
                "leave it out, and make the table yourself",
            )
        ],
    ),
    "mariadb by its own URL": (
        Sink(format="jdbc", options=WHOLE | {"url": "jdbc:mariadb://host/db"}),
        [("s.options.url", "Spark knows MariaDB by MySQL's URLs only", "jdbc:mysql://host/db?permitMysqlScheme")],
    ),
    "another database": (
        Sink(format="jdbc", options=WHOLE | {"url": "jdbc:sqlserver://host"}),
        [("s.options.url", ONLY_THESE, APPENDS)],
    ),
    "another database with a key": (
        Sink(format="jdbc", options=WHOLE | {"url": "jdbc:sqlserver://host", "key": "a"}),
        [("s.options.url", ONLY_THESE, APPENDS)],
    ),
    "a key without a column": (
        Sink(format="jdbc", options=WHOLE | {"key": " , "}),
        [("s.options.key", "the key names no column", COLUMNS)],
    ),
    "a key that repeats rows": (
        Sink(format="jdbc", options=WHOLE | {"key": "a"}, delivery=LEAST),
        [("s.delivery", NOT_TWICE, "leave `delivery` out, or the key")],
    ),
    "a mode": (
        Sink(format="jdbc", options=WHOLE | {"mode": "append"}),
        [("s.options.mode", "a stream is never written with a mode", "leave it out")],
    ),
}


def found(check: Callable[[Faults], None]) -> Told:
    faults = Faults()
    check(faults)
    try:
        faults.raise_if_any()
    except InvalidJobGraph as error:
        return [(fault.path, fault.problem, fault.hint) for fault in error.faults]
    return []


@pytest.mark.parametrize("kind", JDBC)
def test_what_is_wrong_with_a_jdbc_sink_is_said_where_it_is_and_with_a_remedy(kind: str) -> None:
    """A URL is shown without what follows the question mark, as that may be a password (J4, J13)."""
    sink, told = JDBC[kind]
    assert found(lambda faults: check_jdbc(sink, "s", lambda text: text, faults)) == told


def test_a_jdbc_option_that_is_faulty_already_is_not_complained_about_twice() -> None:
    """The param in it has no value, say (J4)."""

    def check(faults: Faults) -> None:
        faults.add("s.options.url", "there is no param db")
        check_jdbc(Sink(format="jdbc", options={"dbtable": TABLE}), "s", lambda _: None, faults)

    assert found(check) == [("s.options.url", "there is no param db", "")]


ROWS = f"a whole number, from 1 to {MOST_COLLECTED}"


@pytest.mark.parametrize(
    ("rows", "fits"), [("1", 1), ("10000", 1), ("10001", 0), ("0", 0), ("-1", 0), ("x", 0), ("\u0663", 0)]
)
def test_a_collect_sink_keeps_a_limited_number_of_rows(rows: str, fits: int) -> None:
    sink = Sink(format="collect", options={"rows": rows})
    told = [] if fits else [("s.options.rows", f'"{rows}" is not {ROWS}', "")]
    assert found(lambda faults: check_collect(sink, "s", faults)) == told


@pytest.mark.parametrize(("rows", "fits"), [("1", 1), ("20", 1), ("0", 0), ("two", 0), ("\u0663", 0)])
def test_a_console_sink_shows_at_least_one_row(rows: str, fits: int) -> None:
    sink = Sink(format="console", options={"numRows": rows, "truncate": "false"})
    told = [] if fits else [("s.options.numRows", f'"{rows}" is not a whole number, at least 1', "")]
    assert found(lambda faults: check_console(sink, "s", faults)) == told


def test_options_that_a_sink_does_not_have_are_named_with_those_that_it_has() -> None:
    """J4"""
    sink = Sink(format="collect", options={"limit": "5"}, path="/x")
    assert found(lambda faults: check_collect(sink, "s", faults)) == [
        ("s.options.limit", 'a collect sink has no option "limit"', f"rows: {ROWS}"),
        ("s.path", "a collect sink has no path", "leave it out"),
    ]
    sink = Sink(format="console", options={"rows": "5"}, path="/x")
    has = "numRows: a whole number, at least 1, truncate: true or false"
    assert found(lambda faults: check_console(sink, "s", faults)) == [
        ("s.options.rows", 'a console sink has no option "rows"', has),
        ("s.path", "a console sink has no path", "leave it out"),
    ]
    sink = Sink(format="noop", options={"rows": "5"}, path="/x")
    assert found(lambda faults: check_noop(sink, "s", faults)) == [
        ("s.options.rows", 'a noop sink has no option "rows"', "leave it out"),
        ("s.path", "a noop sink has no path", "leave it out"),
    ]


def test_the_transactional_id_of_an_exactly_once_sink_is_not_the_users() -> None:
    """With an id of another job, one would fence the other. Spark itself refuses it at-least-once (K1)."""
    options = {"kafka.bootstrap.servers": "h:1", "topic": "t", "kafka.transactional.id": "mine"}
    once, least = (Sink(format="kafka", options=options, delivery=delivery) for delivery in (ONCE, LEAST))
    assert found(lambda faults: check_kafka(least, "s", faults)) == []
    ((path, problem, _),) = found(lambda faults: check_kafka(once, "s", faults))
    assert (path, "transactional id" in problem) == ('s.options["kafka.transactional.id"]', True)


@pytest.mark.parametrize(
    ("option", "fits", "wrong"),
    [
        ("kafka.acks", "-1", "1"),
        ("kafka.enable.idempotence", "true", "false"),
        ("lost-mark", "skip", "SKIP"),
        ("kafka.max.request.size", "2000000", "2 MB"),
        ("kafka.acks", "${acks}", "0"),
    ],
)
def test_an_exactly_once_kafka_sink_refuses_options_with_which_it_would_not_be_one(
    option: str, fits: str, wrong: str
) -> None:
    """Kafka's client would refuse them when the first rows are published (J4, K1)."""
    options = {"kafka.bootstrap.servers": "h:1", "topic": "t"}
    place = f's.options["{option}"]' if "." in option else f"s.options.{option}"
    for value, paths in ((fits, []), (wrong, [place])):
        sink = Sink(format="kafka", options=options | {option: value}, delivery=ONCE)
        assert [path for path, _, _ in found(lambda faults, sink=sink: check_kafka(sink, "s", faults))] == paths


def test_a_kafka_sink_needs_its_servers_and_has_no_path() -> None:
    """J4"""
    sink = Sink(format="kafka", path="/x")
    needs = "options: {kafka.bootstrap.servers: 'host:9092', topic: out}"
    assert found(lambda faults: check_kafka(sink, "s", faults)) == [
        ("s", "a kafka sink needs the option kafka.bootstrap.servers", needs),
        ("s.path", "a kafka sink has no path", "options: {topic: out}"),
    ]


NOT_HELD = "leave it out; parquet, jdbc, kafka and a python class that stages and commits are exactly-once"


@pytest.mark.parametrize(
    ("graph", "sink", "told"),
    [
        (EXACT, Sink(format="parquet", delivery=ONCE), []),
        (EXACT, Sink(format="kafka"), []),
        (LOOSE, Sink(format="jdbc", options={"key": "a"}, delivery=ONCE), []),
        (
            LOOSE,
            Sink(format="parquet", delivery=ONCE),
            [
                (
                    "s.delivery",
                    "a sink is not exactly-once where the checkpoints are at-least-once",
                    "checkpointing.mode: exactly-once, or a jdbc sink with a key",
                )
            ],
        ),
        *(
            (
                EXACT,
                Sink(format=name, delivery=ONCE),
                [("s.delivery", f"a {name} sink is at-least-once: Spark cannot commit it with a checkpoint", hint)],
            )
            for name, hint in (
                ("console", NOT_HELD),
                ("collect", NOT_HELD),
            )
        ),
        (EXACT, Sink(format="kafka", delivery=ONCE), []),
        (EXACT, Sink(python="a:B", delivery=ONCE), []),
    ],
    ids=["files", "nothing asked", "by key", "loose", "console", "collect", "kafka", "python"],
)
def test_a_sink_that_cannot_give_what_is_asked_of_it_is_refused(graph: JobGraph, sink: Sink, told: Told) -> None:
    """J13"""
    assert found(lambda faults: check_delivery(graph, sink, "s", faults)) == told


UPDATES = "a files sink cannot take back the rows that update would change"
NO_KEY = "without a key a jdbc sink cannot take back the rows that complete would change"
WITH_KEY = "options: {key: <the columns that a row is known by>}, or append"
WHOLE_RESULT = "a kafka sink would get the whole result with each micro-batch"


@pytest.mark.parametrize(
    ("sink", "mode", "told"),
    [
        (Sink(format="parquet"), "append", None),
        (Sink(format="parquet"), "update", (UPDATES, "append: a window is written once the watermark has passed it")),
        (Sink(format="jdbc"), "complete", (NO_KEY, WITH_KEY)),
        (Sink(format="jdbc", options={"key": "a"}), "complete", None),
        (Sink(format="kafka"), "update", None),
        (Sink(format="kafka"), "complete", (WHOLE_RESULT, "update, or append")),
        (Sink(format="console"), "complete", None),
        (Sink(format="collect"), "update", None),
        (Sink(python="a:b"), "complete", None),
    ],
)
def test_a_sink_is_refused_in_an_output_mode_that_it_cannot_show(
    sink: Sink, mode: str, told: tuple[str, str] | None
) -> None:
    """J2: rows that change need a sink that replaces rows, or one that shows every change."""
    assert refused_mode(sink, OutputMode(mode)) == told
