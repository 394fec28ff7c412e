"""`POST` and `DELETE /taskmanagers/:id/drain` (A15b)."""

from __future__ import annotations

import aiohttp

from tests.unit.rest.parties import RUNNING, TM, ResourceManager

Http = aiohttp.ClientSession


async def test_a_taskmanager_is_drained_and_shows_it(http: Http, resource_manager: ResourceManager) -> None:
    """It has no free slots from the answer on, and tells which jobs are there and why (A15b)."""
    resource_manager.held = ["it is a batch job"] * 2
    async with http.post(f"/taskmanagers/{TM}/drain") as response:
        assert (response.status, await response.json()) == (202, {"id": TM, "draining": True})
    async with http.get(f"/taskmanagers/{TM}") as response:
        shown = await response.json()
    assert (shown["freeSlots"], shown["minflinkd"]["draining"]) == (0, True)
    assert shown["minflinkd"]["held-by"] == {RUNNING: "it is a batch job"}
    assert (shown["minflinkd"]["version"], shown["minflinkd"]["standalone"]) == ("0.0.9", False)


async def test_draining_is_undone(http: Http, resource_manager: ResourceManager) -> None:
    """Its slots are free again (A15b)."""
    resource_manager.drained = True
    async with http.delete(f"/taskmanagers/{TM}/drain") as response:
        assert (response.status, await response.json()) == (200, {"id": TM, "draining": False})
    async with http.get(f"/taskmanagers/{TM}") as response:
        assert (await response.json())["freeSlots"] == 1


async def test_a_taskmanager_that_is_not_registered_is_not_found(http: Http) -> None:
    """As with any other route (A15b)."""
    async with http.post("/taskmanagers/tm-ffffffffffff/drain") as response:
        assert (response.status, (await response.json())["code"]) == (404, "not-found")
