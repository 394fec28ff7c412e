"""What ails a daemon: it gets no processor time, its standby ends, a blob changes on disk, somebody guesses (E19b)."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import aiohttp
import pytest

from benchmarks.swarm import Player
from minflinkd.blob.keys import BlobKind
from minflinkd.rest.identity.tokens import Token
from minflinkd.rest.measuring import MAX_JOBS
from minflinkd.runtime.ids import IdSource, ResourceId
from tests.beside import beside
from tests.cluster import Cluster, free_port, running_cluster
from tests.e2e.alerts.firing import fires, hurried, nothing_fires
from tests.pair_of_daemons import Pair, stands_by
from tests.servers.prometheus import needs_prometheus, prometheus
from tests.servers.zookeeper import ZooKeeper
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session"), needs_prometheus]

ALONE = {"resourcemanager.standby-taskmanagers": 0}
GUESSES = 30


def address(cluster: Cluster) -> str:
    return cluster.url.removeprefix("http://")


async def guess(cluster: Cluster) -> None:
    """Send wrong tokens, all at once, so that not one scrape comes between them."""

    async def one(http: aiohttp.ClientSession) -> None:
        async with http.get("/jobs", headers={"Authorization": f"Bearer {Token.new().text}"}) as response:
            assert response.status == 401

    async with aiohttp.ClientSession(cluster.url) as http:
        await asyncio.gather(*(one(http) for _ in range(GUESSES)))


async def flip_a_byte_of_a_blob(cluster: Cluster) -> None:
    """Let somebody ask for a blob that has changed on the disk."""
    async with await cluster.client.blob_server() as blobs:
        key = await blobs.put_bytes(None, b"x" * 100, BlobKind.TRANSIENT)
        [file] = (cluster.state / "blobs").rglob(str(key))
        file.write_bytes(b"y" + file.read_bytes()[1:])
        with pytest.raises(Exception, match="blob"):
            await blobs.get_bytes(None, key)


async def often_stopped(cluster: Cluster) -> None:
    """Let the daemon run for half of the time, as on a host that has no processor time for it."""
    while True:
        cluster.process.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(0.4)
        finally:
            cluster.process.send_signal(signal.SIGCONT)
        await asyncio.sleep(0.4)


async def test_guesses_corrupt_blobs_and_late_timers_are_told(tmp_path: Path) -> None:
    async with running_cluster(tmp_path / "cluster", **ALONE) as cluster:
        rules = hurried(tmp_path / "rules.yml")
        async with prometheus(tmp_path / "server", address(cluster), rules=rules, headers=cluster.headers) as server:
            await nothing_fires(server)
            await guess(cluster)
            await fires(server, "MinflinkdLogInsRefused", severity="warning")
            await flip_a_byte_of_a_blob(cluster)
            await fires(server, "MinflinkdBlobsCorrupt", severity="warning")
            async with beside("stops", often_stopped(cluster)):
                await fires(server, "MinflinkdDaemonBusy", severity="warning", instance=address(cluster))


async def test_the_end_of_the_only_standby_is_told(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    """The leader ends, and the standby takes over: now it stands alone."""
    pair = Pair(tmp_path, dict.fromkeys("ab", zookeeper.address))
    async with pair.running() as (leader, standby):
        await stands_by(standby)
        rules, targets = hurried(tmp_path / "rules.yml"), (address(leader), address(standby))
        async with prometheus(tmp_path / "server", *targets, rules=rules, headers=leader.headers) as server:
            await nothing_fires(server)

            async def seen() -> bool:
                return bool(await server.query("max_over_time(sum(minflinkd_standbys)[1m:5s]) > 0"))

            await until(seen, "the standby has been there at one of the rule's steps")
            await leader.stop()
            assert await pair.leader(other_than=leader) is standby
            await fires(server, "MinflinkdNoStandby", severity="warning")


async def test_jobs_beyond_those_with_metrics_are_told(tmp_path: Path) -> None:
    """One TaskManager is played. It analyses all of the jobs, and most of them wait for slots."""
    port = free_port()
    settings = {**ALONE, "resourcemanager.driver": "standalone", "jobmanager.rpc.port": port}
    async with running_cluster(tmp_path / "cluster", **settings) as cluster:
        secret = (cluster.state / "cluster.secret").read_bytes().strip()
        rules, ids = hurried(tmp_path / "rules.yml"), IdSource()
        async with (
            Player(ResourceId("tm-0123456789ab"), slots=8, secret=secret, port=port),
            prometheus(tmp_path / "server", address(cluster), rules=rules, headers=cluster.headers) as server,
        ):
            for number in range(MAX_JOBS + 3):
                vertices = {
                    "ticks": {"source": {"format": "rate"}},
                    "seen": {"inputs": ["ticks"], "sink": {"format": "collect"}},
                }
                job = {"name": f"job {number}", "parallelism": 1, "vertices": vertices}
                await cluster.client.submit(ids.job(), json.dumps(job).encode())
            await fires(server, "MinflinkdJobsNotShown", severity="info", timeout=120)
            [[_, count]] = [found["value"] for found in await server.query("minflinkd_jobs_not_shown")]
            assert count == "3"
