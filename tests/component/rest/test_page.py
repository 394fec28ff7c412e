"""`GET /` for a person with a browser, and the files of the page (E15)."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from urllib.parse import urljoin

import aiohttp
import pytest

from minflinkd.page import vendored
from minflinkd.page.files import FOLDERS, HOME, files
from minflinkd.rest.page import PageRoutes
from minflinkd.rest.server import RestServer

LARGEST = 300_000  # bytes of the whole page, as they are sent


@pytest.mark.parametrize("path", ["/", "/v1/"])
async def test_all_that_the_root_refers_to_is_there(http: aiohttp.ClientSession, server: RestServer, path: str) -> None:
    """Scripts, style sheets and the font; and for those without scripts, links to paths of the endpoint."""
    async with http.get(path) as response:
        page = await response.text()
    assert (response.status, response.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert "minflinkd 0.1.0" in page
    links = re.findall(r'(?:href|src)="([^"]+)"', page)
    assert len(links) >= 30
    async with aiohttp.ClientSession() as browser:
        for link in links:
            async with browser.get(urljoin(server.url + path, link)) as response:
                assert response.status == 200, link


async def test_the_page_runs_no_script_but_its_own_and_cannot_be_framed(http: aiohttp.ClientSession) -> None:
    """No script and no style stands in the page, nothing comes from elsewhere, and no text becomes markup."""
    async with http.get("/") as response:
        headers = response.headers
        page = await response.text()
    policy = headers["Content-Security-Policy"].split("; ")
    assert {"default-src 'none'", "script-src 'self'", "style-src 'self'", "frame-ancestors 'none'"} <= set(policy)
    assert not any("unsafe" in each for each in policy)
    assert (headers["X-Frame-Options"], headers["X-Content-Type-Options"]) == ("DENY", "nosniff")
    assert (headers["Referrer-Policy"], headers["Cache-Control"]) == ("no-referrer", "no-store")
    assert not re.search(r"<script[^>]*>[^<]|<style| style=| on\w+=", page)


async def test_files_are_kept_for_ever_and_compressed(server: RestServer) -> None:
    """Their path changes with them, so a browser asks for each of them only once."""
    path = f"{server.url}/{files().path_of('app/main.js')}"
    async with aiohttp.ClientSession(auto_decompress=False) as http:
        async with http.get(path, headers={"Accept-Encoding": "gzip"}) as response:
            assert response.headers["Cache-Control"] == "public, max-age=31536000, immutable"
            assert response.headers["Content-Type"] == "text/javascript; charset=utf-8"
            assert gzip.decompress(await response.read()) == (HOME / "app" / "main.js").read_bytes()
            tag = response.headers["ETag"]
        async with http.get(path, headers={"Accept-Encoding": "identity"}) as response:
            assert await response.read() == (HOME / "app" / "main.js").read_bytes()
        async with http.get(path, headers={"If-None-Match": tag}) as response:
            assert (response.status, await response.read()) == (304, b"")
        async with http.head(path) as response:
            assert (response.status, response.headers["ETag"]) == (200, tag)


@pytest.mark.parametrize("name", ["app/none.js", "app/..%2Findex.html", "vendor/vendored.json", "none/main.js"])
async def test_only_files_of_the_page_are_served(server: RestServer, name: str) -> None:
    async with aiohttp.ClientSession() as http:
        async with http.get(f"{server.url}/{files().path_of('')}{name}") as response:
            assert response.status == 404
        async with http.get(f"{server.url}/page/0000000000000000/app/main.js") as response:
            assert response.status == 404, "that of another version"


async def test_the_page_is_kept_from_rebound_names_and_other_sites_as_all_paths_are(
    http: aiohttp.ClientSession, server: RestServer
) -> None:
    async with http.get("/", headers={"Host": "rebound.example"}) as response:
        assert response.status == 403
    async with http.get("/", headers={"Origin": "https://other.example"}) as response:
        assert response.status == 403
    async with http.get("/", headers={"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}) as response:
        assert response.status == 200, "following a link is allowed"


async def test_blobs_are_linked_where_they_are_listed() -> None:
    assert 'href="blobs"' in PageRoutes(version="1", blobs=True)._links
    assert 'href="blobs"' not in PageRoutes(version="1", blobs=False)._links
    assert b"<b>" not in files().shell("<b>", "")


def test_the_whole_page_is_small() -> None:
    """Less than 300 kB as it is sent, libraries and font included (E15)."""
    assert sum(file.size for file in files().by_path.values()) < LARGEST


def test_libraries_are_as_their_packages_have_them() -> None:
    """Each file has the hash that was kept when it was fetched, and a licence (E15)."""
    assert vendored.differences() == []
    known = vendored.manifest()
    assert {each.package for each in known.files} == known.licences.keys() == {p.name for p in vendored.PACKAGES}
    assert all((vendored.VENDOR / name).stat().st_size > 500 for name in known.licences.values())


def test_a_changed_library_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in vendored.VENDOR.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "htm.js").write_bytes(b"// changed")
    (tmp_path / "more.js").write_bytes(b"")
    monkeypatch.setattr(vendored, "VENDOR", tmp_path)
    assert vendored.differences() == ["more.js is not in vendored.json", "htm.js is not that of htm 3.1.1"]


def test_no_file_of_the_page_names_another_host() -> None:
    """Libraries name their authors' pages in comments, which nobody fetches."""
    for folder in set(FOLDERS) - {"vendor"}:
        for path in (HOME / folder).iterdir():
            found = set(re.findall(r"https?://[^\s\"'`)]+", path.read_text(encoding="utf-8")))
            assert found <= {"http://www.w3.org/2000/svg"}, path
