"""`/events` and `/jobs/:jobid/events`: what changes, as server-sent events (E16)."""

from __future__ import annotations

from aiohttp import web

from minflinkd.rest import route
from minflinkd.rest.declared import JOB_ID
from minflinkd.rest.events.streams import MEDIA, Streams
from minflinkd.rest.identity.roles import Role
from minflinkd.rest.route import Text


class EventRoutes:
    def __init__(self, streams: Streams) -> None:
        self._streams = streams

    def routes(self) -> list[route.Route]:
        return [
            route.get(
                "/events",
                self.of_cluster,
                Role.VIEW,
                "The cluster and its jobs, and then what changes",
                {200: Text(MEDIA)},
                endless=True,
                more="Not in Flink: server-sent events, see [below](#history-and-events)",
            ),
            route.get(
                "/jobs/{jobid}/events",
                self.of_job,
                Role.VIEW,
                "A job, its checkpoints and failures, and then what changes",
                {200: Text(MEDIA)},
                endless=True,
                more="Not in Flink: server-sent events, see [below](#history-and-events)",
            ),
        ]

    async def of_cluster(self, request: web.Request) -> web.StreamResponse:
        return await self._streams.of_cluster(request)

    async def of_job(self, request: web.Request) -> web.StreamResponse:
        return await self._streams.of_job(request, JOB_ID.of(request))
