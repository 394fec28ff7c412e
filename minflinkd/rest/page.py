"""`GET /` and the files of the web page (E15). The page itself asks the paths that everybody may use.

The page is the same for everybody and says nothing, so its files are sent to whoever asks. It may load nothing from
elsewhere, and no script or style that stands in the page.
"""

from __future__ import annotations

import asyncio
from html import escape
from typing import Final

from aiohttp import hdrs, web

from minflinkd.page.files import File, files
from minflinkd.rest import route
from minflinkd.rest.declared import PAGE_DIGEST, PAGE_FILE, PAGE_FOLDER
from minflinkd.rest.errors import NoSuchPath
from minflinkd.rest.identity.roles import Role
from minflinkd.rest.route import Text

_LINKS: Final = (
    ("overview", "TaskManagers, slots and jobs by outcome"),
    ("jobs/overview", "the jobs"),
    ("taskmanagers", "TaskManagers and who holds their slots"),
    ("blobs", "what the BlobServer holds"),
    ("jobmanager/config", "the options in force"),
    ("health", "whether the daemon accepts jobs"),
    ("metrics", "metrics, for Prometheus"),
    ("openapi.json", "all paths, for programs: OpenAPI 3.1"),
)
_POLICY: Final = (
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "font-src 'self'",
    "img-src 'self' data:",
    "connect-src 'self'",
    "base-uri 'none'",
    "form-action 'self'",
    "frame-ancestors 'none'",
    "require-trusted-types-for 'script'",  # no text becomes markup, whatever a script of ours does wrong
    "trusted-types 'none'",
)
_HEADERS: Final = {
    "Content-Security-Policy": "; ".join(_POLICY),
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_FOR_EVER: Final = "public, max-age=31536000, immutable"
_FILE: Final = Text("*/*", {"ETag": "Of the file"})


class PageRoutes:
    """`blobs` says whether the endpoint lists blobs."""

    def __init__(self, *, version: str, blobs: bool) -> None:
        self._version = version
        self._links = "\n".join(
            f'<li><a href="{path}">/{path}</a>: {escape(what)}' for path, what in _LINKS if blobs or path != "blobs"
        )
        self._page: bytes | None = None

    def routes(self) -> list[route.Route]:
        return [
            route.get(
                "/",
                self.shell,
                Role.VIEW,
                "The web page",
                {200: route.PAGE},
                more="Not in Flink. Without scripts, it has links to the paths below",
                head=True,
            ),
            route.get(
                "/page/{digest}/{folder}/{file}",
                self.file,
                Role.ANYBODY,
                "A file of the web page",
                {200: _FILE, 304: route.NOTHING},
                more="Not in Flink. Browsers keep it: `digest` changes with the files",
                head=True,
            ),
        ]

    async def shell(self, _: web.Request) -> web.Response:
        if self._page is None:
            self._page = (await asyncio.to_thread(files)).shell(self._version, self._links)
        return web.Response(body=self._page, content_type="text/html", charset="utf-8", headers=_HEADERS)

    async def file(self, request: web.Request) -> web.Response:
        """Raises NoSuchPath."""
        found = await asyncio.to_thread(files)
        name = f"{PAGE_FOLDER.of(request)}/{PAGE_FILE.of(request)}"
        if PAGE_DIGEST.of(request) != found.digest or name not in found.by_path:
            raise NoSuchPath("there is no such file of the page", hint="load / again: it names those of this version")
        return _answer(request, found.by_path[name])


def _answer(request: web.Request, file: File) -> web.Response:
    headers = {"Cache-Control": _FOR_EVER, "ETag": file.tag, "Vary": "Accept-Encoding", **_OF_FILES}
    if file.tag in request.headers.get(hdrs.IF_NONE_MATCH, ""):
        return web.Response(status=304, headers=headers)
    data = file.data
    if file.zipped is not None and "gzip" in request.headers.get(hdrs.ACCEPT_ENCODING, ""):
        data = file.zipped
        headers["Content-Encoding"] = "gzip"
    charset = "utf-8" if file.media.startswith("text/") else None
    return web.Response(body=data, content_type=file.media, charset=charset, headers=headers)


_OF_FILES: Final = {"Cross-Origin-Resource-Policy": "same-origin"}
