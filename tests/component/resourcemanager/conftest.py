"""A launcher for each test. Its processes end with the test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.component.resourcemanager.launcher_world import Host


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[Host]:
    host = Host(tmp_path)
    yield host
    for launched in await host.launcher.adopt():
        await host.launcher.stop(launched.resource_id, kill=True)
    await host.launcher.aclose()
