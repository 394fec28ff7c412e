"""A daemon that takes orders: what the page asks of it is noted."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.component.page.steering.world import Steered, steered


@pytest_asyncio.fixture(loop_scope="session")
async def world() -> AsyncIterator[Steered]:
    async with steered() as found:
        yield found
