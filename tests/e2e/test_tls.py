"""A job on two TaskManagers, where every connection of the cluster uses TLS."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster import running_cluster
from tests.faults.test_exchange_between_taskmanagers import counted, places, spanning
from tests.tls import CaInTest, everywhere
from tests.waiting import until
from tests.windows_job import WindowsJob, result

pytestmark = [pytest.mark.spark, pytest.mark.slow]


async def test_a_job_runs_over_tls_and_its_certificates_change_meanwhile(tmp_path: Path) -> None:
    """Its deployment, messages and exchange go over TLS. Nothing restarts with new certificates (E42)."""
    ca = CaInTest(tmp_path / "tls")
    settings = everywhere(ca.files("daemon"))
    slots = {"resourcemanager.standby-taskmanagers": 2, "resourcemanager.max-taskmanagers": 2}
    slots["taskmanager.numberOfTaskSlots"] = 4
    small = {"blob.offload.minsize": "1 KiB"}  # so deployments travel as blobs
    job = WindowsJob(tmp_path / "job", files=5)
    job.write_events()
    async with running_cluster(tmp_path / "cluster", ca_file=ca.ca, **settings, **slots, **small) as cluster:
        assert cluster.url.startswith("https://")
        before = {tm.id for tm in await cluster.await_ready(2)}
        out = job.base / "result"
        job_id = await cluster.submit(spanning(job, out))
        source, reader = places(await cluster.await_state(job_id, "RUNNING"))
        assert source != reader
        ca.files("daemon")
        finished = await cluster.await_state(job_id, "FINISHED", timeout=180)
        assert finished.minflinkd.restarts == 0
        assert result(out) == counted(job.events)
        assert {tm.id for tm in await cluster.task_managers()} >= before
        await until(lambda: "certificates were read again" in cluster.log, "the daemon reads them again", timeout=30)
