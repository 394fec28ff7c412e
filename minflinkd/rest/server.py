"""The HTTP endpoint (E1 - E4): one aiohttp application, Flink's paths with and without `/v1`.

This module runs the server, handles what all requests have in common, and collects the routes. What a path answers is
in the module named after its subject.
"""

from __future__ import annotations

import errno
import secrets
import socket
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

import structlog
from aiohttp import web

from minflinkd.metrics.registry import Metrics
from minflinkd.rest.backend import Backend, Handler, json_answer
from minflinkd.rest.blobs import BlobListing, ListedBlobs
from minflinkd.rest.checkpoints import CheckpointRoutes
from minflinkd.rest.cluster import ClusterRoutes
from minflinkd.rest.ended_logs import EndedLogs
from minflinkd.rest.ending import Ending
from minflinkd.rest.errors import (
    InvalidRequest,
    MethodNotAllowed,
    NoSuchPath,
    Overloaded,
    RequestError,
    error_answer,
    internal_error,
    status_of,
)
from minflinkd.rest.guard import Limits, check_host, check_origin
from minflinkd.rest.health import HealthRoutes
from minflinkd.rest.home import HomeRoutes
from minflinkd.rest.jobs import JobRoutes
from minflinkd.rest.log_copies import LogBlobs, LogCopies
from minflinkd.rest.logs import LogRoutes
from minflinkd.rest.orphans import OrphanRoutes
from minflinkd.rest.restarts import RestartRoutes
from minflinkd.rest.savepoints import SavepointRoutes
from minflinkd.rest.submission import SubmissionRoutes
from minflinkd.rest.taskmanagers import TaskManagerRoutes
from minflinkd.rpc.network import Network
from minflinkd.runtime.clock import Clock, SystemClock
from minflinkd.runtime.component import Component
from minflinkd.runtime.errors import MinflinkError
from minflinkd.runtime.ids import IdSource
from minflinkd.runtime.listening import Place, bind, taken

log = structlog.get_logger(__name__)

SHUTDOWN_GRACE = 2.0  # seconds for GET requests under way when the endpoint stops
QUESTIONS = frozenset({"GET", "HEAD"})
RETRY_AFTER = "1"  # seconds; sent with every 503


