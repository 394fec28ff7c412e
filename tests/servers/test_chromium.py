"""The browser opens a page, and what the page complains of is noticed."""

from __future__ import annotations

from tests.servers.chromium import Complaints, chromium
from tests.web_server import web_server

_HEAD = b"<!doctype html><link rel=icon href=data:,>"
_GOOD = _HEAD + b"<h1>hello</h1>"
_BAD = _HEAD + b"<script>fetch('/gone')</script><script>no()</script>"


async def test_complaints_of_a_page_are_noticed() -> None:
    """A page without faults has no complaints; a refused call and an error of a script are two."""
    with web_server() as server:
        server.files = {"/good": _GOOD, "/bad": _BAD}
        async with chromium() as browser:
            page = await browser.new_page()
            complaints = Complaints(page)
            await page.goto(f"{server.url}/good", wait_until="networkidle")
            assert (await page.inner_text("h1"), complaints.found) == ("hello", [])
            await page.goto(f"{server.url}/bad", wait_until="networkidle")
            assert complaints.refused == ["404 GET /gone"]
            assert any("no is not defined" in error for error in complaints.errors)
