"""Each fault that a job file may have, alone: where it is, and what is said of it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minflinkd.jobgraph.faults import GraphFault, InvalidJobGraph
from minflinkd.jobgraph.validation import parse_job
from tests.unit.jobgraph.conftest import CARRIER_DELAYS
from tests.unit.jobgraph.faults_of_settings import FAULTS_OF_SETTINGS
from tests.unit.jobgraph.faults_of_vertices import FAULTS_OF_SINKS, FAULTS_OF_VERTICES

FindFaults = Callable[[object], dict[str, GraphFault]]
Document = dict[str, Any]
TOLD = Path(__file__).with_name("single_faults.txt")

SINGLE_FAULTS = FAULTS_OF_SETTINGS | FAULTS_OF_VERTICES | FAULTS_OF_SINKS


@pytest.mark.parametrize("case", SINGLE_FAULTS)
def test_a_single_fault_is_the_only_one_reported(case: str, document: Document, faults: FindFaults) -> None:
    """A fault has the path, what is wrong and what would be right.

    Faults that only follow from it are not reported (J4).
    """
    change, path, text = SINGLE_FAULTS[case]
    assert not faults(document)
    change(document)
    found = faults(document)
    assert list(found) == [path]
    assert text in str(found[path])


def told() -> str:
    """Return what a user reads about each fault."""
    texts = []
    for case, (change, _, _) in SINGLE_FAULTS.items():
        document = copy.deepcopy(CARRIER_DELAYS)
        change(document)
        with pytest.raises(InvalidJobGraph) as refused:
            parse_job(document)
        texts += [f"{case}\n    {fault}\n" for fault in refused.value.faults]
    return "".join(texts)


def test_what_a_user_reads_about_each_fault_was_read_before() -> None:
    """Whoever changes a text reads it in its place, beside the others (J4).

    `python -m tests.unit.jobgraph.test_single_faults` writes the file anew.
    """
    assert told() == TOLD.read_text()


if __name__ == "__main__":
    TOLD.write_text(told())
