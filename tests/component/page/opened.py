"""The page in a browser's window: where it goes, what it says, and what it complains of."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Literal

from playwright.async_api import Browser, Locator, Page, expect

from tests.servers.chromium import Complaints
from tests.servers.install import AXE

expect.set_options(timeout=30_000)  # milliseconds, on a busy machine

_VIOLATIONS = """
window.violations = [];
addEventListener("securitypolicyviolation", (event) => {
  window.violations.push(`${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}:${event.lineNumber}`);
});
"""
_FAULTS = """async () => {
  const told = (node) => `${node.html.slice(0, 160)} ${node.failureSummary}`;
  const { violations } = await axe.run({ resultTypes: ["violations"] });
  return violations.map((one) => `${one.id}: ${one.nodes.slice(0, 3).map(told).join(" | ")}`);
}"""


@dataclass
class Opened:
    page: Page
    url: str
    complaints: Complaints

    async def go(self, place: str) -> None:
        """Go to a place such as `jobs/ID`, and wait until the page has heard of it."""
        await self.page.goto(f"{self.url}/#/{place}")
        await expect(self.page.locator(".connection.live")).to_be_visible()
        await expect(self.page.get_by_text("Asking the daemon")).to_have_count(0)

    async def heading(self) -> str:
        return (await self.page.locator("h1").inner_text()).strip()

    async def ask(self, module: str, expression: str) -> Any:
        """Evaluate an expression with the exports of one of the page's modules, such as `app/format.js`."""
        root = await self.page.evaluate("document.querySelector('script[type=module]').src.replace(/app.main.js$/, '')")
        names = f"const m = await import('{root}{module}');"
        return await self.page.evaluate(f"async () => {{ {names} return {expression}; }}")

    async def press(self, name: str) -> Locator:
        """Press the button of an operation. Return its dialog."""
        await self.page.get_by_role("button", name=name, exact=True).click()
        return self.page.get_by_role("dialog")

    def forget_complaints(self) -> None:
        """Of refusals, which are what a test is about."""
        self.complaints.refused.clear()
        self.complaints.unanswered.clear()
        self.complaints.errors.clear()

    async def violations(self) -> list[str]:
        """Return what was against the Content-Security-Policy."""
        found: list[str] = await self.page.evaluate("window.violations")
        return found

    async def faults(self) -> list[str]:
        """Return what axe-core finds: contrast, names, roles, headings."""
        if not await self.page.evaluate("'axe' in window"):
            await self.page.evaluate(AXE.read_text(encoding="utf-8") + ";0")
        found: list[str] = await self.page.evaluate(_FAULTS)
        return found


async def press(dialog: Locator, name: str) -> None:
    await dialog.get_by_role("button", name=name, exact=True).click()


@contextlib.asynccontextmanager
async def opened(
    browser: Browser,
    url: str,
    *,
    theme: Literal["light", "dark"] = "light",
    width: int = 1440,
    height: int = 900,
    place: str | None = "",
) -> AsyncIterator[Opened]:
    """Open the page, at the end close the window and see that nothing was complained of. `place`: None: nowhere yet."""
    context = await browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=theme, reduced_motion="reduce"
    )
    await context.add_init_script(_VIOLATIONS)
    page = await context.new_page()
    found = Opened(page, url, Complaints(page))
    if place is not None:
        await found.go(place)
    try:
        yield found
        assert not found.complaints.found
    finally:
        await context.close()
