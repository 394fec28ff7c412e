"""`GET /quotas`, and whose a submitted job is."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from minflinkd.rest.identity.roles import Role
from minflinkd.rpc.local import LocalNetwork
from tests.component.rest.access_world import OWN, World, bearer, world
from tests.unit.rest.parties import Dispatcher


@pytest.fixture
async def at(network: LocalNetwork, dispatcher: Dispatcher, tmp_path: Path) -> AsyncIterator[World]:
    async with world(network, tmp_path) as found:
        yield found


async def users(http: aiohttp.ClientSession, headers: dict[str, str] | None = None) -> tuple[str, list[str]]:
    async with http.get("/quotas", headers=headers) as response:
        assert response.status == 200
        answer = await response.json()
    return answer["user"], [each["user"] for each in answer["quotas"]]


@pytest.mark.parametrize("role", [Role.VIEW, Role.OPERATE, Role.SUBMIT])
async def test_each_user_sees_what_they_have_and_no_more(at: World, role: Role) -> None:
    name = str(role)
    assert await users(at.http, bearer(name)) == (name, [name])


async def test_an_admin_sees_what_everybody_has(at: World) -> None:
    """Also over the Unix socket, where the kernel says who it is."""
    assert await users(at.http, bearer("admin")) == ("admin", ["admin", "alice", "bob"])
    assert await users(at.local) == (f"uid {os.geteuid()}", ["alice", "bob", f"uid {os.geteuid()}"])


async def test_figures_are_beside_their_limits(at: World) -> None:
    """A limit that does not exist is null."""
    async with at.http.get("/quotas", headers=bearer(OWN)) as response:
        found = {each["user"]: each for each in (await response.json())["quotas"]}
    assert found["alice"] == {
        "user": "alice",
        "jobs": {"used": 1, "limit": 1},
        "slots": {"used": 2, "limit": 8},
        "artifacts": {"used": 1536, "limit": 2 << 30},
    }
    assert found["bob"]["jobs"] == {"used": 1, "limit": None}


async def test_a_job_belongs_to_who_has_submitted_it(at: World, dispatcher: Dispatcher) -> None:
    """The name of the token, or the user at the other end of the socket."""
    async with at.http.post("/jobs", json={"name": "x"}, headers=bearer("submit")) as response:
        assert response.status == 202
    async with at.local.post("/jobs?dry-run", json={"name": "x"}) as response:
        assert response.status == 200
    assert [each.owner for each in dispatcher.submissions] == ["submit", f"uid {os.geteuid()}"]


async def test_where_nobody_is_asked_every_job_is_anonymous(
    http: aiohttp.ClientSession, dispatcher: Dispatcher
) -> None:
    """So the limits of `anonymous`, or those of everybody, count for all of them together."""
    async with http.post("/jobs", json={"name": "x"}) as response:
        assert response.status == 202
    assert dispatcher.submissions[0].owner == "anonymous"
    assert await users(http) == ("anonymous", ["alice", "anonymous", "bob"])
