"""The last complete checkpoint of a job that has no JobMaster to ask."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from minflinkd.dispatcher.job_run import JobRun
from minflinkd.dispatcher.job_store import JobStore, StoredJob
from minflinkd.jobgraph.model import JobGraph
from minflinkd.runtime.clock import SystemClock
from minflinkd.storage.registry import Storages
from tests.unit.checkpoint.builders import JOB
from tests.unit.checkpoint.stored_checkpoints import StoredCheckpoints


@pytest.mark.parametrize(("shared", "latest"), [(True, 1), (False, 2)], ids=["several daemons", "one daemon"])
async def test_with_several_daemons_only_a_checkpoint_with_a_pointer_counts(
    tmp_path: Path, shared: bool, latest: int
) -> None:
    """A version on trial is not proven by a checkpoint whose leader died before the pointer (A11a, H7)."""
    storages, written = Storages(), StoredCheckpoints(tmp_path / "checkpoints")
    for number in (1, 2):
        written.checkpoint(number)
    store = JobStore(storages.at(str(tmp_path / "service")), shared=shared)
    if (pointers := store.pointers(JOB)) is not None:
        await pointers.child("0000000001").write_bytes(b"")
    factory: Any = SimpleNamespace(
        gate=None, checkpoints_of=lambda _: storages.at(str(written.directory)), pointers_of=store.pointers
    )
    blobs: Any = None
    policy: Any = None
    run = JobRun(
        StoredJob(job_id=JOB, submitted_ms=1, graph=JobGraph(name="copy", vertices=())),
        factory=factory,
        blobs=blobs,
        store=store,
        clock=SystemClock(),
        restarts=policy,
        recovered=True,
        on_end=lambda _: None,
    )
    assert await run.latest_stored() == latest
    await storages.aclose()
