"""Verifications of checkpoints through the Dispatcher (C29)."""

from __future__ import annotations

import pytest

from minflinkd.checkpoint import messages as c
from minflinkd.rpc.network import DISPATCHER
from minflinkd.runtime.errors import RemoteError
from minflinkd.runtime.ids import JobId
from tests.unit.checkpoint.builders import A1, name
from tests.unit.checkpoint.stored_checkpoints import StoredCheckpoints
from tests.unit.dispatcher.conftest import Cluster
from tests.waiting import until

RUNNING = JobId("0" * 31 + "1")
TRIGGER = "7" * 32


async def verified(cluster: Cluster) -> c.Verification:
    question = c.GetVerification(job_id=RUNNING, trigger_id=TRIGGER)

    async def done() -> c.Verification | None:
        found = await cluster.network.ask(DISPATCHER, question, timeout=10)
        return found if found.done else None

    return await until(done)


async def test_the_stored_checkpoints_of_a_job_are_verified(cluster: Cluster) -> None:
    """One request begins it, others ask for the result. A repeated one begins nothing (C29)."""
    stored = StoredCheckpoints(cluster.directory / "checkpoints" / RUNNING, RUNNING)
    stored.checkpoint(1)
    stored.checkpoint(2)
    async with cluster.serving():
        await cluster.submit(RUNNING)
        (stored.directory / name(2, A1)).write_bytes(b"y")
        begin = c.VerifyCheckpoints(job_id=RUNNING, trigger_id=TRIGGER)
        await cluster.network.ask(DISPATCHER, begin, timeout=10)
        found = await verified(cluster)
        assert found.error is None
        assert [(one.checkpoint_id, [d.file for d in one.damage]) for one in found.checkpoints] == [
            (2, [name(2, A1)]),
            (1, []),
        ]
        await cluster.network.ask(DISPATCHER, begin, timeout=10)
        assert await verified(cluster) == found


async def test_nothing_is_verified_of_a_job_that_is_not_there(cluster: Cluster) -> None:
    """Nor is there a result that nobody has asked for (C29)."""
    async with cluster.serving():
        for question in (
            c.VerifyCheckpoints(job_id=RUNNING, trigger_id=TRIGGER),
            c.GetVerification(job_id=RUNNING, trigger_id=TRIGGER),
        ):
            with pytest.raises(RemoteError) as refused:
                await cluster.network.ask(DISPATCHER, question, timeout=10)  # type: ignore[arg-type]
            assert refused.value.info().code == "not-found"
