"""A task's partitions on the page: which of them took how long, and which one is far beyond the others (E19)."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.async_api import expect

from minflinkd.rpc.messages import TaskPartitions
from tests.component.page.opened import Opened
from tests.component.page.world import FLIGHTS, World
from tests.unit.rest.parties import partition

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_an_uneven_partition_is_seen_and_said(page: Opened, world: World) -> None:
    """The bars are drawn by time and by rows; the sentence names the partition and is read out."""
    told = tuple(partition(index, 900 if index == 5 else 100, 90 if index == 5 else 80) for index in range(8))
    world.task_manager.partitions = TaskPartitions(batch_id=3, partitions=8, told=told)
    await page.go(f"jobs/{FLIGHTS}?task=by_plane")
    by_time = page.page.get_by_role("img", name="Time by partition")
    await expect(by_time).to_have_accessible_name(
        "Time by partition, 8 partitions: 5 has 9.0 s, the others 1.0 s on average"
    )
    await expect(by_time.locator("i")).to_have_count(8)
    await expect(by_time.locator("i.warn")).to_have_count(1)
    await expect(by_time.locator("i.warn")).to_have_attribute(
        "title",
        "Partition 5 since the query was started: 9.0 s, 900 rows read, 450 written; "
        "in the last micro-batch 900 ms, 90 rows",
    )
    by_rows = page.page.get_by_role("img", name="Rows read by partition")
    await expect(by_rows.locator("i.warn")).to_have_count(0)
    heights = await by_time.locator("i").evaluate_all("all => all.map((one) => one.getBoundingClientRect().height)")
    assert heights[5] > 5 * heights[0] > 0


async def test_without_partitions_there_are_no_bars(page: Opened, world: World) -> None:
    world.task_manager.partitions = TaskPartitions()
    await page.go(f"jobs/{FLIGHTS}?task=clean")
    await expect(page.page.locator(".task-facts")).to_be_visible()
    await page.page.wait_for_load_state("networkidle")
    await expect(page.page.get_by_role("img", name="Time by partition")).to_have_count(0)


UNEVEN: list[tuple[list[int], Any]] = [
    ([5], None),
    ([100, 100], {"index": 0, "most": 100, "others": 100, "uneven": False}),
    ([10, 30, 10], {"index": 1, "most": 30, "others": 10, "uneven": True}),
    ([0, 0], {"index": 0, "most": 0, "others": 0, "uneven": False}),
]


async def test_uneven_is_what_the_diagnosis_takes_for_it(modules: Opened) -> None:
    """Three times the mean of the others."""
    for times, wanted in UNEVEN:
        partitions = [{"index": index, "time": time} for index, time in enumerate(times)]
        assert await modules.ask("app/partitions.js", f"m.uneven({partitions}, 'time')") == wanted
