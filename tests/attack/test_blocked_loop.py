"""No request keeps the event loop of the daemon from serving the others (E45)."""

from __future__ import annotations

import json

import aiohttp
import pytest

from tests.attack.conftest import AttackedDaemon
from tests.attack.loop_watch import watched
from tests.unit.jobgraph.hostile_documents import HOSTILE

LONGEST = 0.05  # seconds of processor time that one callback may take


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_document_does_not_keep_the_loop(attacked: AttackedDaemon, name: str) -> None:
    """TaskManagers must get their answers meanwhile. 33 KB once took the loop for 8.4 s (E45)."""
    body = json.dumps(HOSTILE[name]()).encode()
    headers = {"Content-Type": "application/json"}
    async with aiohttp.ClientSession(attacked.url, headers=attacked.headers) as http:
        with watched(attacked.thread) as longest:
            async with http.post("/jobs?dry-run", data=body, headers=headers) as response:
                answer = await response.json()
    assert response.status in (400, 503), answer
    assert len(json.dumps(answer)) < 200_000
    assert longest.seconds < LONGEST, longest.callback
