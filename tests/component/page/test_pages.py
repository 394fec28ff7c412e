"""Every page in a real browser: it opens, in both themes and on small screens, and nothing is wrong with it (E19)."""

from __future__ import annotations

from typing import Literal

import pytest
from msgspec.structs import replace
from playwright.async_api import Browser, expect

from minflinkd.rpc.autoscaler import AutoscalerStatus, GroupNeed
from minflinkd.rpc.messages import PendingRecords
from minflinkd.runtime.ids import JobId, TaskId
from tests.component.page.opened import Opened, opened
from tests.component.page.world import FLIGHTS, MARKUP, World, job, large, now_ms
from tests.servers.install import AXE
from tests.shortened import first
from tests.unit.rest.parties import TM

pytestmark = pytest.mark.asyncio(loop_scope="session")

CLICKS, FAILED = "1f" * 16, "4f" * 16
PLACES = {
    "": "Overview",
    f"jobs/{FLIGHTS}": "flights: carrier delays by hour",
    f"jobs/{FLIGHTS}?task=by_plane": "flights: carrier delays by hour",
    f"jobs/{FLIGHTS}/checkpoints": "flights: carrier delays by hour",
    f"jobs/{FLIGHTS}/checkpoints/57": "flights: carrier delays by hour",
    f"jobs/{FLIGHTS}/timeline": "flights: carrier delays by hour",
    f"jobs/{CLICKS}": "clicks",
    f"jobs/{FAILED}/timeline": "import",
    "taskmanagers": "TaskManagers",
    f"taskmanagers/{TM}": TM,
    f"taskmanagers/{TM}/logs/session.log": TM,
    "nowhere": "Nothing is here",
}


@pytest.mark.skipif(not AXE.is_file(), reason="axe-core is not installed (make servers)")
@pytest.mark.parametrize("theme", first(["light", "dark"]))
async def test_every_page_is_accessible_and_complains_of_nothing(
    browser: Browser, world: World, theme: Literal["light", "dark"]
) -> None:
    """No error of a script, no answer of 4xx or 5xx, nothing against the policy, nothing that axe-core finds."""
    async with opened(browser, world.url, theme=theme) as page:
        faults = {}
        for place, title in PLACES.items():
            await page.go(place)
            await expect(page.page.locator("h1")).to_have_text(title)
            await page.page.wait_for_load_state("networkidle" if place == "nowhere" else "load")
            if found := await page.faults():
                faults[place] = found
        assert faults == {}
        assert await page.violations() == []


async def test_on_a_telephone_nothing_sticks_out(browser: Browser, world: World) -> None:
    """At 360 pixels only tables, graphs and tracebacks scroll, never the whole page."""
    async with opened(browser, world.url, width=360, height=740) as page:
        for place, title in PLACES.items():
            await page.go(place)
            await expect(page.page.locator("h1")).to_have_text(title)
            assert await page.page.evaluate("document.documentElement.scrollWidth") <= 360, place


async def test_names_with_markup_are_shown_as_they_are(page: Opened, world: World) -> None:
    """Names, messages and logs are users' texts: none of them becomes an element."""
    odd = JobId("8f" * 16)
    world.dispatcher.jobs[odd] = job(odd, MARKUP, now_ms() - 1000)
    world.task_manager.logs["odd.log"] = MARKUP.encode() + b"\n"
    for place in (
        "",
        f"jobs/{odd}",
        f"jobs/{odd}/timeline",
        f"jobs/{odd}/checkpoints",
        f"taskmanagers/{TM}/logs/odd.log",
    ):
        await page.go(place)
        await expect(page.page.get_by_text(MARKUP).first).to_be_visible()
        assert await page.page.locator("img").count() == 0
        assert "broken" not in (await page.page.title()).replace(MARKUP, "")


async def test_a_taskmanager_shows_its_memory_and_its_garbage_collection(page: Opened, world: World) -> None:
    """The share of the time turns bad over 10 %, and then the TaskManager needs attention (E17)."""
    await page.go("taskmanagers")
    cards = page.page.locator("section.panel", has=page.page.locator(".manager"))
    slow, healthy = cards.nth(0), cards.nth(1)
    await expect(healthy).to_contain_text("Python workers324 MiB")
    await expect(healthy).to_contain_text("Heap591 MiB of 1023 MiB")
    await expect(healthy).to_contain_text("Garbage collection2 %")
    await expect(healthy).to_contain_text("generation 2")
    await expect(healthy.locator("dd.bad")).to_have_count(0)
    await expect(slow.locator("dd.bad")).to_have_text("17 %")
    await expect(page.page.get_by_text("spends 17 % of the time collecting garbage")).to_be_visible()
    await slow.get_by_role("link").first.click()
    figures = page.page.locator("dl.figures > div").filter(has_text="Garbage collection")
    await expect(figures.locator("dd.bad")).to_contain_text("17 %of the last minute")
    memory = page.page.get_by_role("region", name="Slots and memory")
    await expect(memory).to_contain_text("G1 Young Generation412 collections, 3.8 s")
    await expect(memory).to_contain_text("G1 Old Generation1 collection, 240 ms")


