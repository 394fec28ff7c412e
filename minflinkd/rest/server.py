"""The HTTP endpoint (E1 - E4): one aiohttp application, Flink's paths with and without `/v1`.

This module runs the server, handles what all requests have in common, and collects the routes. What a path answers is
in the module named after its subject.
"""

from __future__ import annotations

import asyncio
import errno
import secrets
import socket
import ssl
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import structlog
from aiohttp import web

from minflinkd.metrics.registry import Metrics
from minflinkd.page.files import files
from minflinkd.rest.artifacts import ArtifactRoutes, StoringBlobs
from minflinkd.rest.autoscaler import AutoscalerRoutes
from minflinkd.rest.backend import JOB, Backend, Handler
from minflinkd.rest.blobs import BlobListing, ListedBlobs
from minflinkd.rest.checkpoints import CheckpointRoutes
from minflinkd.rest.cluster import About, ClusterRoutes
from minflinkd.rest.declared import declare
from minflinkd.rest.diagnosis import DiagnosisRoutes
from minflinkd.rest.documents import DocumentRoutes
from minflinkd.rest.ended_logs import EndedLogs
from minflinkd.rest.ending import Ending
from minflinkd.rest.error_form import error_response
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
from minflinkd.rest.events.routes import EventRoutes
from minflinkd.rest.events.streams import Streams
from minflinkd.rest.flink.applications import ApplicationRoutes
from minflinkd.rest.flink.daemon_view import DaemonRoutes
from minflinkd.rest.flink.execution_result import ExecutionResultRoutes
from minflinkd.rest.flink.flame_graphs import FlameGraphRoutes
from minflinkd.rest.flink.jars import JarRoutes
from minflinkd.rest.flink.metrics import FlinkMetricRoutes
from minflinkd.rest.flink.rescales import RescaleRoutes
from minflinkd.rest.flink.subtasks import SubtaskRoutes
from minflinkd.rest.flink.threads import ThreadRoutes
from minflinkd.rest.flink.unavailable import UnavailableRoutes
from minflinkd.rest.guard import BodyRoom, Limits, check_encoding, check_host, check_origin
from minflinkd.rest.health import HealthRoutes
from minflinkd.rest.history.routes import HistoryRoutes
from minflinkd.rest.identity.access import CHALLENGE, Access, identity_of, sender
from minflinkd.rest.identity.audit import AuditLog, Deed
from minflinkd.rest.identity.login import LoginRoutes, login_page, wants_page
from minflinkd.rest.identity.proving import Unauthenticated
from minflinkd.rest.identity.roles import Forbidden, Role, require_job
from minflinkd.rest.jobs import JobRoutes
from minflinkd.rest.log_copies import LogBlobs, LogCopies
from minflinkd.rest.logs import LogRoutes
from minflinkd.rest.openapi.routes import DescriptionRoutes
from minflinkd.rest.orphans import OrphanRoutes
from minflinkd.rest.page import PageRoutes
from minflinkd.rest.partitions import Partitions
from minflinkd.rest.past import Past
from minflinkd.rest.protocol import protocols
from minflinkd.rest.quotas import QuotaRoutes
from minflinkd.rest.restarts import RestartRoutes
from minflinkd.rest.resubmission import ResubmissionRoutes
from minflinkd.rest.route import QUESTIONS, Route
from minflinkd.rest.rpc import RpcRoutes
from minflinkd.rest.savepoints import SavepointRoutes
from minflinkd.rest.state import StateRoutes
from minflinkd.rest.submission import SubmissionRoutes
from minflinkd.rest.taskmanagers import TaskManagerRoutes
from minflinkd.rest.verification import VerificationRoutes
from minflinkd.rest.vertices import VertexRoutes
from minflinkd.runtime.component import Component
from minflinkd.runtime.doorkeeper import Doorkeeper
from minflinkd.runtime.errors import MinflinkError
from minflinkd.runtime.ids import IdSource
from minflinkd.runtime.listening import Place, bind, taken

log = structlog.get_logger(__name__)

SHUTDOWN_GRACE = 2.0  # seconds for GET requests under way when the endpoint stops
RETRY_AFTER = "1"  # seconds; sent with every 503
LONGEST_PATH = 500  # characters that the audit log keeps
_CODE = web.RequestKey("code", str)  # of the error that a request was answered with


@dataclass(frozen=True, kw_only=True)
class Listening:
    """Where the endpoint listens: on `sockets` that are already bound, or on its own.

    `allowed_hosts`: names other than loopback names under which clients reach the server.
    """

    host: str
    port: int
    allowed_hosts: Collection[str] = ()
    sockets: Sequence[socket.socket] = ()
    tls: ssl.SSLContext | None = None
    tls_to_leader: ssl.SSLContext | None = None  # of a standby

    @property
    def scheme(self) -> str:
        return "http" if self.tls is None else "https"


