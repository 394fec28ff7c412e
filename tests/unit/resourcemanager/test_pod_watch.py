"""How Pods are followed: list, then watch, on virtual time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, cast

import msgspec
import pytest

from minflinkd.resourcemanager.kubernetes.client import KubernetesClient
from minflinkd.resourcemanager.kubernetes.watch import LONGEST_PAUSE, Follower, follow
from minflinkd.resourcemanager.kubernetes.wire import Pod, PodList


class Server:
    """Ends each watch after `lasting` seconds, without an event."""

    def __init__(self, lasting: float) -> None:
        self.lasting = lasting
        self.watches = 0

    async def list_pods(self) -> PodList:
        return msgspec.json.decode(b'{"metadata": {"resourceVersion": "1"}, "items": []}', type=PodList)

    async def watch(self, version: str) -> AsyncIterator[tuple[str, Pod]]:
        self.watches += 1
        await asyncio.sleep(self.lasting)
        for nothing in list[Any]():
            yield nothing


class Nobody:
    def __getattr__(self, name: str) -> Any:
        return lambda *args: None


@pytest.mark.looptime
@pytest.mark.parametrize(("lasting", "most"), [(0.0, 30), (60.0, 4)])
async def test_a_server_that_ends_watches_at_once_is_asked_with_growing_pauses(lasting: float, most: int) -> None:
    """It answers, so nothing has failed; without a pause it would be asked as fast as it answers (R50)."""
    server = Server(lasting)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(12 * LONGEST_PAUSE):
            await follow(cast(KubernetesClient, server), cast(Follower, Nobody()))
    assert 2 < server.watches <= most
