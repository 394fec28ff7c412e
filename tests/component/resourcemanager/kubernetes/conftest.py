"""An API server with a node, and a launcher, for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from minflinkd.resourcemanager.kubernetes import client, launcher, watch
from minflinkd.runtime.tls import Clients, Tls
from tests.kubernetes.api_server import ApiServer, api_server
from tests.kubernetes.kubelet import kubelets
from tests.kubernetes.pod_world import PodWorld, pod_world
from tests.tls import CaInTest


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CaInTest:
    return CaInTest(tmp_path_factory.mktemp("api-server"))


@pytest.fixture
async def server(tmp_path: Path, authority: CaInTest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ApiServer]:
    monkeypatch.setattr(client, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(client, "LONGEST_PAUSE", 0.05)
    monkeypatch.setattr(watch, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(watch, "LONGEST_PAUSE", 0.05)
    monkeypatch.setattr(launcher, "FIRST_LIST_TIMEOUT", 120.0)  # however busy the machine is
    monkeypatch.setattr(launcher, "STOP_TIMEOUT", 120.0)
    account = tmp_path / "account"
    account.mkdir()
    (account / "ca.crt").write_bytes(authority.ca.read_bytes())
    async with api_server(account, tls=Tls(authority.files("api-server")).server(Clients.NEED_NONE)) as running:
        yield running


@pytest.fixture
async def world(server: ApiServer, tmp_path: Path) -> AsyncIterator[PodWorld]:
    async with kubelets(server, tmp_path / "nodes") as nodes, pod_world(server, nodes, tmp_path / "account") as world:
        yield world
