"""The API server is away, busy, slow or loses answers: no TaskManager is lost, and none is started twice."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from minflinkd.resourcemanager.kubernetes import client as client_module
from minflinkd.resourcemanager.kubernetes import launcher as module
from minflinkd.resourcemanager.kubernetes.pods import PodPhase
from minflinkd.resourcemanager.kubernetes.template import UnusablePodTemplate
from minflinkd.resourcemanager.kubernetes.wire import Pod
from minflinkd.resourcemanager.launcher import StartFailed
from tests.component.resourcemanager.launcher_world import alive
from tests.kubernetes.pod_world import OTHER, TM, PodWorld, template
from tests.waiting import until


async def test_a_start_waits_for_an_api_server_that_is_away(world: PodWorld) -> None:
    """It is asked for about a minute, and those who wait are told why (R50)."""
    world.server.go_away()
    starting = asyncio.create_task(world.launcher.start(TM))
    assert "the API server of Kubernetes" in await world.waiting("cannot be reached")
    world.server.come_back()
    await starting
    await until(lambda: world.waits[-1] == (TM, ""))
    await world.phase(TM, "Running")


async def test_a_start_that_is_stopped_before_it_has_begun_is_over(world: PodWorld) -> None:
    """Whoever waits for it is told, and nothing is left (R50)."""
    await world.launcher.adopt()
    starting = asyncio.create_task(world.launcher.start(TM))
    stopping = asyncio.create_task(world.launcher.stop(TM, kill=True))  # in the same turn of the event loop
    with pytest.raises(StartFailed, match="not wanted any more"):
        await starting
    await stopping
    assert world.launcher.living() == ()
    assert world.server.pod(TM) is None


async def test_a_pod_does_not_wait_for_an_api_server_that_is_back(world: PodWorld) -> None:
    """It waits for its node, as before (R50)."""
    world.nodes.nodes[0].room = 0
    await world.launcher.start(TM)
    before = await world.waiting("not scheduled")
    world.server.go_away()
    await world.waiting("the API server of Kubernetes")
    world.server.come_back()
    await until(lambda: world.waits[-1] == (TM, before))


async def test_an_api_server_that_stays_away_fails_the_start(world: PodWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries are bounded: the ResourceManager repeats the start, with pauses of its own (R50)."""
    monkeypatch.setattr(module, "CREATION_PATIENCE", 0.2)
    world.server.go_away()
    with pytest.raises(StartFailed, match="cannot be reached"):
        await world.launcher.start(TM)
    assert world.launcher.living() == ()


