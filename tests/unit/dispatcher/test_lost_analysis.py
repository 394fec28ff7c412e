"""A submission whose session is lost while it is analysed (J4, R11)."""

from __future__ import annotations

import pytest

from minflinkd.rpc.network import Unreachable
from minflinkd.runtime.errors import MinflinkError, RemoteError
from minflinkd.runtime.ids import JobId
from minflinkd.taskmanager.child.protocol import SessionLost
from tests.unit.dispatcher.conftest import DOCUMENT, Cluster

JOB = JobId("a" * 32)
LOSSES = [SessionLost("the session child ended"), Unreachable("no connection")]


@pytest.mark.parametrize("loss", LOSSES)
async def test_a_job_is_analysed_again_by_another_session(cluster: Cluster, loss: MinflinkError) -> None:
    """Its TaskManager may just have been killed, which is no fault of the job."""
    tries = 0

    async def lose_the_first() -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise loss

    cluster.before_analysis = lose_the_first
    async with cluster.serving():
        assert (await cluster.submit(JOB, DOCUMENT)).faults == ()
    assert tries == 2


async def test_a_job_that_ends_every_session_ends_no_third(cluster: Cluster) -> None:
    """The submission is refused, with the way in which the second session was lost."""
    tries = 0

    async def lose_all() -> None:
        nonlocal tries
        tries += 1
        raise SessionLost("the session child ended")

    cluster.before_analysis = lose_all
    async with cluster.serving():
        with pytest.raises(RemoteError, match=r"could not be analysed at .*: the session child ended") as refused:
            await cluster.submit(JOB, DOCUMENT)
    assert refused.value.info().code == "no-session"
    assert tries == 2
