"""`/health` for systemd, load balancers and people; `/metrics` for Prometheus."""

from __future__ import annotations

import os

from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from minflinkd.metrics.registry import Metrics
from minflinkd.rest import route
from minflinkd.rest.backend import Backend, json_answer
from minflinkd.rest.blobs import BlobListing
from minflinkd.rest.identity.roles import Role
from minflinkd.rest.measuring import Measuring
from minflinkd.rest.route import Text
from minflinkd.rest.schemas import Health
from minflinkd.runtime.errors import MinflinkError


class HealthRoutes:
    def __init__(self, backend: Backend, metrics: Metrics, blobs: BlobListing | None = None) -> None:
        self._backend = backend
        self._metrics = metrics
        self._measuring = Measuring(backend, blobs)

    def routes(self) -> list[route.Route]:
        either = {200: Health, 503: Health}
        return [
            route.get(
                "/health",
                self.ready,
                Role.ANYBODY,
                "Whether a job would be accepted",
                either,
                more=(
                    "200 when Dispatcher and ResourceManager answer, otherwise 503 with the reasons. Says nothing of "
                    "TaskManagers"
                ),
            ),
            route.get(
                "/health/live",
                self.live,
                Role.ANYBODY,
                "Whether the daemon answers at all",
                {200: Health},
                more=(
                    "200 while the event loop answers. The answer has the daemon's `pid`, as do those of `/health` and "
                    "`/health/ready`"
                ),
            ),
            route.get(
                "/health/ready",
                self.ready,
                Role.ANYBODY,
                "Whether a job would be accepted",
                either,
                more="As `/health`",
            ),
            route.get("/metrics", self.metrics, Role.VIEW, "Metrics, for Prometheus", {200: Text("text/plain")}),
        ]

    async def live(self, _: web.Request) -> web.Response:
        """Answer 200, which shows that the event loop runs."""
        return json_answer(Health(live=True, ready=True, pid=os.getpid()))

    async def ready(self, _: web.Request) -> web.Response:
        """Answer 200 if a submission would be accepted, otherwise 503 with the reasons."""
        reasons = []
        for ask in (self._backend.jobs.get, self._backend.resources.get):
            try:
                await ask()
            except MinflinkError as error:
                reasons.append(error.message)
        health = Health(live=True, ready=not reasons, pid=os.getpid(), reasons=tuple(reasons))
        return json_answer(health, status=503 if reasons else 200)

    async def metrics(self, _: web.Request) -> web.Response:
        self._metrics.cluster.show(await self._measuring.sample())
        return web.Response(body=self._metrics.render(), headers={"Content-Type": CONTENT_TYPE_LATEST})
