"""The tests' own servers: ready when started, found again after a kill, and gone with the test process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import aiohttp
import psutil
import pytest

from tests.servers.apache_kafka import ApacheKafka
from tests.servers.azure import Azurite
from tests.servers.fixtures import running
from tests.servers.gcs import FakeGcs
from tests.servers.kafka import Tansu
from tests.servers.mariadb import MariaDB
from tests.servers.postgres import Postgres
from tests.servers.process import HOST, Server
from tests.servers.s3 import Moto, SeaweedFS
from tests.servers.schema_registry import Apicurio
from tests.servers.sftp import Sftp

ROOT = Path(__file__).parents[2]
KINDS = (Moto, SeaweedFS, FakeGcs, Azurite, Postgres, MariaDB, Tansu, ApacheKafka, Apicurio, Sftp)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
async def test_a_killed_server_comes_back_in_its_place(kind: type[Server], tmp_path: Path) -> None:
    async with running(kind, tmp_path) as server:
        endpoint, first = server.endpoint, psutil.Process(server.pid)
        brood = [first, *first.children(recursive=True)]
        await server.kill()
        assert not any(process.is_running() for process in brood)
        async with aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.ClientConnectionError):
                await session.get(endpoint)
        await server.restart()
        assert server.endpoint == endpoint
        assert await server.answers()
        pid = server.pid
    assert not psutil.pid_exists(pid)


@pytest.mark.parametrize(
    "name", ["moto", "seaweedfs", "fake_gcs", "azurite", "postgres", "mariadb", "kafka", "apache_kafka", "sftp"]
)
def test_a_server_listens_on_loopback_only(request: pytest.FixtureRequest, name: str) -> None:
    process = psutil.Process(request.getfixturevalue(name).pid)
    heard = set[str]()
    for each in (process, *process.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):  # a server's helpers come and go
            heard |= {c.laddr.ip for c in each.net_connections("inet") if c.status == psutil.CONN_LISTEN}
    assert heard == {HOST}


STARTER = """
import asyncio, sys, threading
from pathlib import Path
from tests.servers.gcs import FakeGcs
server = FakeGcs(Path(sys.argv[1]))
asyncio.run(server.start())
print(server.pid, flush=True)
threading.Event().wait()
"""


def test_a_server_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    if reason := FakeGcs.missing():
        pytest.skip(reason)
    argv = [sys.executable, "-c", STARTER, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment) as starter:
        assert starter.stdout is not None
        server = psutil.Process(int(starter.stdout.readline()))
        starter.send_signal(signal.SIGKILL)
        starter.communicate(timeout=60)
    psutil.wait_procs([server], timeout=10)
    assert not server.is_running()
