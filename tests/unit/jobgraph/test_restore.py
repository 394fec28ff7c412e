"""What a job file may say about its start."""

from __future__ import annotations

from typing import Any

import pytest

from minflinkd.jobgraph.faults import InvalidJobGraph
from minflinkd.jobgraph.model import Externalized, Restore, RestoreMode, decode, encode
from minflinkd.jobgraph.validation import parse_job

VERTICES = {
    "flights": {"source": {"format": "rate"}},
    "out": {"inputs": ["flights"], "sink": {"format": "parquet", "path": "/out"}},
}


def document(**restore: Any) -> dict[str, Any]:
    return {"name": "job", "restore": restore, "vertices": VERTICES}


@pytest.mark.parametrize(
    ("restore", "expected"),
    [
        ({"path": "/s/savepoint-1"}, Restore(path="/s/savepoint-1")),
        (
            {"path": "s3://b/c/chk-3", "mode": "claim", "allow-non-restored-state": True},
            Restore(path="s3://b/c/chk-3", mode=RestoreMode.CLAIM, allow_non_restored_state=True),
        ),
        (
            {"path": "/s/savepoint-1", "allow-changed-state": True},
            Restore(path="/s/savepoint-1", allow_changed_state=True),
        ),
        ({"path": "/c/job", "offsets": "latest"}, Restore(path="/c/job", offsets="latest")),
        ({"offsets": {"flights": {"t": {"0": 7}}}}, Restore(offsets={"flights": {"t": {"0": 7}}})),
    ],
)
def test_a_start_is_read_as_it_is_written(restore: dict[str, Any], expected: Restore) -> None:
    """The job store gives it back unchanged (J3, C24, C26)."""
    graph = parse_job(document(**restore))
    assert graph.restore == expected
    assert decode(encode(graph)) == graph


@pytest.mark.parametrize(
    ("restore", "path", "problem"),
    [
        ({}, "restore.path", "path is missing"),
        ({"path": "savepoint-1"}, "restore.path", "is not absolute"),
        ({"path": "/s", "mode": "claims"}, "restore.mode", "is not"),
        ({"path": "/s", "offsets": "last"}, "restore.offsets", "is not latest"),
        ({"offsets": "latest"}, "restore.path", "path is missing"),
        ({"offsets": {"fligths": 1}}, "restore.offsets.fligths", "there is no source"),
        ({"path": "/s", "offsets": {"flights": 1}}, "restore.path", "the offsets are given"),
        ({"path": "/s", "offsets": "latest", "mode": "claim"}, "restore.mode", "claims nothing"),
    ],
)
def test_a_wrong_start_is_a_fault_at_its_place(restore: dict[str, Any], path: str, problem: str) -> None:
    """J4."""
    with pytest.raises(InvalidJobGraph) as caught:
        parse_job(document(**restore))
    assert [fault.path for fault in caught.value.faults] == [path]
    assert problem in caught.value.faults[0].problem


def test_checkpoints_may_be_retained() -> None:
    """C24."""
    graph = parse_job({"name": "job", "checkpointing": {"externalized": "retain"}, "vertices": VERTICES})
    assert graph.checkpointing.externalized is Externalized.RETAIN
