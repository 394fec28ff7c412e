"""The page with the keyboard alone (E15)."""

from __future__ import annotations

import pytest
from playwright.async_api import expect

from tests.component.page.opened import Opened
from tests.component.page.world import FLIGHTS

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_keys_lead_everywhere(page: Opened) -> None:
    """To a page, to a job by a part of its name, to its tabs, and back."""
    title, keys = page.page.locator("h1"), page.page.keyboard
    await keys.press("g")
    await keys.press("t")
    await expect(title).to_have_text("TaskManagers")
    await keys.press("Control+k")
    await keys.type("carrier del")
    await expect(page.page.get_by_role("option")).to_have_count(1)
    await keys.press("Enter")
    await expect(title).to_have_text("flights: carrier delays by hour")
    await keys.press("3")
    await expect(page.page.get_by_role("region", name="Events")).to_be_visible()
    await keys.press("u")
    await expect(title).to_have_text("Overview")


async def test_no_letter_is_lost_that_follows_control_k_at_once(page: Opened) -> None:
    """The field has the focus before the browser takes the next key."""
    focused = await page.page.evaluate("""async () => {
      dispatchEvent(new KeyboardEvent("keydown", { key: "k", ctrlKey: true }));
      await new Promise((resolve) => queueMicrotask(resolve));
      return document.activeElement.getAttribute("aria-label");
    }""")
    assert focused == "Go to"


async def test_the_keys_of_a_page_are_listed_and_can_be_turned_off(page: Opened) -> None:
    """Who dictates to a computer presses keys without wanting to."""
    keys, dialog = page.page.keyboard, page.page.get_by_role("dialog")
    await keys.press("?")
    await expect(dialog.get_by_text("Go to a job, a page or a TaskManager")).to_be_visible()
    await dialog.get_by_label("Single keys").uncheck()
    await keys.press("Escape")
    await expect(dialog).to_have_count(0)
    await keys.press("g")
    await keys.press("t")
    await keys.press("?")
    await expect(dialog).to_have_count(0)
    assert await page.heading() == "Overview"


async def test_all_that_can_be_pressed_is_reached_with_tab(page: Opened) -> None:
    """Also the tasks of the graph, the charts and what scrolls; the crosshair moves with the arrow keys."""
    await page.go(f"jobs/{FLIGHTS}")
    await page.page.reload()
    await expect(page.page.locator(".node")).to_have_count(6)
    reached = set()
    for _ in range(60):
        await page.page.keyboard.press("Tab")
        reached.add(await page.page.evaluate("document.activeElement.className.split(' ')[0]"))
        if "plot" in reached:
            break
    assert {"skip", "brand", "graph", "node", "plot"} <= reached
    await page.page.keyboard.press("ArrowLeft")
    await expect(page.page.locator(".chart .at").first).not_to_be_empty()
    times = await page.page.locator(".chart .at").all_inner_texts()
    assert len(set(times)) == 1, "one crosshair over all charts"


async def test_a_theme_is_chosen_and_kept(page: Opened) -> None:
    await page.page.keyboard.press("t")
    assert await page.page.evaluate("document.documentElement.dataset.theme") == "light"
    await page.page.keyboard.press("t")
    await page.page.reload()
    assert await page.page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert await page.page.evaluate("getComputedStyle(document.body).colorScheme") == "dark"
