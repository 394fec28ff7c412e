"""Which rows a job with an `input-range` reads, and when nobody could know."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from minflinkd.jobgraph.document import parse_json, parse_yaml
from minflinkd.jobgraph.faults import InvalidJobGraph
from minflinkd.jobgraph.input_range import EARLY_MS, Limit, format_time, limits, parse_time
from minflinkd.jobgraph.model import InputRange, decode, encode
from minflinkd.jobgraph.validation import parse_job
from minflinkd.runtime.ids import VertexId

SINCE, UNTIL = 1_772_323_200_000, 1_772_409_600_000  # the first of March 2026, in UTC
EVENT = {"column": "time", "delay": "1 minute"}
FILES = {"format": "json", "path": "/in", "schema": "time TIMESTAMP"}
KAFKA = {"format": "kafka", "options": {"kafka.bootstrap.servers": "broker:9092", "subscribe": "clicks"}}


def document(vertices: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    given = {
        "name": "clicks",
        "mode": "batch",
        "input-range": {"from": "2026-03-01", "to": "2026-03-02"},
        "vertices": {
            "clicks": {"source": FILES},
            "timed": {"inputs": ["clicks"], "sql": "SELECT * FROM clicks", "watermark": EVENT},
            "counts": {"inputs": ["timed"], "sql": "SELECT time FROM timed"},
            "out": {"inputs": ["counts"], "sink": {"format": "parquet", "path": "/out"}},
        }
        | (vertices or {}),
    }
    return given | changes


def chosen(given: dict[str, Any]) -> dict[str, tuple[Limit, ...]]:
    found = limits(parse_job(given))
    assert found is not None
    return {str(vertex): own for vertex, own in found.vertices.items()}


def problems(given: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(InvalidJobGraph) as caught:
        parse_job(given)
    return {fault.path: f"{fault.problem} ({fault.hint})" for fault in caught.value.faults}


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("2026-03-01", SINCE),
        ("2026-03-01T00:00", SINCE),
        ("2026-03-01 00:00:00.000", SINCE),
        ("2026-03-01T00:00Z", SINCE),
        ("2026-03-01T02:00+02:00", SINCE),
        (" 2026-03-01T00:00:00.25 ", SINCE + 250),
        ("March", None),
        ("2026-02-30", None),
        ("", None),
    ],
)
def test_a_time_is_in_utc_unless_it_says_its_zone(text: str, ms: int | None) -> None:
    assert parse_time(text) == ms
    if ms is not None:
        assert parse_time(format_time(ms)) == ms


def test_rows_are_chosen_by_event_time_where_a_vertex_has_a_watermark() -> None:
    """The files are all read: nobody knows which of them have the events of that time."""
    assert chosen(document()) == {"timed": (Limit(since_ms=SINCE, until_ms=UNTIL, column="time"),)}


def test_kafka_is_not_read_before_the_range_begins() -> None:
    """An event is not older than its record, but for clocks that differ."""
    early = Limit(since_ms=SINCE - EARLY_MS, until_ms=None)
    event = Limit(since_ms=SINCE, until_ms=UNTIL, column="time")
    assert chosen(document({"clicks": {"source": KAFKA}})) == {"clicks": (early,), "timed": (event,)}
    own = {"source": KAFKA, "watermark": EVENT | {"column": "timestamp"}}
    timed = {"inputs": ["clicks"], "sql": "SELECT * FROM clicks"}
    found = chosen(document({"clicks": own, "timed": timed}))
    assert found == {"clicks": (early, Limit(since_ms=SINCE, until_ms=UNTIL, column="timestamp"))}


@pytest.mark.parametrize("source", [FILES, KAFKA])
def test_without_a_watermark_rows_are_chosen_by_when_they_were_written(source: dict[str, Any]) -> None:
    given = document({"clicks": {"source": source}, "timed": {"inputs": ["clicks"], "sql": "SELECT * FROM clicks"}})
    assert chosen(given) == {"clicks": (Limit(since_ms=SINCE, until_ms=UNTIL),)}


def test_each_source_has_its_own_kind_of_time() -> None:
    """A table of prices that is joined with events, by when its files came."""
    prices = {"source": FILES | {"schema": "price INT"}}
    join = {"inputs": ["timed", "prices"], "sql": "SELECT time, price FROM timed JOIN prices ON true"}
    found = chosen(document({"prices": prices, "counts": join}))
    assert {vertex: [limit.column for limit in own] for vertex, own in found.items()} == {
        "timed": ["time"],
        "prices": [""],
    }


def test_only_the_first_watermark_chooses() -> None:
    """A later one is of windows, say: their rows are chosen already."""
    second = {"inputs": ["timed"], "sql": "SELECT time FROM timed", "watermark": EVENT}
    assert set(chosen(document({"counts": second}))) == {"timed"}


def test_bad_records_need_no_time() -> None:
    """They go to their sink from wherever they are found."""
    clicks = {"source": FILES, "on-bad-record": {"to": "bad"}}
    bad = {"sink": {"format": "json", "path": "/bad"}}
    assert set(chosen(document({"clicks": clicks, "bad": bad}))) == {"timed"}


def test_a_python_source_needs_a_watermark_after_it() -> None:
    given = {"clicks": {"source": {"python": "acme:read"}}}
    assert set(chosen(document(given))) == {"timed"}
    found = problems(document(given | {"timed": {"inputs": ["clicks"], "sql": "SELECT * FROM clicks"}}))
    assert found == {
        "vertices.clicks": "nobody knows the time of its rows (give it, or a vertex after it, a watermark: "
        "the range is then of event time)"
    }


FAULTS: dict[str, tuple[dict[str, Any], str, str]] = {
    "a streaming job": (document(mode="streaming"), "input-range", "has no end of its input"),
    "a savepoint": (document(restore={"path": "/savepoints/1"}), "restore", "begins with empty state"),
    "no time": (document(**{"input-range": {"from": "soon", "to": "2026-03-02"}}), "input-range.from", "not a time"),
    "no end": (document(**{"input-range": {"from": "2026-03-02"}}), "input-range.to", "to is missing"),
    "an empty range": (
        document(**{"input-range": {"from": "2026-03-02", "to": "2026-03-02"}}),
        "input-range.to",
        '"2026-03-02" is not later than "2026-03-02"',
    ),
    "new rows": (
        document({"clicks": {"source": {"format": "rate"}}}),
        "vertices.clicks.source",
        "a rate source has no rows of another time",
    ),
    "two times for one source": (
        document({"copy": {"inputs": ["clicks"], "sink": {"format": "parquet", "path": "/copy"}}}),
        "vertices.clicks",
        "timed reads it by event time, and on its way to copy no vertex has a watermark",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_range_that_cannot_be_is_refused(name: str) -> None:
    given, path, problem = FAULTS[name]
    found = problems(given)
    assert set(found) == {path}
    assert problem in found[path]


def test_a_range_is_stored_with_its_job() -> None:
    """In YAML dates need no quotes. A job without a range reads everything."""
    graph = parse_job(document())
    assert decode(encode(graph)) == graph
    assert parse_json(encode(graph)).job() == graph
    text = b"name: clicks\nmode: batch\ninput-range: {from: 2026-03-01, to: 2026-03-02T00:00:00Z}\n"
    value = parse_yaml(text).value
    assert parse_job(document(**{"input-range": value["input-range"]})).input_range is not None
    plain = document()
    del plain["input-range"]
    assert limits(parse_job(plain)) is None


def test_rows_of_other_times_are_guarded_where_rows_replace_each_other() -> None:
    """Unless the user says that they may be replaced."""
    keyed = {"inputs": ["counts"], "sink": {"format": "delta", "path": "/out", "options": {"key": "time"}}}
    allowed = {"from": "2026-03-01", "to": "2026-03-02", "allow-other-times": True}
    for given, guarded in (
        (document(), False),
        (document({"out": keyed}), True),
        (document({"out": keyed}, **{"input-range": allowed}), False),
    ):
        found = limits(parse_job(given))
        assert found is not None
        assert (found.since_ms, found.until_ms, found.guarded) == (SINCE, UNTIL, guarded)
        assert set(found.vertices) == {VertexId("timed")}


@pytest.mark.parametrize("since", ["yesterday", "2026-03-02"])
def test_a_faulty_range_limits_nothing(since: str) -> None:
    """The sound part of a faulty job is analysed as well, and its range is told already (J4)."""
    faulty = replace(parse_job(document()), input_range=InputRange(since=since, until="2026-03-02"))
    assert limits(faulty) is None
