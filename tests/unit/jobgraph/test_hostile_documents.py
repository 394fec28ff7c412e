"""What a document may cost: a bounded number of faults, of guesses, of values, of vertices (E45)."""

from __future__ import annotations

import difflib
import json
from typing import Any

import pytest

from minflinkd.jobgraph.document import LARGEST, parse_json, parse_yaml
from minflinkd.jobgraph.faults import MOST, MOST_GUESSES, InvalidJobGraph
from minflinkd.jobgraph.validation import MOST_VALUES, MOST_VERTICES
from tests.unit.jobgraph.hostile_documents import HOSTILE


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_document_has_a_bounded_answer_made_with_a_bounded_number_of_guesses(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To look for what a wrong word stands for is what costs most. The number of times is bounded, whatever is sent."""
    compared, matches = [0], difflib.get_close_matches

    def counted(word: str, known: Any, *args: Any, **more: Any) -> list[str]:
        known = list(known)
        compared[0] += len(known)
        return matches(word, known, *args, **more)

    monkeypatch.setattr(difflib, "get_close_matches", counted)
    text = json.dumps(HOSTILE[name]()).encode()
    assert len(text) <= LARGEST
    refused: InvalidJobGraph | None = None
    try:
        parse_json(text).job()
    except InvalidJobGraph as error:
        refused = error
    assert refused is None or (len(refused.faults) <= MOST + 1 and len(str(refused)) < 100_000)
    assert compared[0] <= MOST * MOST_VERTICES * 2 + MOST_GUESSES * 100


def test_only_the_first_faults_are_listed_and_the_others_counted() -> None:
    with pytest.raises(InvalidJobGraph) as refused:
        parse_json(json.dumps(HOSTILE["unknown keys"]()).encode()).job()
    *listed, last = refused.value.faults
    assert len(listed) == MOST
    assert last.path == "job"
    assert last.problem.endswith("more faults")
    assert last.hint == "correct the listed ones first"


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("too many vertices", f"the job has {MOST_VERTICES + 1:,} vertices, and {MOST_VERTICES:,} are the most"),
        ("too many values", f"the document has more than {MOST_VALUES:,} values"),
    ],
)
def test_a_document_with_too_much_in_it_is_refused_with_the_limit(name: str, problem: str) -> None:
    with pytest.raises(InvalidJobGraph) as refused:
        parse_json(json.dumps(HOSTILE[name]()).encode()).job()
    assert problem in [fault.problem for fault in refused.value.faults]


@pytest.mark.parametrize("parse", [parse_json, parse_yaml])
def test_a_document_that_is_too_large_is_refused_unread(parse: Any) -> None:
    with pytest.raises(InvalidJobGraph, match="are the most"):
        parse(b"{" + b" " * LARGEST + b"}")