@dataclass(frozen=True, kw_only=True)
class LogSources:
    """Where logs of TaskManagers come from, other than from themselves.

    Parts with more than `offload_minsize` bytes come as `blobs`, if there are any. `ended`: the directory of the
    TaskManagers' homes, to read what ended ones have left there.
    """

    blobs: LogBlobs | None = None
    offload_minsize: int = 1 << 20
    ended: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Entrance:
    """Who is let in, and where it is written down who changes something."""

    access: Access
    audit: AuditLog | None = None


class ServedBlobs(ListedBlobs, StoringBlobs, Protocol):
    """The BlobServer, as the endpoint uses it."""


class RestServer(Component):
    """Ready when it listens; `url` has the actual port. `blobs` are listed, if it is given."""

    def __init__(
        self,
        backend: Backend,
        *,
        listening: Listening,
        entrance: Entrance,
        about: About,
        metrics: Metrics,
        limits: Limits | None = None,
        blobs: ServedBlobs | None = None,
        logs: LogSources | None = None,
    ) -> None:
        super().__init__("rest server")
        self._backend = backend
        self._listening = listening
        self._port = listening.port
        self._limits = limits = limits or Limits()
        self._access, self._audit = entrance.access, entrance.audit
        metrics.registry.register(self._access.refused)
        logs, ids = logs or LogSources(), IdSource()
        self._log_copies = LogCopies(
            backend.task_manager, logs.blobs, minsize=logs.offload_minsize, clock=backend.clock
        )
        self._flame_graphs = FlameGraphRoutes(backend)
        partitions = Partitions(backend)
        listed = None if blobs is None else BlobListing(blobs, backend.clock)
        self.history = metrics.history
        self.events = Streams(backend, about, self._access, most=limits.event_streams)
        subjects = (
            ClusterRoutes(backend, about),
            SubmissionRoutes(backend, limits=limits, ids=ids),
            ResubmissionRoutes(backend, blobs=blobs, limits=limits, ids=ids),
            DocumentRoutes(backend, limits=limits),
            QuotaRoutes(backend),
            JobRoutes(backend),
            VertexRoutes(backend, partitions),
            RestartRoutes(backend, limits=limits),
            CheckpointRoutes(backend),
            SavepointRoutes(backend, limits=limits, ids=ids),
            VerificationRoutes(backend, limits=limits, ids=ids),
            StateRoutes(backend, ids=ids),
            OrphanRoutes(backend),
            DiagnosisRoutes(backend, Past(metrics.history, backend.clock), about),
            TaskManagerRoutes(backend),
            LogRoutes(backend, self._log_copies, EndedLogs(logs.ended)),
            HealthRoutes(backend, metrics, listed),
            HistoryRoutes(backend, metrics.history),
            RpcRoutes(backend, metrics.rpc),
            EventRoutes(self.events),
            *(() if listed is None else (listed,)),
            *(() if blobs is None else (ArtifactRoutes(backend, blobs, limits=limits),)),
            PageRoutes(version=about.version, blobs=listed is not None),
            ApplicationRoutes(backend),
            DaemonRoutes(backend, about),
            FlinkMetricRoutes(backend, partitions),
            SubtaskRoutes(backend, partitions),
            ThreadRoutes(backend),
            self._flame_graphs,
            RescaleRoutes(backend),
            AutoscalerRoutes(backend),
            ExecutionResultRoutes(backend),
            UnavailableRoutes(backend, limits=limits),
            *(
                ()
                if backend.uploads is None
                else (JarRoutes(backend, backend.uploads, blobs=blobs, limits=limits, ids=ids),)
            ),
            LoginRoutes(self._access, limits),
            DescriptionRoutes(lambda: self.routes, version=about.version),
        )
        self.routes = tuple(route for subject in subjects for route in subject.routes())
        self._routes: dict[web.AbstractRoute, Route] = {}
        self._room = BodyRoom(limits)
        self._keeper = Doorkeeper("HTTP")
        self._under_way = 0
        self._ending = Ending()
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        host = self._listening.host
        name = f"[{host}]" if ":" in host else host
        return f"{self._listening.scheme}://{name}:{self._port}"

    async def _start(self) -> None:
        await self._log_copies.start()
        await self.events.start()
        await asyncio.to_thread(files)  # of the page, which are compressed now
        await self._flame_graphs.start()
        limits = self._limits
        app = web.Application(middlewares=[self._around], client_max_size=limits.body_bytes)
        # A path without a parameter is meant before one with a parameter at the same place.
        for route in sorted(self.routes, key=lambda one: one.path.count("{")):
            for path in (route.path, f"/v1{route.path}"):
                for method in (route.method, "HEAD") if route.head else (route.method,):
                    self._routes[app.router.add_route(method, path, route.handler)] = route
        self._runner = web.AppRunner(app, handle_signals=False, shutdown_timeout=SHUTDOWN_GRACE)
        await self._runner.setup()
        where = place(self._listening.host, self._port)
        sockets = self._listening.sockets or await bind(where)
        self._port = sockets[0].getsockname()[1]
        server = self._runner.server
        assert server is not None
        try:
            await self._keeper.serve(sockets, protocols(server, limits), self._listening.tls)
        except OSError as error:  # raised when it begins to listen
            if error.errno != errno.EADDRINUSE:
                raise
            raise await taken(where) from error

    async def _before_stop(self) -> None:
        await self.events.aclose()
        await self._ending.begin()

    async def _stop(self) -> None:
        runner, self._runner = self._runner, None
        await self._keeper.aclose()
        if runner is not None:
            await runner.cleanup()
        await self.events.aclose()
        await self._flame_graphs.aclose()
        await self._log_copies.aclose()

    @web.middleware
    async def _around(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Guards, counts and logs a request, and turns every error into JSON (E3)."""
        started = self._backend.clock.monotonic()
        refused: Unauthenticated | Forbidden | None = None
        route = self._route_of(request)
        counted = not (route is not None and route.endless)  # streams have a limit of their own
        self._under_way += counted
        try:
            response = await self._answer(request, handler)
        except (Unauthenticated, Forbidden) as error:
            refused, response = error, refusal(request, error)
        finally:
            self._under_way -= counted
        if refused is not None:
            self._access.tell(request, refused)
            await self._access.delay(refused)  # it counts no more as under way: others have room
        self._write_down(request, response.status)
        if not response.prepared:
            response.headers["X-Content-Type-Options"] = "nosniff"
            response.headers.setdefault("Cache-Control", "no-store")
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
            await self._admit(request)
            if request.method in QUESTIONS:
                return await handler(request)
            with self._room.taken_by(request):
                return await self._ending.carry_out(_response(handler, request))
        except web.HTTPException as error:
            refused = _of_aiohttp(request, error)
            response = error_response(request, error_answer(refused), refused.status)
            if "Allow" in error.headers:
                response.headers["Allow"] = error.headers["Allow"]
            return response
        except (Unauthenticated, Forbidden):
            raise
        except MinflinkError as error:
            request[_CODE] = error.info().code
            return error_response(request, error_answer(error), status_of(error))
        except (ConnectionError, TimeoutError):
            raise  # the client is gone, or its connection is too slow: aiohttp closes it
        except Exception:
            request[_CODE] = "internal"
            request_id = secrets.token_hex(6)
            log.exception("a request failed", method=request.method, path=request.path, request_id=request_id)
            return error_response(request, internal_error(request_id), 500)

    async def _admit(self, request: web.Request) -> None:
        """Raises Unauthenticated, Forbidden, and what asking for the job of the path raises."""
        route = self._route_of(request)
        declare(request, () if route is None else route.declarations)
        identity = await self._access.admit(request, route)
        if identity.jobs and "jobid" in request.match_info:
            require_job(identity, (await self._backend.job(request)).graph.name)

    def _route_of(self, request: web.Request) -> Route | None:
        found = request.match_info.route
        return self._routes.get(found)

    def _write_down(self, request: web.Request, status: int) -> None:
        """Add a change to the audit log, if it is known who asked for it."""
        identity = identity_of(request)
        route = self._route_of(request)
        changes = request.method not in QUESTIONS if route is None else route.changes
        if self._audit is None or not changes or identity.role is Role.ANYBODY:
            return
        deed = Deed(
            who=identity.name,
            role=str(identity.role),
            sender=sender(request),
            method=request.method,
            path=request.path[:LONGEST_PATH],
            job=request.get(JOB) or request.match_info.get("jobid", ""),
            status=status,
            error=request.get(_CODE, ""),
        )
        self._audit.record(deed)

    def _check(self, request: web.Request) -> None:
        """Raises UnknownHost, CrossSite, UnsupportedMediaType, Overloaded."""
        check_host(request.headers.get("Host", ""), self._listening.host, self._listening.allowed_hosts)
        check_origin(request.headers, request.method)
        check_encoding(request.headers)
        if self._under_way > self._limits.requests:
            raise Overloaded("too many requests are under way", hint="try again in a moment")


async def _response(handler: Handler, request: web.Request) -> web.StreamResponse:
    return await handler(request)


def refusal(request: web.Request, error: Unauthenticated | Forbidden) -> web.Response:
    """Return the answer for who is not let in: JSON, or for a person in a browser the form to log in."""
    request[_CODE] = error.code
    if isinstance(error, Unauthenticated) and wants_page(request):
        response = login_page(error.status, "" if error.reason == Unauthenticated.reason else str(error))
    else:
        response = error_response(request, error_answer(error), error.status)
    if isinstance(error, Unauthenticated):
        response.headers["WWW-Authenticate"] = CHALLENGE
    return response


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
