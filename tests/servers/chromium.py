"""Chromium without a screen, for tests of web pages, and what a page complains of.

    async with chromium() as browser:
        page = await browser.new_page()
        complaints = Complaints(page)
        await page.goto(cluster.url)
        assert not complaints.found

The browser comes from the operating system (`tests/servers/install.py`), and playwright only speaks to it: playwright's
own browsers are not downloaded. A browser ends with the process that started it.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Browser, ConsoleMessage, Page, Request, Response, async_playwright

_COMMANDS = ("chromium-headless-shell", "chromium", "chromium-browser")
_STARTING = 120_000.0  # milliseconds, on a busy machine
_FLAGS = (
    "--no-sandbox",  # root cannot have one
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    # It must not speak to anybody but the daemon under test.
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def executable() -> str | None:
    return next((found for command in _COMMANDS if (found := shutil.which(command))), None)


def missing() -> str | None:
    """Return why there is no browser here, for tests that are skipped. None if there is one."""
    return None if executable() else "chromium is not installed (make servers)"


@contextlib.asynccontextmanager
async def chromium(*flags: str) -> AsyncIterator[Browser]:
    """Start a browser, and end it afterwards. Skip the test if there is none."""
    found = executable()
    if found is None:
        pytest.skip(missing() or "")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=found, headless=True, args=[*_FLAGS, *flags], timeout=_STARTING
        )
        try:
            yield browser
        finally:
            await browser.close()


@dataclass
class Complaints:
    """What goes wrong in a page from now on: answers of 4xx and 5xx, requests without an answer, errors of scripts.

    A page that goes elsewhere ends its own requests. These are no complaint.
    """

    page: Page
    refused: list[str] = field(default_factory=list)
    unanswered: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("response", self._response)
        self.page.on("requestfailed", self._failed)
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))

    @property
    def found(self) -> Sequence[str]:
        return [*self.refused, *self.unanswered, *self.errors]

    def _response(self, response: Response) -> None:
        if response.status >= 400:
            self.refused.append(f"{response.status} {_asked(response.request)}")

    def _failed(self, request: Request) -> None:
        if request.failure != "net::ERR_ABORTED":
            self.unanswered.append(f"{request.failure} {_asked(request)}")

    def _said(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.errors.append(f"{message.text} ({message.location.get('url', '')})")


def _asked(request: Request) -> str:
    parts = urlsplit(request.url)
    return f"{request.method} {parts.path}{'?' if parts.query else ''}{parts.query}"
