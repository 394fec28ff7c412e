"""The life of a TaskManager's Pod, from its start to the report of its end."""

from __future__ import annotations

import asyncio
import signal

import pytest

from minflinkd.resourcemanager.kubernetes import launcher as module
from minflinkd.resourcemanager.launcher import Launched, StartFailed, StopFailed, TaskManagerLauncher
from tests.component.resourcemanager.launcher_world import alive
from tests.kubernetes.pod_world import (
    CLUSTER_ID,
    EXPLAIN,
    FAIL,
    OTHER,
    OWN_POD,
    STATEFUL_SET,
    STUBBORN,
    TM,
    PodWorld,
    template,
)
from tests.waiting import until


async def test_a_started_taskmanager_is_a_pod_of_its_name_that_names_cluster_and_epoch(world: PodWorld) -> None:
    """Its name is the ResourceId, so that everybody finds it (R50)."""
    launcher: TaskManagerLauncher = world.launcher
    pid = await world.start()
    assert alive(pid)
    pod = world.server.pod(TM)
    assert pod is not None
    labels = pod["metadata"]["labels"]
    assert (labels["minflinkd/cluster"], labels["minflinkd/epoch"]) == (CLUSTER_ID, "1")
    assert pod["spec"]["containers"][0]["args"][:4] == ["taskmanager", "--managed", "--resource-id", TM]
    assert await launcher.adopt() == (Launched(TM),)


async def test_a_stopped_taskmanager_ends_by_itself_and_its_pod_is_gone(world: PodWorld) -> None:
    """SIGTERM comes first, and the end is reported although it was asked for (R50)."""
    pid = await world.start()
    await world.launcher.stop(TM)
    assert not alive(pid)
    assert await world.exit() == "its container ended with exit code 0"
    await until(lambda: world.server.pod(TM) is None)
    await world.launcher.stop(TM)  # it is already gone


async def test_a_stubborn_taskmanager_is_killed_if_it_is_to_be(world: PodWorld) -> None:
    """A kill shortens the grace period of the Pod, also of one that was asked to end (R50)."""
    world.script = STUBBORN
    pid = await world.start()
    politely = asyncio.create_task(world.launcher.stop(TM))
    await until(lambda: "deletionTimestamp" in (world.server.pod(TM) or {"metadata": {}})["metadata"])
    assert alive(pid)
    await world.launcher.stop(TM, kill=True)
    await politely
    assert not alive(pid)


async def test_a_taskmanager_that_dies_is_reported_with_the_signal(world: PodWorld) -> None:
    """The reason tells what ended it, and the end of its log (R50)."""
    await world.start()
    world.nodes.kill(TM, signal.SIGKILL)
    assert await world.exit() == "its container was killed by SIGKILL (exit code 137); its log ends:\nup"
    await until(lambda: world.server.pod(TM) is None)


@pytest.mark.parametrize(
    ("script", "how"),
    [
        (FAIL, "its container ended with exit code 3; its log ends:\nno such thing as Spark"),
        (EXPLAIN, "its container ended with exit code 1: no such thing as Java"),
    ],
)
async def test_a_taskmanager_that_cannot_run_says_why(world: PodWorld, script: str, how: str) -> None:
    """Its last words come out of the Pod's status: no right to read logs is needed (R50)."""
    world.script = script
    await world.launcher.start(TM)
    assert await world.exit() == how


async def test_a_taskmanager_without_memory_is_told_from_one_that_was_killed(world: PodWorld) -> None:
    """The exit code is the same, and what to do is not (R50)."""
    await world.start()
    world.nodes.out_of_memory(TM)
    assert "OOMKilled, exit code 137): raise resources.limits.memory" in await world.exit()


async def test_an_evicted_taskmanager_is_reported_in_the_kubelets_words(world: PodWorld) -> None:
    """Eviction is no fault of the TaskManager (R50)."""
    await world.start()
    world.nodes.evict(TM, "The node was low on resource: memory.")
    assert await world.exit() == "its Pod failed: Evicted: The node was low on resource: memory."


async def test_a_pod_without_room_waits_with_the_schedulers_sentence(world: PodWorld) -> None:
    """The sentence goes as soon as nothing keeps the Pod any more (R50)."""
    world.nodes.nodes[0].room = 0
    await world.launcher.start(TM)
    assert await world.waiting("not scheduled") == (
        "its Pod is not scheduled: 0/1 nodes are available: 1 Too many pods."
    )
    world.nodes.nodes[0].room = 1
    world.server.store.wake()
    await until(lambda: world.waits[-1] == (TM, ""))


async def test_a_pod_whose_image_is_missing_says_so_and_can_be_stopped(world: PodWorld) -> None:
    """It never runs by itself, so the ResourceManager gives it up (R50)."""
    world.nodes.missing.add("minflinkd:0.1.0")
    await world.launcher.start(TM)
    assert 'ImagePullBackOff: Back-off pulling image "minflinkd:0.1.0"' in await world.waiting("ImagePullBackOff")
    await world.launcher.stop(TM, kill=True)
    assert await world.exit() == "its Pod was deleted"


async def test_a_pod_on_a_lost_node_is_reported_when_the_node_is_given_up_for_good(world: PodWorld) -> None:
    """Until then nobody knows whether it runs; that it is silent, the ResourceManager sees by its heartbeats (R50)."""
    pid = await world.start()
    world.nodes.lose("node-1")
    world.nodes.give_up("node-1")
    world.nodes.remove("node-1")
    assert "DeletionByTaintManager" in await world.exit()
    assert alive(pid)


async def test_a_pod_that_does_not_go_is_an_error_that_says_what_it_waits_for(
    world: PodWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its kubelet cannot confirm the end (R50)."""
    monkeypatch.setattr(module, "STOP_TIMEOUT", 0.3)
    await world.start()
    world.nodes.lose("node-1")
    with pytest.raises(StopFailed, match=r"still there.*its node may be lost"):
        await world.launcher.stop(TM, kill=True)
    world.nodes.find("node-1")
    await world.exit()


async def test_pods_belong_to_the_stateful_set_and_not_to_the_daemons_own_pod(world: PodWorld) -> None:
    """They go with the StatefulSet, and outlive a restart of the daemon's Pod (R50)."""
    store, namespace = world.server.store, world.server.namespace
    daemon = template() | {"metadata": {"name": OWN_POD, "ownerReferences": [STATEFUL_SET]}}
    store.create("pods", namespace, daemon)
    world.own_pod = OWN_POD
    await world.start()
    pod = world.server.pod(TM)
    assert pod is not None
    assert pod["metadata"]["ownerReferences"] == [
        {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "minflinkd", "uid": "u-1"}
    ]


async def test_a_daemon_that_may_not_lead_starts_and_ends_nothing(world: PodWorld) -> None:
    """The next leader may have adopted the Pods (A11)."""
    pid = await world.start()
    world.leads = False
    with pytest.raises(StartFailed, match="not certain that this daemon leads"):
        await world.launcher.start(OTHER)
    await world.launcher.stop(TM, kill=True)
    assert alive(pid)
    assert world.server.pod(TM) is not None


async def test_a_cancelled_start_leaves_a_pod_that_is_watched(world: PodWorld) -> None:
    """The ResourceManager may end in the middle of a start (R7)."""
    world.server.faults.slow = 0.2
    starting = asyncio.create_task(world.launcher.start(TM))
    await until(lambda: world.launcher.living())
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    world.server.faults.slow = 0.0
    await world.phase(TM, "Running")
    assert world.launcher.living() == (Launched(TM),)
    await world.launcher.stop(TM, kill=True)
    await world.exit()