async def test_a_pod_that_was_made_although_its_start_failed_is_deleted(
    world: PodWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer was lost, and then the API server was away (R50)."""
    monkeypatch.setattr(module, "CREATION_PATIENCE", 0.1)
    monkeypatch.setattr(module, "DELETION_PAUSE", 0.05)
    await world.launcher.adopt()
    world.server.faults.lost_answers, world.server.faults.then_away = 1, True
    with pytest.raises(StartFailed):
        await world.launcher.start(TM)
    assert world.server.pod(TM) is not None
    world.server.come_back()
    await until(lambda: world.server.pod(TM) is None)
    assert ("delete", "pods") in world.server.asked


async def test_a_start_without_an_answer_has_succeeded_if_the_watch_shows_the_pod(
    world: PodWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is there need not be asked for again (R50)."""
    monkeypatch.setattr(module, "CREATION_PATIENCE", 0.0)
    await world.launcher.adopt()
    world.server.faults.lost_answers = 1

    create = world.launcher._client.create

    async def create_slowly(*args: Any, **options: Any) -> Pod:
        try:
            return await create(*args, **options)
        finally:
            await until(lambda: world.launcher._machine.state.pods[TM].phase is PodPhase.RUNNING)

    monkeypatch.setattr(world.launcher._client, "create", create_slowly)
    await world.launcher.start(TM)
    assert world.server.asked.count(("create", "pods")) == 1


async def test_a_lost_answer_does_not_make_a_second_pod(world: PodWorld) -> None:
    """The repeated request finds the Pod of the first one, which is its own (R50)."""
    world.server.faults.lost_answers = 1
    await world.launcher.start(TM)
    assert world.server.asked.count(("create", "pods")) == 2
    assert len(world.server.store.all("pods")) == 1
    assert [each.resource_id for each in world.launcher.living()] == [TM]


async def test_a_pod_of_somebody_else_with_that_name_is_not_taken_for_ones_own(world: PodWorld) -> None:
    """A Pod of another cluster in the same namespace, for example (R50)."""
    theirs = template() | {"metadata": {"name": TM, "labels": {"minflinkd/cluster": "d" * 32}}}
    world.server.store.create("pods", world.server.namespace, theirs)
    with pytest.raises(StartFailed, match="already exists"):
        await world.launcher.start(TM)
    assert world.launcher.living() == ()
    assert world.server.pod(TM) is not None


async def test_a_busy_api_server_is_given_the_time_that_it_asks_for(world: PodWorld) -> None:
    """429 with Retry-After, and errors of etcd, are repeated (R50)."""
    world.server.faults.busy, world.server.faults.retry_after = 1, "0"
    world.server.faults.broken = 1
    await world.launcher.start(TM)
    await world.phase(TM, "Running")


async def test_an_exhausted_quota_fails_the_start_in_kubernetes_words(world: PodWorld) -> None:
    """It is not repeated at once: the ResourceManager waits longer and longer (R50)."""
    world.server.faults.quota = 0
    with pytest.raises(StartFailed, match=r"exceeded quota: pods, requested: pods=1, used: pods=0, limited: pods=0"):
        await world.launcher.start(TM)
    assert world.server.asked.count(("create", "pods")) == 1
    assert world.launcher.living() == ()


async def test_a_taskmanager_outlives_an_api_server_that_is_away_and_its_end_is_reported_later(
    world: PodWorld,
) -> None:
    """Its death is seen in the list that is made when the API server is back (R50)."""
    pid = await world.start()
    await world.launcher.start(OTHER)
    await world.phase(OTHER, "Running")
    world.server.go_away()
    assert alive(pid)
    world.nodes.kill(TM)
    await world.phase(TM, "Failed")
    assert world.exits == []
    world.server.come_back()
    assert "SIGKILL" in await world.exit()
    assert OTHER in [each.resource_id for each in world.launcher.living()]


async def test_a_watch_that_expired_begins_with_a_list(world: PodWorld) -> None:
    """410: etcd has forgotten what happened meanwhile (R50)."""
    await world.start()
    world.server.cut_watches()
    world.server.faults.away = True
    world.nodes.kill(TM)
    await until(lambda: (world.server.pod(TM) or {})["status"]["phase"] == "Failed")
    lists = world.server.asked.count(("list", "pods"))
    world.server.store.forget()
    world.server.come_back()
    assert "SIGKILL" in await world.exit()
    assert world.server.asked.count(("list", "pods")) > lists


async def test_a_pod_that_is_gone_from_the_list_has_ended(world: PodWorld) -> None:
    """It was removed by force while nobody watched (R50)."""
    await world.start()
    world.server.go_away()
    world.server.store.remove("pods", world.server.namespace, TM)
    world.server.store.forget()
    world.server.come_back()
    assert await world.exit() == "its Pod was deleted"


async def test_a_stop_is_repeated_until_the_api_server_has_heard_it(
    world: PodWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A TaskManager that nobody wants must not stay (R50)."""
    monkeypatch.setattr(module, "DELETION_PAUSE", 0.05)
    monkeypatch.setattr(client_module, "PATIENCE", 0.1)
    pid = await world.start()
    world.server.go_away()
    stopping = asyncio.create_task(world.launcher.stop(TM))
    with capture_logs() as logs:
        await until(lambda: any(line["event"].startswith("a Pod could not be deleted") for line in logs))
    assert alive(pid)
    world.server.come_back()
    await stopping
    assert not alive(pid)


async def test_a_replaced_token_is_read_again(world: PodWorld) -> None:
    """Kubernetes replaces the tokens of service accounts before they expire (R50)."""
    await world.start()
    world.server.token = "another"
    (world.account / "token").write_text("another\n")
    await world.launcher.start(OTHER)
    await world.phase(OTHER, "Running")


async def test_the_api_server_checks_the_template_at_the_start(world: PodWorld) -> None:
    """What only it can know, such as a misspelled field, is refused with its path (R50)."""
    launcher = world.launcher
    await launcher.check()
    assert world.server.store.all("pods") == []
    launcher._template["spec"]["containers"][0]["imagePullPolicies"] = "Always"
    with pytest.raises(UnusablePodTemplate, match=r"spec\.containers\[0\].*imagePullPolicies"):
        await launcher.check()
    del launcher._template["spec"]["containers"][0]["imagePullPolicies"]
    launcher._template["spec"]["containers"][0]["volumeMounts"] = [{"name": "secret", "mountPath": "/secret"}]
    with pytest.raises(
        UnusablePodTemplate, match=r'spec\.containers\[0\]\.volumeMounts\[0\]\.name: Not found: "secret"'
    ):
        await launcher.check()


async def test_the_daemon_asks_for_no_more_than_its_role_allows(world: PodWorld) -> None:
    """The Role of deploy/kubernetes has the verbs that are used, and no other (R51)."""
    await world.launcher.check()
    world.own_pod = "minflinkd-0"
    await world.crash()
    await world.start()
    await world.launcher.stop(TM)
    (rule,) = world.server.rights.rules
    assert {(verb, resource) for verb in rule["verbs"] for resource in rule["resources"]} == set(world.server.asked)
