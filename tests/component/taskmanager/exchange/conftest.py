"""An exchange log, and the endpoint that serves it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from minflinkd.taskmanager.exchange.endpoint import DataEndpoint
from minflinkd.taskmanager.exchange.log import LogWriter
from tests.component.taskmanager.exchange.mirror_world import TASK, TOKEN, WRITER


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
async def endpoint(tmp_path: Path) -> AsyncIterator[DataEndpoint]:
    async with DataEndpoint(root=tmp_path / "there", token=TOKEN, host="127.0.0.1", ports=[0]) as endpoint:
        yield endpoint


@pytest.fixture
def log(tmp_path: Path) -> LogWriter:
    """A log as the task upstream writes it."""
    log = LogWriter(tmp_path / "there" / WRITER, (TASK,))
    log.describe("schema")
    return log
