"""One browser for all tests of a process: it takes longer to start than a test takes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser

from tests.component.page.opened import Opened, opened
from tests.component.page.world import World, running
from tests.servers.chromium import chromium


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as found:
        yield found


@pytest_asyncio.fixture(loop_scope="session")
async def world() -> AsyncIterator[World]:
    async with running() as found:
        yield found


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def modules(browser: Browser) -> AsyncIterator[Opened]:
    """A window in which tests call functions of the page's modules. None of them changes what is in it."""
    async with running() as world, opened(browser, world.url) as found:
        yield found


@pytest.fixture
def place() -> str:
    """Where a window is opened: the overview. Some modules have another place."""
    return ""


@pytest_asyncio.fixture(loop_scope="session")
async def page(browser: Browser, world: World, place: str) -> AsyncIterator[Opened]:
    """A window of its own."""
    async with opened(browser, world.url, place=place) as found:
        yield found
