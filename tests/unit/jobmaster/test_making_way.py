"""What a JobMaster that makes way knows of what its sinks have committed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pytest

from minflinkd.checkpoint.metadata import CompletedCheckpoint, restore_point
from minflinkd.jobmaster.making_way import MakingWay
from minflinkd.storage.publication import SinkTransaction
from tests.unit.checkpoint.builders import A1, JOB, A, completed, snapshot


@dataclass
class Coordinator:
    """The checkpoints that are retained, and the last one that all tasks have published."""

    retained: tuple[CompletedCheckpoint, ...]
    published: CompletedCheckpoint | None

    def latest(self) -> CompletedCheckpoint | None:
        return restore_point(self.retained)

    def latest_published(self) -> CompletedCheckpoint | None:
        return self.published


def checkpoint(number: int) -> CompletedCheckpoint:
    owed = SinkTransaction(job_id=JOB, sink="rows", root="", checkpoint_id=number, files=(), tokens=(f"t{number}",))
    return completed(number, snapshot(number, A, A1, transactions=(owed,)))


@pytest.mark.parametrize("retained", [1, 2, 3])
def test_a_sink_that_is_left_behind_owes_nothing_once_the_latest_checkpoint_is_published(retained: int) -> None:
    """However many checkpoints before it are retained: what they owed was published before (J12, J13)."""
    checkpoints = tuple(checkpoint(number) for number in range(1, retained + 1))
    for published in (None, *checkpoints):
        way = MakingWay(JOB, cast(Any, None), cast(Any, Coordinator(checkpoints, published)))
        assert way.published is (published == checkpoints[-1])


def test_a_job_without_a_checkpoint_owes_nothing() -> None:
    """J12."""
    assert MakingWay(JOB, cast(Any, None), cast(Any, Coordinator((), None))).published