async def test_a_job_shows_what_waits_in_kafka(page: Opened, world: World) -> None:
    """Of all its sources together, and of one of its tasks by partition, those with most records first (K9)."""
    behind = world.dispatcher.jobs[FLIGHTS]
    parts = {f"flights.{number}": number for number in range(10)}
    first, *others = behind.tasks
    pending = {"flights": PendingRecords(records=45, parts=parts)}
    told = replace(first, metrics=replace(first.metrics, pending=pending))
    world.dispatcher.jobs[FLIGHTS] = replace(behind, tasks=(told, *others))
    await page.go(f"jobs/{FLIGHTS}")
    await expect(page.page.locator("dl.figures > div").filter(has_text="Waiting in Kafka")).to_contain_text("45records")
    await page.page.locator(".node").first.click()
    task = page.page.get_by_role("region", name="Task ")
    await expect(task).to_contain_text("45 records wait")
    await expect(task).to_contain_text("flights.9 9, flights.8 8, flights.7 7")


async def test_a_job_shows_what_its_autoscaler_has_decided(page: Opened, world: World) -> None:
    """The sentence, what each group needs, and the changes before; a job without one has no such panel (R62)."""
    await page.go(f"jobs/{FLIGHTS}")
    panel = page.page.get_by_role("region", name="Autoscaler")
    await expect(page.page.get_by_role("region", name="Graph")).to_be_visible()
    await expect(panel).to_have_count(0)
    need = GroupNeed(group="default", slots=2, wanted=6.2, utilization=2.1, task=TaskId("flights"), rate=1800.0)
    status = AutoscalerStatus(
        enabled=True, verdict="limited", why="it needs 6.2 slots", least=1, most=2, target=0.7, groups=(need,)
    )
    job = world.dispatcher.jobs[FLIGHTS]
    rescale = replace(job.hot_restarts[0], number=2, reason="900 rows/s: 1 -> 2 slots")
    world.dispatcher.jobs[FLIGHTS] = replace(job, autoscaler=status, hot_restarts=(rescale, *job.hot_restarts))
    await page.page.reload()
    await expect(panel).to_contain_text("1 to 2 slots, target 70 %")
    await expect(panel).to_contain_text("limited: it needs 6.2 slots")
    await expect(panel.locator("tbody tr")).to_contain_text("≤ 210 %")
    await expect(panel).to_contain_text("900 rows/s: 1 -> 2 slots")


async def test_two_hundred_jobs_are_listed_and_found(page: Opened, world: World) -> None:
    """All of them are there within a moment, and a filter finds one."""
    for n in range(200):
        one = JobId(f"{n:032x}")
        world.dispatcher.jobs[one] = job(one, f"pipeline {n}", now_ms() - n * 60_000)
    await page.page.reload()
    rows = page.page.locator("tbody tr")
    await expect(rows).to_have_count(207)
    await page.page.keyboard.press("/")
    await page.page.keyboard.type("pipeline 17")
    await expect(rows).to_have_count(11)
    await page.page.keyboard.press("Enter")
    await page.page.keyboard.press("j")
    await page.page.keyboard.press("o")
    await expect(page.page.locator("h1")).to_have_text("pipeline 17")


async def test_the_graph_of_fifty_tasks_has_all_of_them_side_by_side(page: Opened, world: World) -> None:
    """Every task has its place, none covers another one, and one that is chosen is told of in detail."""
    many = JobId("7f" * 16)
    world.dispatcher.jobs[many] = large(many)
    await page.go(f"jobs/{many}")
    nodes = page.page.locator(".node")
    await expect(nodes).to_have_count(50)
    boxes = [box for n in range(50) if (box := await nodes.nth(n).bounding_box())]
    for n, one in enumerate(boxes):
        for other in boxes[n + 1 :]:
            beside = one["x"] + one["width"] <= other["x"] + 1 or other["x"] + other["width"] <= one["x"] + 1
            above = one["y"] + one["height"] <= other["y"] + 1 or other["y"] + other["height"] <= one["y"] + 1
            assert beside or above
    await nodes.nth(7).click()
    await expect(page.page.get_by_role("region", name="Task v7")).to_be_visible()
    assert page.page.url.endswith("?task=v7")
