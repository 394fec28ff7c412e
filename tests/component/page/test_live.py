"""What the page shows is live, and it says when it is not (E16)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from playwright.async_api import Browser, expect

from minflinkd.rpc.jobs import JobStatus
from tests.component.page.opened import Opened, opened
from tests.component.page.world import FLIGHTS, World
from tests.unit.rest.parties import TM
from tests.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_lost_connection_is_said_and_mended(browser: Browser, world: World) -> None:
    """Since when it is lost is said; when the daemon is back, the page goes on by itself and tells what has changed."""
    async with opened(browser, world.url) as page:
        live, lost = page.page.locator(".connection.live"), page.page.get_by_text("connection to the daemon is lost")
        rows = page.page.locator("tbody tr")
        await expect(rows).to_have_count(7)
        await world.stop()
        await expect(lost).to_be_visible()
        assert await rows.count() == 7, "what was known stays"
        world.dispatcher.jobs.pop(FLIGHTS)
        await world.start_again()
        await expect(live).to_be_visible()
        await expect(lost).to_have_count(0)
        await expect(rows).to_have_count(6)
        page.complaints.refused.clear()  # what this is about
        page.complaints.errors.clear()
        page.complaints.unanswered.clear()


async def test_one_stream_is_open_at_a_time(page: Opened, world: World) -> None:
    """A browser has few connections to a host: a page that is left closes its stream."""
    for place in (f"jobs/{FLIGHTS}", f"jobs/{FLIGHTS}/timeline", "taskmanagers", ""):
        await page.go(place)
        await until(lambda: world.server.events.open == 1, "the earlier stream has ended")


async def test_figures_go_on_without_a_request(page: Opened, world: World) -> None:
    """After the page has opened, what changes comes with the stream."""
    await page.go(f"jobs/{FLIGHTS}")
    await expect(page.page.locator(".node").first).to_be_visible()  # the library that draws them comes last
    figure = page.page.locator(".figures dd").first
    before = await figure.inner_text()
    asked: list[str] = []
    page.page.on("request", lambda request: asked.append(request.url))
    await expect(figure).not_to_have_text(before)
    assert asked == []


async def test_a_change_of_the_job_is_shown_and_diagnosed_anew(page: Opened, world: World) -> None:
    """The stream brings the job's new state, and the page asks once more what ails it."""
    await page.go(f"jobs/{FLIGHTS}")
    await expect(page.page.get_by_role("region", name="Diagnosis")).to_be_visible()
    async with page.page.expect_response("**/diagnosis"):
        job = world.dispatcher.jobs[FLIGHTS]
        world.dispatcher.jobs[FLIGHTS] = replace(job, status=JobStatus.RESTARTING)
    await expect(page.page.locator(".head .state")).to_have_text("restarting")


async def test_a_log_is_followed_and_searched(page: Opened, world: World) -> None:
    """What is written appears by itself; a search shows the lines that have the text."""
    world.task_manager.logs["taskmanager.log"] = b"".join(b"line %d\n" % n for n in range(3000))
    await page.go(f"taskmanagers/{TM}/logs/taskmanager.log")
    lines = page.page.locator(".lines")
    await expect(lines).to_contain_text("line 2999")
    world.task_manager.logs["taskmanager.log"] += b"ERROR the disk is full\n"
    await expect(lines).to_contain_text("the disk is full")
    await page.page.keyboard.press("/")
    await page.page.keyboard.type("DISK")
    await expect(page.page.get_by_text("1 line", exact=True)).to_be_visible()
    await expect(lines).not_to_contain_text("line 2999")
    await expect(lines.locator("mark")).to_have_text("disk")


async def test_a_job_that_is_not_there_is_said_to_be_missing(browser: Browser, world: World) -> None:
    """It is no lost connection: the page does not try again for ever."""
    async with opened(browser, world.url, place=None) as page:
        await page.page.goto(f"{world.url}/#/jobs/{'9' * 32}")
        await expect(page.page.locator("h1")).to_have_text("No such job")
        await expect(page.page.locator(".connection.live")).to_be_visible()
        assert all("9" * 32 in refused for refused in page.complaints.refused)
        page.complaints.refused.clear()  # what this is about
        page.complaints.errors.clear()
