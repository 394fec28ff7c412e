"""The HTTP endpoint of a standby: it redirects to the leader, or forwards requests to it (A13).

/health, /health/ready   200 and `standby`; 503 with the reason while this daemon could not become the leader
/health/live             200
/metrics                 that this daemon does not lead, and how long there has been no leader
everything else          307 to the same path at the leader, or the leader's answer (`rest.standby: proxy`); 503 while
                         there is no leader
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence

from aiohttp import web
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from minflinkd.metrics.leadership import LEADER, WITHOUT_LEADER
from minflinkd.rest.backend import json_answer
from minflinkd.rest.error_form import error_response
from minflinkd.rest.errors import RequestError, error_answer
from minflinkd.rest.guard import Limits, check_host, check_origin
from minflinkd.rest.identity.access import Access
from minflinkd.rest.identity.proving import Unauthenticated
from minflinkd.rest.identity.roles import Forbidden, Role, require_role
from minflinkd.rest.passing_on import PASSED_ON, LeaderProxy, NoLeader
from minflinkd.rest.protocol import protocols
from minflinkd.rest.route import OF_EACH_DAEMON
from minflinkd.rest.schemas import Health
from minflinkd.rest.server import RETRY_AFTER, Listening, refusal
from minflinkd.runtime.component import Component
from minflinkd.runtime.doorkeeper import Doorkeeper
from minflinkd.runtime.errors import MinflinkError

GRACE = 1.0  # seconds for answers under way when the endpoint stops
_ALWAYS = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}


class StandbyServer(Component):
    """Answers on `sockets`, and closes them at the end. `leader` returns the URL of the leader; empty: none is known.

    `trouble` returns why this daemon could not lead at present. `without_leader` returns for how many seconds no leader
    has been known. With `proxy`, requests are forwarded to the leader instead of redirected.
    """

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        *,
        listening: Listening,
        access: Access,
        leader: Callable[[], str],
        trouble: Callable[[], str],
        without_leader: Callable[[], float] = lambda: 0.0,
        proxy: bool = False,
        limits: Limits | None = None,
    ) -> None:
        super().__init__("standby endpoint")
        self._sockets = sockets
        self._listening = listening
        self._access = access
        self._leader = leader
        self._trouble = trouble
        self._limits = limits = limits or Limits()
        self._proxy: LeaderProxy | None = None
        if proxy:
            self._proxy = LeaderProxy(
                leader, at_once=limits.requests, header_bytes=limits.header_bytes, tls=listening.tls_to_leader
            )
        self._runner: web.AppRunner | None = None
        self._keeper = Doorkeeper("HTTP")
        self._registry = CollectorRegistry()
        Gauge(*LEADER, registry=self._registry).set(0)
        self._registry.register(access.refused)
        Gauge(*WITHOUT_LEADER, registry=self._registry).set_function(without_leader)

    async def _start(self) -> None:
        if self._proxy is not None:
            await self._proxy.start()
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, handle_signals=False, shutdown_timeout=GRACE)
        await self._runner.setup()
        server = self._runner.server
        assert server is not None
        # Bodies are forwarded as they come.
        connections = protocols(server, self._limits, auto_decompress=False)
        await self._keeper.serve(self._sockets, connections, self._listening.tls)

    async def _stop(self) -> None:
        runner, self._runner = self._runner, None
        await self._keeper.aclose()
        if runner is not None:
            await runner.cleanup()
        if self._proxy is not None:
            await self._proxy.aclose()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        try:
            check_host(request.headers.get("Host", ""), self._listening.host, self._listening.allowed_hosts)
            own = await self._own_answer(request)
            response = await self._leaders_answer(request) if own is None else own
        except (Unauthenticated, Forbidden) as error:
            self._access.tell(request, error)
            await self._access.delay(error)
            response = refusal(request, error)
        except RequestError as error:
            response = error_response(request, error_answer(error), error.status)
        except MinflinkError as error:
            response = error_response(request, error_answer(error), 500)
        if response.prepared:
            return response
        response.headers.update(_ALWAYS)
        if response.status == 503:
            response.headers["Retry-After"] = RETRY_AFTER
        return response

    async def _own_answer(self, request: web.Request) -> web.Response | None:
        """Return this daemon's own answer, or None if the request is for the leader, which asks for the token.

        Raises Unauthenticated, Overloaded.
        """
        path = request.path.removeprefix("/v1")
        if path not in OF_EACH_DAEMON:
            return None
        standby = Health(live=True, ready=True, role="standby", pid=os.getpid())
        match path:
            case "/health/live":
                return json_answer(standby)
            case "/health" | "/health/ready":
                trouble = self._trouble()
                health = replace(standby, ready=not trouble, reasons=(trouble,) if trouble else ())
                return json_answer(health, status=503 if trouble else 200)
            case "/metrics":
                require_role(await self._access.who(request), Role.VIEW)
                return web.Response(body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST})
        return None

    async def _leaders_answer(self, request: web.Request) -> web.StreamResponse:
        """Return what the leader answers, or where it is.

        Raises NoLeader, LeaderLost, Overloaded, CrossSite, Unauthenticated; ConnectionError if the answer breaks off.
        """
        if PASSED_ON in request.headers:
            raise NoLeader(
                "another daemon forwarded this request, but this one does not lead either",
                hint="the daemons learn who leads within a second; try again in a moment",
            )
        leader = self._leader()
        if not leader:
            raise NoLeader(
                "no daemon leads at the moment" + (f": {trouble}" if (trouble := self._trouble()) else ""),
                hint="tasks keep running; try again in a moment",
            )
        if self._proxy is None:
            # Not `raw_path`: a request line may name a whole URL.
            return web.Response(status=307, headers={"Location": leader.rstrip("/") + request.rel_url.raw_path_qs})
        check_origin(request.headers, request.method)
        return await self._proxy.pass_on(request, leader, vouched=self._access.vouch(request))
