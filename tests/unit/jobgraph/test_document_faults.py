"""What a document may hold at all, and where its faults are shown."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from minflinkd.jobgraph.faults import GraphFault, InvalidJobGraph
from minflinkd.jobgraph.places import Url
from minflinkd.jobgraph.validation import parse_job
from minflinkd.runtime.errors import Conflict, MinflinkError
from tests.unit.jobgraph.conftest import CARRIER_DELAYS

Document = dict[str, Any]


def found(document: object, positions: Mapping[str, int] | None = None, **where: Any) -> tuple[GraphFault, ...]:
    try:
        parse_job(document, positions, **where)
    except InvalidJobGraph as error:
        return error.faults
    return ()


def nested(levels: int) -> object:
    value: object = 1
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return value


def offsets(value: object) -> Document:
    """Return a good document with `value` at a place where any JSON may be, four levels deep."""
    return copy.deepcopy(CARRIER_DELAYS) | {"restore": {"offsets": {"flights": {"topic": value}}}}


PLACE = "restore.offsets.flights.topic"
NOT_JSON: dict[str, tuple[object, str, str]] = {
    "too deep": (nested(61), PLACE, "the document is nested more than 64 levels deep"),
    "a key that is a number": ({1: 2}, PLACE, "the key 1 is not text"),
    "a key that is no Unicode": ({"\ud800": 2}, PLACE, 'the key "\\ud800" is not text'),
    "a text that is no Unicode": ("\udfff", PLACE, '"\\udfff" is not valid Unicode'),
    "no number": (float("nan"), PLACE, "nan is not a finite number"),
    "an endless number": ({"a": -float("inf")}, f"{PLACE}.a", "-inf is not a finite number"),
    "bytes": ([1, b"x"], f"{PLACE}[1]", "a bytes is not JSON"),
    "a set in a tuple": (((), {1}), f"{PLACE}[1]", "a set is not JSON"),
    "a large number": (1 << 64, PLACE, "18446744073709551616 does not fit into 64 bits"),
}


@pytest.mark.parametrize("what", NOT_JSON)
def test_what_json_cannot_hold_is_a_fault_at_its_place(what: str) -> None:
    """A graph is stored and sent as JSON, so such a document could not be written again (J4)."""
    value, path, problem = NOT_JSON[what]
    [fault] = found(offsets(value))
    assert fault.problem == problem
    assert fault.path.startswith(path) if what == "too deep" else fault.path == path


@pytest.mark.parametrize("value", [nested(60), "\ud7ff\ue000", 1.5, (1 << 64) - 1, -(1 << 63), None, True, (), {"": 0}])
def test_what_json_can_hold_is_read(value: object) -> None:
    """Everything up to the limits is (J4)."""
    assert found(offsets(value)) == ()


def test_all_that_is_not_json_is_told_at_once() -> None:
    """Every fault is reported, in every part of the document (J4)."""
    values = {"a": float("nan"), "b": [b"", {1: 1, "c": "\ud800"}], "d": 1 << 65, "e": 1}
    told = {fault.path.removeprefix(f"{PLACE}.") for fault in found(offsets(values))}
    assert told == {"a", "b[0]", "b[1]", "b[1].c", "d"}


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ({"name": float("nan")}, "name"),
        ([], "job"),
        (CARRIER_DELAYS | {"name": ""}, "name"),
        (CARRIER_DELAYS | {"nmae": 1}, "nmae"),
    ],
)
def test_a_fault_has_its_line_whatever_finds_it(document: object, path: str) -> None:
    """The user looks for it in the job file (J4)."""
    assert [(fault.path, fault.line) for fault in found(document, {"job": 1, path: 7})] == [(path, 7)]


def test_a_document_without_a_name_is_checked_for_everything_else() -> None:
    """A missing field hides no other fault (J4)."""
    faults = {fault.path: fault.problem for fault in found({"parallelism": 0, "vertices": {"a": {"sql": " "}}})}
    assert faults["name"] == "name is missing"
    assert faults["vertices.a.sql"] == "the SQL is empty"
    assert "vertices is missing" in {fault.problem for fault in found({"name": "x", "parallelism": 1})}


def flights(**changes: object) -> Document:
    return {"vertices": {"flights": changes}}


def read(**changes: object) -> Document:
    return flights(source=changes)


def out(**changes: object) -> Document:
    return {"vertices": {"out": {"sink": changes}}}


def delays(**changes: object) -> Document:
    return {"vertices": {"delays": changes}}


WRONG: dict[str, Document] = {
    "params": {"params": 5},
    "restore.path": {"restore": {"path": 5}},
    "vertices": {"vertices": 5},
    "vertices.flights.source": flights(source=5),
    "vertices.flights.inputs[0]": flights(inputs=[5]),
    "vertices.flights.watermark": flights(watermark=5),
    "vertices.flights.parallelism": flights(parallelism=2.5),
    "vertices.flights.source.format": read(format=5),
    "vertices.flights.source.path": read(path=5),
    "vertices.flights.source.schema": read(schema=5),
    "vertices.flights.source.options": read(options=5),
    "vertices.flights.source.python": read(format=None, path=None, schema=None, python=5),
    "vertices.delays.sql": delays(sql=5),
    "vertices.delays.python": delays(sql=None, python=5),
    "vertices.delays.sink": delays(sql=None, sink=5),
    "vertices.delays.inputs": delays(inputs=5),
    "vertices.delays.output-mode": delays(**{"output-mode": 5}),
    "vertices.out.inputs": {"vertices": {"out": {"inputs": 5}}},
    "vertices.out.sink": {"vertices": {"out": {"sink": 5}}},
    "vertices.out.sink.format": out(format=5),
    "vertices.out.sink.path": out(path=5),
    "vertices.out.sink.python": out(format=None, path=None, delivery=None, python=5),
    "vertices.out.sink.delivery": out(delivery=5),
}


def changed(document: Document, changes: Document) -> Document:
    inner = {k: changed(document[k], v) for k, v in changes.items() if isinstance(v, dict) and k in document}
    return {**document, **changes, **inner}


@pytest.mark.parametrize("path", WRONG)
def test_a_value_of_a_wrong_type_is_wrong_and_not_missing(path: str) -> None:
    """One fault is enough to find it (J4)."""
    assert [fault.path for fault in found(changed(CARRIER_DELAYS, WRONG[path]))] == [path]


# --- artifacts, where the client looks for them ------------------------------------------------------------------


def with_artifacts(*artifacts: object) -> Document:
    return copy.deepcopy(CARRIER_DELAYS) | {"artifacts": list(artifacts)}


def test_every_artifact_is_looked_for_but_those_that_were_uploaded_or_are_wrong_anyway(tmp_path: Path) -> None:
    """What has a key is with the daemon already (J4)."""
    uploaded = {"name": "x.py", "path": "gone.py", "key": "p-1"}
    document = with_artifacts(uploaded, {"name": "y.py", "key": "p-2"}, "native.so", "missing.py")
    assert [(fault.path, fault.problem) for fault in found(document, base=tmp_path)] == [
        ("artifacts[2]", '"native.so" cannot be loaded into a running session'),
        ("artifacts[3]", f"there is no file {tmp_path / 'missing.py'}"),
    ]
    assert found(document, base=tmp_path)[1].hint == "paths are relative to the job file"


def test_an_artifact_at_a_url_is_wrong_if_it_could_not_be_fetched(tmp_path: Path) -> None:
    """The fault is the one that the fetch ended with (J4)."""
    url, gone = "https://host/x.py", Conflict("host does not answer", hint="is it up?")
    assert found(with_artifacts(url), base=tmp_path, fetched={url: tmp_path / "x.py"}) == ()
    failed: dict[str, Path | MinflinkError] = {url: gone}
    assert found(with_artifacts(url), base=tmp_path, fetched=failed) == (
        GraphFault(path="artifacts[0]", problem="host does not answer", hint="is it up?", code=gone.code),
    )


def test_an_artifact_that_a_job_file_at_a_url_must_not_name_is_a_fault() -> None:
    """It would be a file of the user's machine (J4)."""
    (fault,) = found(with_artifacts("/etc/x.py", "beside.py"), base=Url("https://host/job.yaml"))
    assert (fault.path, fault.code) == ("artifacts[0]", "invalid-url")


