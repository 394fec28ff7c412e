"""Code of a job that takes over its TaskManager's connection does not reach what only clients may ask for."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from minflinkd.ha.embedded import cluster_secret
from minflinkd.rpc.jobs import CancelJob, ListJobs
from minflinkd.rpc.local import LocalNetwork
from minflinkd.rpc.messages import ListTaskManagers
from minflinkd.rpc.network import DISPATCHER, RESOURCE_MANAGER, task_manager
from minflinkd.rpc.tcp import RpcUplink
from minflinkd.runtime.errors import RemoteError
from minflinkd.runtime.ids import JobId, ResourceId
from tests.attack.conftest import AttackedDaemon
from tests.waiting import until


async def test_a_taskmanager_can_neither_list_nor_cancel_jobs(attacked: AttackedDaemon) -> None:
    """It knows the secret, and the daemon has let it in. Its connection is closed (E40)."""
    network = LocalNetwork()
    secret = cluster_secret(Path(attacked.daemon.state_directory) / "cluster.secret")
    place = attacked.daemon.rpc.endpoint
    address = task_manager(ResourceId("tm-0123456789ab"))
    with capture_logs():
        async with RpcUplink(network, address=address, secret=secret, daemon=place) as uplink:
            for target, request in (
                (DISPATCHER, ListJobs()),
                (DISPATCHER, CancelJob(job_id=JobId("1" * 32))),
                (RESOURCE_MANAGER, ListTaskManagers()),
            ):
                await until(uplink.connected.is_set)
                connection = uplink._connection
                with pytest.raises(RemoteError) as refused:
                    await network.ask(target, request, timeout=10)
                assert refused.value.info().code == "rpc-not-allowed"
                await until(lambda connection=connection: connection is not None and connection.closed)
        await network.aclose()
