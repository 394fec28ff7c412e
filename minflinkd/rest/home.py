"""`GET /`: what a browser shows at the endpoint, until there is a real page.

Static text and relative links, without script, style or job data, so that there is nothing to inject into.
"""

from __future__ import annotations

from html import escape

from aiohttp import web

from minflinkd.rest import route
from minflinkd.rest.identity.roles import Role

_LINKS = (
    ("overview", "TaskManagers, slots and jobs by outcome"),
    ("jobs/overview", "the jobs"),
    ("taskmanagers", "TaskManagers and who holds their slots"),
    ("blobs", "what the BlobServer holds"),
    ("jobmanager/config", "the options in force"),
    ("health", "whether the daemon accepts jobs"),
    ("metrics", "metrics, for Prometheus"),
    ("openapi.json", "all paths, for programs: OpenAPI 3.1"),
)
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_PAGE = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>minflinkd</title>
<h1>minflinkd {version}</h1>
<p>This daemon runs PySpark streaming jobs. It speaks Flink's REST API, in JSON:
<ul>
{links}
</ul>
<p>On the command line: <code>minflinkd list</code>, <code>minflinkd info JOB</code>, <code>minflinkd run FILE</code>;
<code>minflinkd --help</code> names the rest.
<p>In the checkout, <code>docs/http.md</code> lists all paths, and <code>docs/jobs.md</code> explains how to write jobs.
</html>
"""


class HomeRoutes:
    """`blobs` says whether the endpoint lists blobs."""

    def __init__(self, *, version: str, blobs: bool) -> None:
        links = "\n".join(
            f'<li><a href="{path}">/{path}</a>: {escape(what)}' for path, what in _LINKS if blobs or path != "blobs"
        )
        self._page = _PAGE.format(version=escape(version), links=links)

    def routes(self) -> list[route.Route]:
        return [
            route.get(
                "/",
                self.home,
                Role.VIEW,
                "A page with links, for a browser",
                {200: route.PAGE},
                more="Not in Flink",
            )
        ]

    async def home(self, _: web.Request) -> web.Response:
        return web.Response(text=self._page, content_type="text/html", charset="utf-8", headers=_HEADERS)
