"""A web server on loopback that serves what a test gives it, and misbehaves where the test says so."""

from __future__ import annotations

import base64
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit


class WebServer:
    """`files` by path. Other fields: paths that are answered in a special way."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.files: dict[str, bytes] = {}
        self.statuses: dict[str, int] = {}
        self.redirects: dict[str, str] = {}
        self.guarded: dict[str, str] = {}  # path -> user:password
        self.cut: set[str] = set()  # half of the file is sent, then the connection is closed
        self.silent: set[str] = set()  # the head is sent, then nothing
        self.ranges = True
        self.requests: list[tuple[str, str]] = []  # method, path with the query
        self.ended = threading.Event()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        self.requests.append((request.command, request.path))
        path = unquote(urlsplit(request.path).path)
        wanted, given = self.guarded.get(path), request.headers.get("Authorization", "")
        if wanted is not None and given != "Basic " + base64.b64encode(wanted.encode()).decode():
            return request.send_error(401)
        if path in self.redirects:
            request.send_response(302)
            request.send_header("Location", self.redirects[path])
            request.send_header("Content-Length", "0")
            return request.end_headers()
        if path in self.statuses or path not in self.files:
            return request.send_error(self.statuses.get(path, 404))
        body = self.files[path]
        wanted_range = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("Range", ""))
        if self.ranges and wanted_range is not None:
            first, last = int(wanted_range[1]), min(int(wanted_range[2]), len(body) - 1)
            request.send_response(206)
            request.send_header("Content-Range", f"bytes {first}-{last}/{len(body)}")
            body = body[first : last + 1]
        else:
            request.send_response(200)
        if path.endswith("/"):
            request.send_header("Content-Type", "text/html")
        request.send_header("Content-Length", str(len(body)))
        request.send_header("ETag", '"1"')
        request.send_header("Last-Modified", "Mon, 23 Nov 2026 20:00:00 GMT")
        request.end_headers()
        request.wfile.flush()
        if path in self.silent:
            self.ended.wait(30)
        if request.command == "HEAD":
            return None
        request.wfile.write(body[: len(body) // 2] if path in self.cut else body)
        request.close_connection = True
        return None


@contextmanager
def web_server() -> Iterator[WebServer]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            server.answer(self)

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:
            """Nobody reads it."""

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server = WebServer(f"http://127.0.0.1:{http.server_port}")
    serving = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
    serving.start()
    try:
        yield server
    finally:
        server.ended.set()
        http.shutdown()
        serving.join()
        http.server_close()
