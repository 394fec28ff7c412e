"""A scrape asks the parties, and never fails because one of them is away (E30)."""

from __future__ import annotations

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from minflinkd.rpc.local import LocalNetwork
from tests.unit.rest.parties import RUNNING, TM, Dispatcher, ResourceManager

Http = aiohttp.ClientSession


async def scrape(http: Http) -> dict[tuple[str, tuple[str, ...]], float]:
    async with http.get("/metrics") as response:
        assert response.status == 200
        assert response.content_type == "text/plain"
        text = await response.text()
    families = text_string_to_metric_families(text)
    return {(s.name, tuple(s.labels.values())): s.value for family in families for s in family.samples}


async def test_a_scrape_has_jobs_tasks_checkpoints_and_slots(http: Http) -> None:
    found = await scrape(http)
    assert found["minflinkd_jobs", ("RUNNING",)] == 1
    assert found["minflinkd_jobs", ("CANCELED",)] == 0
    assert found["minflinkd_task_rows_in", (RUNNING, "flights")] == 5000
    assert found["minflinkd_checkpoints_total", (RUNNING, "failed")] == 1
    assert found["minflinkd_checkpoint_last_duration_seconds", (RUNNING,)] == 0.3
    assert found["minflinkd_checkpoint_failures_total", ("expired", RUNNING)] == 1
    assert found["minflinkd_checkpoint_refusals_total", (RUNNING, "too-soon")] == 2
    assert found["minflinkd_checkpoint_consecutive_failures", (RUNNING,)] == 2
    assert found["minflinkd_checkpoint_consecutive_trigger_failures", (RUNNING,)] == 3
    assert found["minflinkd_checkpoint_interval_seconds", (RUNNING,)] == 5
    assert found["minflinkd_checkpoint_duration_seconds", (RUNNING, "0.95")] == 0.3
    assert found["minflinkd_checkpoint_last_alignment_seconds", (RUNNING,)] == 0.08
    assert found["minflinkd_checkpoint_restores_total", (RUNNING,)] == 1
    assert found["minflinkd_slots_free", ()] == 1
    assert ("minflinkd_taskmanager_heartbeat_age_seconds", (TM,)) in found
    assert found["minflinkd_rpc_requests_total", ("ListJobs", "ok")] >= 1
    assert found["minflinkd_rpc_duration_seconds_count", ("ListJobs",)] >= 1
    assert found["minflinkd_mailbox_waiting", ("dispatcher",)] == 0


async def test_a_scrape_has_the_memory_and_the_garbage_collection_of_each_taskmanager(
    http: Http, resource_manager: ResourceManager
) -> None:
    """Labels are bounded: a JVM that named hundreds of collectors would be cut short (E30)."""
    found = await scrape(http)
    assert found["minflinkd_taskmanager_memory_bytes", ("python_workers", TM)] == 3e8
    assert found["minflinkd_taskmanager_heap_used_bytes", (TM,)] == 4e8
    assert found["minflinkd_taskmanager_heap_max_bytes", (TM,)] == 1e9
    assert found["minflinkd_taskmanager_non_heap_used_bytes", (TM,)] == 2e8
    assert found["minflinkd_taskmanager_gc_share", (TM,)] == 0.012
    assert found["minflinkd_taskmanager_gc_collections_total", ("G1_Young_Generation", TM)] == 31
    assert found["minflinkd_taskmanager_gc_seconds_total", ("G1_Young_Generation", TM)] == 0.42
    resource_manager.metrics |= {f"jvm.gc.{number}.count": 1.0 for number in range(500)}
    found = await scrape(http)
    assert len([name for name, _ in found if name == "minflinkd_taskmanager_gc_collections_total"]) == 8


async def test_a_taskmanager_whose_jvm_is_not_there_has_no_metrics_of_it(
    http: Http, resource_manager: ResourceManager
) -> None:
    """An absent number is not 0 (E30)."""
    resource_manager.metrics = {"supervisor.rss_bytes": 9e7}
    found = await scrape(http)
    assert found["minflinkd_taskmanager_memory_bytes", ("supervisor", TM)] == 9e7
    assert not any(name.startswith("minflinkd_taskmanager_heap") for name, _ in found)


async def test_a_scrape_says_who_leads_for_how_long_and_what_it_adopted(http: Http) -> None:
    """A13, A14a: so that alerts can tell a takeover from a leadership that lasts."""
    found = await scrape(http)
    assert found["minflinkd_leader", ()] == 1
    assert found["minflinkd_leadership_epoch", ()] == 7
    assert found["minflinkd_leadership_seconds", ()] > 1000
    assert found["minflinkd_standbys", ()] == 1
    assert found["minflinkd_without_leader_seconds", ()] == 2.5
    assert found["minflinkd_adopted_tasks_total", ()] == 3


async def test_a_scrape_without_a_dispatcher_shows_the_rest(
    http: Http, network: LocalNetwork, dispatcher: Dispatcher
) -> None:
    network.detach(dispatcher.mailbox)
    found = await scrape(http)
    assert ("minflinkd_jobs", ("RUNNING",)) not in found
    assert found["minflinkd_slots", ()] == 2
