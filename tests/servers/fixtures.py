"""The servers as fixtures.

There is one of each for the whole run, and one for each test that kills it. Several tests share the former, so each
works below a prefix of its own. If a server is not installed, its tests are skipped.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TypeVar

import pytest
import pytest_asyncio

from tests.servers.apache_kafka import ApacheKafka
from tests.servers.azure import Azurite
from tests.servers.gcs import FakeGcs
from tests.servers.hdfs import Hdfs
from tests.servers.kafka import Tansu
from tests.servers.mariadb import MariaDB
from tests.servers.postgres import Postgres
from tests.servers.process import Server
from tests.servers.s3 import Moto, SeaweedFS
from tests.servers.schema_registry import Apicurio
from tests.servers.sftp import Sftp
from tests.servers.zookeeper import Ensemble, ZooKeeper

S = TypeVar("S", bound=Server)


@contextlib.asynccontextmanager
async def running(kind: type[S], directory: Path) -> AsyncIterator[S]:
    """Start a server and yield it when it is ready. Skip the test if it is not installed.

    It is killed at the end, because nothing of it is needed then.
    """
    if reason := kind.missing():
        pytest.skip(reason)
    server = kind(directory)
    await server.start()
    try:
        yield server
    finally:
        await server.kill()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def moto(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Moto]:
    async with running(Moto, tmp_path_factory.mktemp("moto")) as server:
        yield server


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def seaweedfs(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SeaweedFS]:
    async with running(SeaweedFS, tmp_path_factory.mktemp("seaweedfs")) as server:
        yield server


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def fake_gcs(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[FakeGcs]:
    async with running(FakeGcs, tmp_path_factory.mktemp("gcs")) as server:
        yield server


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def azurite(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Azurite]:
    async with running(Azurite, tmp_path_factory.mktemp("azurite")) as server:
        yield server


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def hdfs(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Hdfs]:
    async with running(Hdfs, tmp_path_factory.mktemp("hdfs")) as server:
        yield server


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def sftp(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Sftp]:
    async with running(Sftp, tmp_path_factory.mktemp("sftp")) as server:
        yield server


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def postgres(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Postgres]:
    async with running(Postgres, tmp_path_factory.mktemp("postgres")) as server:
        yield server


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def mariadb(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[MariaDB]:
    async with running(MariaDB, tmp_path_factory.mktemp("mariadb")) as server:
        yield server


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def kafka(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Tansu]:
    async with running(Tansu, tmp_path_factory.mktemp("kafka")) as server:
        yield server


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def apache_kafka(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ApacheKafka]:
    async with running(ApacheKafka, tmp_path_factory.mktemp("apache-kafka")) as server:
        yield server


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def schema_registry(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Apicurio]:
    async with running(Apicurio, tmp_path_factory.mktemp("schema-registry")) as server:
        yield server


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ZooKeeper]:
    async with running(ZooKeeper, tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest_asyncio.fixture
async def own_zookeeper(tmp_path: Path) -> AsyncIterator[ZooKeeper]:
    async with running(ZooKeeper, tmp_path / "zookeeper") as server:
        yield server


@pytest_asyncio.fixture
async def ensemble(tmp_path: Path) -> AsyncIterator[Ensemble]:
    if reason := ZooKeeper.missing():
        pytest.skip(reason)
    three = Ensemble(tmp_path / "zookeeper")
    try:
        await three.start()
        yield three
    finally:
        await three.kill()


@pytest_asyncio.fixture
async def own_seaweedfs(tmp_path: Path) -> AsyncIterator[SeaweedFS]:
    async with running(SeaweedFS, tmp_path / "seaweedfs") as server:
        yield server


@pytest_asyncio.fixture
async def own_fake_gcs(tmp_path: Path) -> AsyncIterator[FakeGcs]:
    async with running(FakeGcs, tmp_path / "gcs") as server:
        yield server


@pytest_asyncio.fixture
async def own_azurite(tmp_path: Path) -> AsyncIterator[Azurite]:
    async with running(Azurite, tmp_path / "azurite") as server:
        yield server
