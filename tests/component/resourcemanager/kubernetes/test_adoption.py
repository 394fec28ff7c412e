"""TaskManagers in Pods outlive their daemon, and the next one finds them."""

from __future__ import annotations

import asyncio

import pytest

from minflinkd.resourcemanager.kubernetes import launcher as module
from tests.component.resourcemanager.launcher_world import alive
from tests.kubernetes.pod_world import CLUSTER_ID, OTHER, TM, PodWorld, template
from tests.waiting import until


async def test_pods_outlive_the_daemon_and_the_next_one_adopts_them_as_they_are(world: PodWorld) -> None:
    """The same uid and the same process, and their exits are reported like those of its own (R7, R50)."""
    pid = await world.start()
    uid = (world.server.pod(TM) or {})["metadata"]["uid"]
    await world.crash()
    assert [each.resource_id for each in await world.launcher.adopt()] == [TM]
    assert (world.server.pod(TM) or {})["metadata"]["uid"] == uid
    assert world.nodes.pid(TM) == pid
    assert alive(pid)
    world.nodes.kill(TM)
    assert "SIGKILL" in await world.exit()


async def test_a_pod_that_ended_while_no_daemon_was_there_is_not_adopted_and_is_removed(world: PodWorld) -> None:
    """Nobody waits for it any more (R50)."""
    await world.start()
    await world.launcher.aclose()
    world.nodes.kill(TM)
    await world.phase(TM, "Failed")
    world.new_launcher()
    assert await world.launcher.adopt() == ()
    await until(lambda: world.server.pod(TM) is None)
    assert world.exits == []


async def test_pods_of_other_clusters_are_left_alone(world: PodWorld) -> None:
    """Several clusters may share a namespace (R50)."""
    theirs = template() | {"metadata": {"name": "tm-0000000000ff", "labels": {"minflinkd/cluster": "d" * 32}}}
    world.server.store.create("pods", world.server.namespace, theirs)
    assert await world.launcher.adopt() == ()
    await world.launcher.reap_leftovers()
    assert world.server.pod("tm-0000000000ff") is not None


async def test_pods_that_could_not_be_listed_at_the_start_are_adopted_later(
    world: PodWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The API server is away while the daemon starts: the daemon comes up all the same (R50)."""
    await world.start()
    monkeypatch.setattr(module, "FIRST_LIST_TIMEOUT", 0.1)
    world.server.go_away()
    await world.crash()
    assert await world.launcher.adopt() == ()
    world.server.come_back()
    await until(lambda: [each.resource_id for each in world.launcher.living()] == [TM])


async def test_a_pod_that_appears_unasked_is_told(world: PodWorld) -> None:
    """The request of the earlier daemon arrived late: the ResourceManager counts it like those that it found (R50)."""
    await world.launcher.adopt()
    late = template() | {"metadata": {"name": OTHER, "labels": {"minflinkd/cluster": CLUSTER_ID}}}
    world.server.store.create("pods", world.server.namespace, late)
    await until(lambda: world.found == [OTHER])


async def test_a_daemon_that_begins_anew_kills_what_the_one_before_has_left_and_nothing_else(world: PodWorld) -> None:
    """TaskManagers that cannot speak with this daemon would stay for ten minutes (A6)."""
    left = await world.start()
    await world.crash()
    own = await world.start(OTHER)
    await world.launcher.reap_leftovers()
    assert not alive(left)
    assert alive(own)


async def test_a_daemon_that_did_not_come_up_ends_its_own_pods_and_nobody_elses(world: PodWorld) -> None:
    """The next daemon finds those of the one before (A6)."""
    left = await world.start()
    await world.crash()
    await world.launcher.adopt()
    own = await world.start(OTHER)
    await world.launcher.stop_all(adopted=False)
    assert alive(left)
    assert not alive(own)
    await world.launcher.stop_all()
    assert not alive(left)


async def test_the_end_of_a_launcher_during_a_start_leaves_the_pod_to_the_next_one(world: PodWorld) -> None:
    """The daemon is killed between the request and its answer (A6)."""
    world.server.faults.slow = 0.2
    starting = asyncio.create_task(world.launcher.start(TM))
    await until(lambda: world.launcher.living())
    await until(lambda: world.server.pod(TM))
    starting.cancel()
    await world.crash()
    world.server.faults.slow = 0.0
    await asyncio.gather(starting, return_exceptions=True)
    assert [each.resource_id for each in await world.launcher.adopt()] == [TM]