# --- limits ------------------------------------------------------------------------------------------------------


def change(**settings: object) -> Callable[[Document], object]:
    return lambda d: d.update({name.replace("_", "-"): value for name, value in settings.items()})


def vertex(name: str, **settings: object) -> Callable[[Document], object]:
    return lambda d: d["vertices"][name].update({key.replace("_", "-"): value for key, value in settings.items()})


def delay(text: str) -> Callable[[Document], object]:
    return vertex("flights", watermark={"column": "time", "delay": text})


SOUND: dict[str, Callable[[Document], object]] = {
    "as much parallelism as the maximum": change(max_parallelism=2),
    "as much parallelism as the minimum": change(min_parallelism=2),
    "a vertex at the maximum": lambda d: (change(max_parallelism=3)(d), vertex("delays", parallelism=3)(d)),
    "a vertex of one subtask": vertex("delays", parallelism=1),
    "a short timeout": lambda d: d["checkpointing"].update(timeout="1 ms"),
    "no checkpoints, at-least-once": lambda d: (
        vertex("out", sink={"format": "console"})(d),
        change(checkpointing={"interval": 0, "mode": "at-least-once"})(d),
    ),
    "an interval that nobody states": change(checkpointing={"mode": "exactly-once"}),
    "files that Spark does not clean up": vertex(
        "flights", source={"format": "json", "path": "/x", "schema": "a INT", "options": {"CLEANSOURCE": "OFF"}}
    ),
    "files of text, which have a schema of their own": vertex("flights", source={"format": "text", "path": "/x"}),
    "a source that needs no path": vertex("flights", source={"format": "rate"}),
    "a python source": vertex("flights", source={"python": "lib.flights:read", "options": {"x": 1}}),
    "a python sink": vertex("out", sink={"python": "lib.flights:write"}),
    "a path with a param": lambda d: (
        change(params={"minutes": 60, "out": "s3://bucket"})(d),
        vertex("out", sink={"format": "parquet", "path": "${out}/x", "partition-by": ["w"]})(d),
    ),
    "an interval with its word": delay("interval 2 hours"),
    "an interval of several parts": delay(" 1 day 12 HOURS "),
    "a part of a second": delay("0.5 seconds"),
    "a delay by a param": delay("${minutes} minutes"),
    "a start at the latest offsets": change(restore={"path": "hdfs://host/x", "offsets": "latest"}),
    "a claim of a snapshot": change(restore={"path": "/x", "mode": "claim"}),
    "exchanges of two vertices in two modes": lambda d: d["vertices"].update(
        middle={"inputs": [{"id": "delays", "exchange": True, "output-mode": "append"}], "sql": "SELECT 1"},
        out={"inputs": [{"id": "middle", "exchange": True, "output-mode": "update"}], "sink": {"format": "console"}},
    ),
    "an artifact that was uploaded": change(artifacts=[{"name": "x.py", "key": "p-1", "size": 0}]),
    "an option of a sink that is nearly one of a source": vertex(
        "out", sink={"format": "json", "path": "/x", "options": {"maxFilePerTrigger": 1}}
    ),
    "a module that is the user's": change(artifacts=["flights.py", "pyspark.zip"]),
}


@pytest.mark.parametrize("what", SOUND)
def test_what_looks_like_a_fault_and_is_none_is_accepted(what: str) -> None:
    """A rule refuses no more than it says (J4)."""
    document = copy.deepcopy(CARRIER_DELAYS)
    SOUND[what](document)
    assert found(document) == ()


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("30s", "did you mean 30 seconds?"),
        ("5m", "did you mean 5 minutes?"),
        ("2h", "did you mean 2 hours?"),
        ("1d", "did you mean 1 days?"),
        ("3 hrs", "did you mean 3 hours?"),
        ("3 Minuts", "did you mean 3 minutes?"),
        ("3 xyzzy", "2 hours, 30 seconds, 1 day 12 hours"),
        ("a day", "2 hours, 30 seconds, 1 day 12 hours"),
    ],
)
def test_a_delay_is_told_in_the_words_that_spark_reads(text: str, hint: str) -> None:
    """Short forms of units are those of minflinkd's own options (J4)."""
    document = copy.deepcopy(CARRIER_DELAYS)
    delay(text)(document)
    assert [fault.hint for fault in found(document)] == [hint]
