"""Which part of a faulty job Spark is asked about, and which of its answers the user sees (J4)."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from minflinkd.jobgraph.faults import GraphFault, InvalidJobGraph
from minflinkd.jobgraph.model import JobGraph
from minflinkd.jobgraph.sound_part import of_the_job, sound_tasks
from minflinkd.jobgraph.validation import parse_job


def sound_part(document: dict[str, Any]) -> JobGraph:
    with pytest.raises(InvalidJobGraph) as refused:
        parse_job(document)
    assert refused.value.sound is not None
    return refused.value.sound


def test_what_lost_its_sink_ends_in_one_that_takes_everything(document: dict[str, Any]) -> None:
    """Nothing is said about this added sink, because its real fault is reported already (J4)."""
    document["vertices"]["out"]["sink"]["format"] = "hudi"
    (task,) = sound_tasks(sound_part(document))
    assert [vertex.id for vertex in task.vertices][:2] == ["flights", "delays"]
    (end,) = task.sinks
    assert end.inputs[0].id == "delays"
    bogus = GraphFault(path=f"vertices.{end.id}", problem="no such mode")
    real = GraphFault(path="vertices.delays.sql", problem="no such column")
    assert of_the_job([bogus, real], [task]) == (real,)


def test_sinks_of_different_vertices_are_looked_at_with_their_own_rows(document: dict[str, Any]) -> None:
    """Sinks are checked as they would run, each at the end of its own task (J4)."""
    vertices = document["vertices"]
    vertices["raw"] = {"inputs": ["flights"], "sink": copy.deepcopy(vertices["out"]["sink"]) | {"path": "/data/raw"}}
    vertices["wrong"] = {"inputs": ["fligths"], "sql": "SELECT 1"}
    tasks = sound_tasks(sound_part(document))
    assert {task.end: [sink.id for sink in task.sinks] for task in tasks} == {"flights": ["raw"], "delays": ["out"]}


def test_a_part_without_open_ends_stays_as_it_is(document: dict[str, Any]) -> None:
    """Every fault belongs to the job then (J4)."""
    document["nmae"] = "x"
    tasks = sound_tasks(sound_part(document))
    assert [vertex.id for task in tasks for vertex in task.vertices] == ["flights", "delays", "out"]
    fault = GraphFault(path="vertices.out", problem="wrong")
    assert of_the_job([fault], tasks) == (fault,)


def test_what_is_faulty_is_left_out_with_all_that_reads_it(document: dict[str, Any]) -> None:
    """The rest is in the order of the data, whatever the document's (J4)."""
    last = {"inputs": ["fine"], "sink": {"format": "console"}}
    document["vertices"] |= {"last": last, "fine": {"inputs": ["more"], "sql": "SELECT 1"}, "idle": {}}
    document["vertices"]["more"] = {"source": {"format": "rate"}}
    document["vertices"]["flights"]["source"].pop("schema")
    assert [vertex.id for vertex in sound_part(document).vertices] == ["more", "fine", "last"]
