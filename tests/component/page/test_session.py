"""Who may look at the page, and that a session ends without a loss of place (E41)."""

from __future__ import annotations

import pytest
from playwright.async_api import Browser, expect

from minflinkd.rest.identity.access import Access
from minflinkd.rest.identity.proving import TokenProver
from minflinkd.runtime.clock import SystemClock
from tests.component.page.opened import opened
from tests.component.page.world import FLIGHTS, running
from tests.component.rest.access_world import OWN, TOKENS, records
from tests.servers.install import AXE

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_after_a_log_in_the_page_is_where_it_was(browser: Browser) -> None:
    """A wrong token is said; when the session ends, the page asks for the token again and returns to the same place."""
    access = Access(TokenProver(OWN, records(), SystemClock(), hint="the token is somewhere"))
    async with running(access) as world, opened(browser, world.url, place=None) as window:
        page = window.page

        async def log_in(token: str) -> None:
            await page.get_by_label("Token").fill(token)
            await page.get_by_role("button", name="Log in").click()

        await page.goto(f"{world.url}/#/jobs/{FLIGHTS}/timeline")
        await log_in("mfl-wrong")
        await expect(page.get_by_role("alert")).to_be_visible()
        if AXE.is_file():
            assert await window.faults() == []
        await log_in(TOKENS["view"].text)
        await expect(page.locator("h1")).to_have_text("Overview")
        await page.goto(f"{world.url}/#/jobs/{FLIGHTS}/timeline")
        await expect(page.get_by_role("region", name="Events")).to_be_visible()
        for cookie in await page.context.cookies():
            access.sessions.open.take(cookie["value"])
        await page.keyboard.press("2")
        await expect(page.get_by_label("Token")).to_be_visible()
        await log_in(TOKENS["view"].text)
        await expect(page.get_by_role("region", name="The last checkpoints")).to_be_visible()
        window.complaints.refused.clear()  # the refusals are what this is about
        window.complaints.errors.clear()
        assert await window.violations() == []
