from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minflinkd.jobgraph.document import JobDocument, parse_json, parse_yaml, read_job_file
from minflinkd.jobgraph.faults import GraphFault, InvalidJobGraph
from minflinkd.jobgraph.validation import parse_job

YAML = """\
name: test
mode: batch
vertices:
  numbers:
    source:
      format: rate
      options:
        rowsPerSecond: 10
  out:
    inputs:
      - nubmers
    sink: {format: parqet, path: /out}
"""


def lines(document: JobDocument) -> dict[str, int | None]:
    with pytest.raises(InvalidJobGraph) as refused:
        document.job()
    return {fault.path: fault.line for fault in refused.value.faults}


def test_faults_have_the_lines_of_the_file() -> None:
    """The place is that in the document (J4)."""
    assert lines(parse_yaml(YAML.encode())) == {"vertices.out.sink.format": 12, "vertices.out.inputs[0]": 11}


def test_faults_in_a_list_of_vertices_have_lines_too() -> None:
    """A vertex in a list is named by its id, with the line of its entry (J4)."""
    text = "name: test\nvertices:\n- id: out\n  sink: {format: json}\n"
    assert lines(parse_yaml(text.encode())) == {"vertices.out": 3, "vertices.out.sink": 4}


def test_faults_found_elsewhere_get_their_lines() -> None:
    """Spark's errors about the SQL of a vertex are shown at the vertex (J4)."""
    fault = GraphFault(path="vertices.out.sink.path.below", problem="no")
    assert parse_yaml(YAML.encode()).locate([fault])[0].line == 12


def test_a_vertex_that_is_there_twice_is_a_fault_among_the_others() -> None:
    """A plain YAML mapping would silently keep one of them (J4)."""
    text = YAML + "  out: {inputs: [numbers]}\n"
    assert lines(parse_yaml(text.encode())) == {
        "vertices.out": 13,
        "vertices.out.sink.format": 12,
        "vertices.out.inputs[0]": 11,
    }


def test_a_key_that_is_twice_in_json_is_a_fault() -> None:
    """J4."""
    with pytest.raises(InvalidJobGraph, match='"name" is twice'):
        parse_json(b'{"name": "a", "name": "b", "vertices": {}}').job()


@pytest.mark.parametrize(
    "text",
    ["a: [", "a: b: c", "\tx", "", "&a [*a]", "{", "? [a]\n: b", "\x00", "x: *nobody", "a: !!binary x", "[" * 1000],
)
def test_what_is_no_yaml_is_a_fault(text: str) -> None:
    """Syntax errors are refused like any other fault (J4)."""
    with pytest.raises(InvalidJobGraph):
        parse_yaml(text.encode()).job()


@pytest.mark.parametrize("text", [b"", b"{", b"[" * 100_000, b'{"a": NaN}', b"\xff", b"1" * 5000])
def test_what_is_no_json_is_a_fault(text: bytes) -> None:
    """J4."""
    with pytest.raises(InvalidJobGraph):
        parse_json(text).job()


@given(st.text(alphabet="ab:-[]{}&*!?|>'\"# \n\t0.~<%@", max_size=60))
def test_no_text_makes_the_reader_fail_otherwise(text: str) -> None:
    """Any text is a job or is refused (J4)."""
    with contextlib.suppress(InvalidJobGraph):
        parse_yaml(text.encode()).job()


def test_dates_stay_texts_and_numbers_numbers() -> None:
    """A document holds what JSON can hold."""
    value = parse_yaml(b"a: 2013-01-01\nb: 1\nc: 1.5\nd: true\ne: null\nf: yes\ng: '1'\n1: x\n").value
    assert value == {"a": "2013-01-01", "b": 1, "c": 1.5, "d": True, "e": None, "f": "yes", "g": "1", "1": "x"}


def test_yaml_and_json_give_the_same_job(document: dict[str, Any], tmp_path: Path) -> None:
    """A job file is YAML or JSON (J1)."""
    (tmp_path / "job.json").write_text(json.dumps(document))
    (tmp_path / "job.yaml").write_text(json.dumps(document, indent=2))
    assert read_job_file(tmp_path / "job.json").job() == read_job_file(tmp_path / "job.yaml").job()


def test_params_can_be_set_from_outside(document: dict[str, Any]) -> None:
    """`minflinkd run -p minutes=5` sets a param (J3)."""
    graph = JobDocument(document).with_params({"minutes": 5, "more": "x"}).job()
    assert graph.params == {"minutes": 5, "more": "x"}
    assert parse_job(document).params == {"minutes": 60}


def test_the_example_of_the_repository_is_valid() -> None:
    """The example is the demo's job file."""
    graph = read_job_file(Path(__file__).parents[3] / "examples/flights/flights.yaml").job()
    assert [a.name for a in graph.artifacts] == ["flights.py"]