class RestServer(Component):
    """Ready when it listens; `url` has the actual port.

    `config_items` returns the current options as strings, `submit_timeout` the seconds to wait for a submission's
    answer. Artifacts are uploaded to `blob_url`; `blobs` lists them. `allowed_hosts` are names other than loopback
    names under which clients reach a server on loopback (a reverse proxy, an SSH tunnel). With `log_blobs`, parts of
    logs with more than `offload_minsize` bytes come as blobs. `ended_logs` is the directory of the TaskManagers'
    homes, to read what ended ones have left there. `sockets` are already bound; without them the server binds its own.
    """

    def __init__(
        self,
        network: Network,
        *,
        host: str,
        port: int,
        version: str,
        metrics: Metrics,
        config_items: Callable[[], Iterable[tuple[str, str]]],
        blob_url: Callable[[], str],
        allowed_hosts: Collection[str] = (),
        limits: Limits | None = None,
        timeout: float = 10.0,
        submit_timeout: Callable[[], float] = lambda: 180.0,
        clock: Clock | None = None,
        ids: IdSource | None = None,
        blobs: ListedBlobs | None = None,
        log_blobs: LogBlobs | None = None,
        ended_logs: Path | None = None,
        offload_minsize: int = 1 << 20,
        sockets: Sequence[socket.socket] = (),
    ) -> None:
        super().__init__("rest server")
        self._host = host
        self._port = port
        self._sockets = sockets
        self._allowed_hosts = frozenset(allowed_hosts)
        self._limits = limits or Limits()
        clock = clock or SystemClock()
        self._backend = Backend(network, clock, timeout, submit_timeout)
        self._log_copies = LogCopies(self._backend.task_manager, log_blobs, minsize=offload_minsize, clock=clock)
        self._blobs = None if blobs is None else BlobListing(blobs, clock)
        self._subjects = (
            ClusterRoutes(self._backend, version=version, config_items=config_items, blob_url=blob_url),
            SubmissionRoutes(self._backend, limits=self._limits, ids=ids or IdSource()),
            JobRoutes(self._backend),
            RestartRoutes(self._backend, limits=self._limits),
            CheckpointRoutes(self._backend),
            SavepointRoutes(self._backend, limits=self._limits, ids=ids or IdSource()),
            OrphanRoutes(self._backend),
            TaskManagerRoutes(self._backend),
            LogRoutes(self._backend, self._log_copies, EndedLogs(ended_logs)),
            HealthRoutes(self._backend, metrics, self._blobs),
            *(() if self._blobs is None else (self._blobs,)),
            HomeRoutes(version=version, blobs=self._blobs is not None),
        )
        self._under_way = 0
        self._ending = Ending()
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        name = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{name}:{self._port}"

    async def _start(self) -> None:
        await self._log_copies.start()
        limits = self._limits
        app = web.Application(middlewares=[self._around], client_max_size=limits.body_bytes)
        for subject in self._subjects:
            for route in subject.routes():
                app.router.add_route(route.method, route.path, route.handler)
                app.router.add_route(route.method, f"/v1{route.path}", route.handler)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            handle_signals=False,
            shutdown_timeout=SHUTDOWN_GRACE,
            keepalive_timeout=limits.keep_alive_seconds,
            max_line_size=limits.header_bytes,
            max_field_size=limits.header_bytes,
        )
        await self._runner.setup()
        where = place(self._host, self._port)
        for each in self._sockets or await bind(where):
            try:
                await web.SockSite(self._runner, each).start()
            except OSError as error:  # raised when it begins to listen
                if error.errno != errno.EADDRINUSE:
                    raise
                raise await taken(where) from error
        self._port = self._runner.addresses[0][1]

    async def _before_stop(self) -> None:
        await self._ending.begin()

    async def _stop(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()
        await self._log_copies.aclose()

    @web.middleware
    async def _around(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Guards, counts and logs a request, and turns every error into JSON (E3)."""
        started = self._backend.clock.monotonic()
        self._under_way += 1
        try:
            response = await self._answer(request, handler)
        finally:
            self._under_way -= 1
        if not response.prepared:
            response.headers["X-Content-Type-Options"] = "nosniff"
            response.headers["Cache-Control"] = "no-store"
            if response.status == 503:
                response.headers["Retry-After"] = RETRY_AFTER
        log.debug(
            "request",
            method=request.method,
            path=request.path,
            status=response.status,
            peer=request.remote,
            seconds=round(self._backend.clock.monotonic() - started, 6),
        )
        return response

    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            self._check(request)
            if request.method in QUESTIONS:
                return await handler(request)
            return await self._ending.carry_out(_response(handler, request))
        except web.HTTPException as error:
            refused = _of_aiohttp(request, error)
            response = json_answer(error_answer(refused), status=refused.status)
            if "Allow" in error.headers:
                response.headers["Allow"] = error.headers["Allow"]
            return response
        except MinflinkError as error:
            return json_answer(error_answer(error), status=status_of(error))
        except (ConnectionError, TimeoutError):
            raise  # the client is gone, or its connection is too slow: aiohttp closes it
        except Exception:
            request_id = secrets.token_hex(6)
            log.exception("a request failed", method=request.method, path=request.path, request_id=request_id)
            return json_answer(internal_error(request_id), status=500)

    def _check(self, request: web.Request) -> None:
        """Raises UnknownHost, CrossSite, Overloaded."""
        check_host(request.headers.get("Host", ""), self._host, self._allowed_hosts)
        check_origin(request.headers, request.method)
        if self._under_way > self._limits.requests:
            raise Overloaded("too many requests are under way", hint="try again in a moment")


async def _response(handler: Handler, request: web.Request) -> web.StreamResponse:
    return await handler(request)


def place(host: str, port: int) -> Place:
    return Place(host, (port,), "rest.bind-address", "rest.port")


def _of_aiohttp(request: web.Request, error: web.HTTPException) -> RequestError:
    """Return our error for an error of aiohttp's router."""
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        return MethodNotAllowed(f"{request.path[:200]} does not take {request.method}", hint=f"it takes {allowed}")
    if isinstance(error, web.HTTPNotFound):
        return NoSuchPath(f"there is nothing at {request.path[:200]}", hint="docs/http.md lists the paths")
    return InvalidRequest(error.reason)
