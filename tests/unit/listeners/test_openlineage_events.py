"""OpenLineage events: valid by OpenLineage's own classes, which are made from its schema (E19b).

No package brings the schema itself: neither the Python nor the Java clients and integrations do.
"""

from __future__ import annotations

import importlib
import pkgutil
import typing
from typing import Any

import attr
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minflinkd.listeners.interface import ChangeKind, Dataset, InvalidListenerOption, JobChange
from minflinkd.runtime.errors import ErrorInfo
from minflinkd_openlineage import OpenLineage
from minflinkd_openlineage.events import SCHEMA, datasets, event

generated = pytest.importorskip("openlineage.client.generated", reason="pip install openlineage-python")
base = importlib.import_module("openlineage.client.generated.base")

FACETS: dict[str, type] = {}  # by their schema's URL
for module in pkgutil.iter_modules(generated.__path__):
    for kind in vars(importlib.import_module(f"openlineage.client.generated.{module.name}")).values():
        if isinstance(kind, type) and attr.has(kind) and hasattr(kind, "_get_schema"):
            FACETS[kind._get_schema()] = kind

CHANGE = JobChange(
    kind=ChangeKind.FAILED,
    job_id="3fa85f6457174562b3fc2c963f66afa6",
    name="clicks",
    at_ms=1_760_000_010_500,
    started_ms=1_760_000_000_000,
    owner="ada",
    inputs=(
        Dataset(
            vertex="clicks",
            format="kafka",
            options={"kafka.bootstrap.servers": "broker:9092,other:9092", "subscribe": "clicks, views"},
        ),
        Dataset(vertex="names", format="json", path="s3://bucket/names"),
        Dataset(vertex="ticks", format="rate"),
    ),
    outputs=(
        Dataset(vertex="files", format="parquet", path="/data/out"),
        Dataset(
            vertex="table",
            format="jdbc",
            options={"url": "jdbc:postgresql://db/shop?user=x", "dbtable": "sales", "password": "***"},
        ),
    ),
    sql="SELECT 1",
    error=ErrorInfo(code="user-code", message="ValueError: seven", traceback="Traceback ..."),
)


def validated(value: dict[str, Any], kind: type) -> None:
    """Make the value one of OpenLineage's own, with their validators. Refuses names that they do not have."""
    hints = typing.get_type_hints(
        kind, {**vars(base), **vars(typing), **vars(importlib.import_module(kind.__module__))}
    )
    fields = {field.name: field for field in attr.fields(kind)}
    made = {}
    for name, inner in value.items():
        assert name in fields, f"{kind.__name__} has no {name}"
        if isinstance(inner, dict) and name.endswith(("facets", "Facets")):
            for facet in inner.values():
                validated(facet, FACETS[facet["_schemaURL"]])
        elif isinstance(inner, dict):
            validated(inner, typing.cast(type, hints[name]))
        elif isinstance(inner, list) and name in ("inputs", "outputs"):
            for each in inner:
                validated(each, base.InputDataset if name == "inputs" else base.OutputDataset)
        if fields[name].init:
            made[fields[name].alias or name] = inner
        else:
            assert inner == kind._get_schema(), name  # type: ignore[attr-defined]
    if kind is base.RunEvent:
        made["eventType"] = base.EventType(made["eventType"])
    kind(**made)


@pytest.mark.parametrize("kind", ChangeKind)
def test_every_kind_of_event_is_valid(kind: ChangeKind) -> None:
    change = JobChange(**{name: getattr(CHANGE, name) for name in CHANGE.__struct_fields__} | {"kind": kind})
    made = event(change, "minflinkd")
    assert made["schemaURL"] == SCHEMA
    validated(made, base.RunEvent)


@given(
    name=st.text(min_size=1),
    path=st.text(),
    options=st.dictionaries(st.sampled_from(["url", "dbtable", "subscribe", "kafka.bootstrap.servers"]), st.text()),
    form=st.sampled_from(["kafka", "jdbc", "json", "python", "delta"]),
    at=st.integers(0, 2**42),
)
def test_whatever_a_job_says_its_event_is_valid(
    name: str, path: str, options: dict[str, str], form: str, at: int
) -> None:
    """Names, paths and options are users' texts."""
    known = Dataset(vertex="v", format=form, path=path, options=options)
    change = JobChange(
        kind=ChangeKind.STARTED, job_id="a" * 32, name=name, at_ms=at, started_ms=at, inputs=(known,), outputs=(known,)
    )
    validated(event(change, "minflinkd"), base.RunEvent)


def test_an_event_of_something_else_is_refused() -> None:
    """Otherwise `validated` would show nothing."""
    wrong = event(CHANGE, "minflinkd")
    for change in ({"eventTyp": "START"}, {"eventTime": "yesterday"}, {"run": {"runId": "no uuid"}}):
        with pytest.raises((AssertionError, ValueError, TypeError)):
            validated({**wrong, **change}, base.RunEvent)


def test_datasets_are_named_as_openlineage_names_them() -> None:
    made = event(CHANGE, "minflinkd")
    assert made["inputs"] == [
        {"namespace": "kafka://broker:9092", "name": "clicks"},
        {"namespace": "kafka://broker:9092", "name": "views"},
        {"namespace": "s3://bucket", "name": "names"},
    ]
    assert made["outputs"] == [
        {"namespace": "file", "name": "/data/out"},
        {"namespace": "postgres://db:5432", "name": "shop.public.sales"},
    ]


def test_an_event_that_is_sent_twice_is_the_same_run() -> None:
    assert (
        event(CHANGE, "x")["run"]["runId"]
        == event(CHANGE, "x")["run"]["runId"]
        == ("3fa85f64-5717-4562-b3fc-2c963f66afa6")
    )


def test_passwords_in_addresses_are_not_sent() -> None:
    known = Dataset(vertex="v", format="json", path="ftp://ada:hunter2@host/x")
    assert "hunter2" not in str(list(datasets(known)))
    jdbc = Dataset(vertex="v", format="jdbc", options={"url": "jdbc:mysql://ada:hunter2@host/db", "dbtable": "t"})
    assert list(datasets(jdbc)) == [{"namespace": "mysql://host:3306", "name": "db.t"}]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "go nowhere"),
        ({"url": "ftp://x"}, "no http or https URL"),
        ({"ulr": "http://x"}, "listeners.openlineage.ulr"),
        ({"url": "http://x", "timeout": "soon"}, "duration"),
        ({"url": "http://x", "attempts": "0"}, "attempts"),
    ],
)
def test_wrong_options_are_refused_with_what_is_right(options: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidListenerOption, match=words):
        OpenLineage(options)
