"""`GET /` for a person with a browser."""

from __future__ import annotations

import re
from urllib.parse import urljoin

import aiohttp
import pytest

from minflinkd.rest.home import HomeRoutes
from minflinkd.rest.server import RestServer


@pytest.mark.parametrize("path", ["/", "/v1/"])
async def test_the_root_is_a_page_whose_links_lead_somewhere(
    http: aiohttp.ClientSession, server: RestServer, path: str
) -> None:
    """Before, it was a 404 (issue 15, 11)."""
    async with http.get(path) as response:
        page = await response.text()
    assert (response.status, response.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert "minflinkd 0.1.0" in page
    links = re.findall(r'href="([^"]+)"', page)
    assert len(links) >= 6
    for link in links:
        async with http.get(urljoin(server.url + path, link)) as response:
            assert response.status == 200, link


async def test_the_page_can_do_nothing_and_cannot_be_framed(http: aiohttp.ClientSession) -> None:
    """The page has no script and no form, and cannot appear inside another site's page (E40)."""
    async with http.get("/") as response:
        headers = response.headers
        page = await response.text()
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert (headers["X-Frame-Options"], headers["X-Content-Type-Options"]) == ("DENY", "nosniff")
    assert (headers["Referrer-Policy"], headers["Cache-Control"]) == ("no-referrer", "no-store")
    assert "<script" not in page


async def test_the_page_is_kept_from_rebound_names_and_other_sites_as_all_paths_are(
    http: aiohttp.ClientSession, server: RestServer
) -> None:
    async with http.get("/", headers={"Host": "rebound.example"}) as response:
        assert response.status == 403
    async with http.get("/", headers={"Origin": "https://other.example"}) as response:
        assert response.status == 403
    async with http.get("/", headers={"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}) as response:
        assert response.status == 200, "following a link is allowed"


def test_blobs_are_linked_where_they_are_listed() -> None:
    assert 'href="blobs"' in HomeRoutes(version="1", blobs=True)._page
    assert 'href="blobs"' not in HomeRoutes(version="<b>", blobs=False)._page
    assert "<b>" not in HomeRoutes(version="<b>", blobs=False)._page
