"""`/openapi.json`: what the endpoint can do, for programs (E5)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from aiohttp import web

from minflinkd.rest import route
from minflinkd.rest.backend import encode, json_bytes
from minflinkd.rest.identity.roles import Role
from minflinkd.rest.openapi.document import document
from minflinkd.rest.route import Route


class DescriptionRoutes:
    """`described`: returns the routes of the endpoint, these included."""

    def __init__(self, described: Callable[[], Sequence[Route]], *, version: str) -> None:
        self._described = described
        self._version = version
        self._document: bytes | None = None

    def routes(self) -> list[Route]:
        return [
            route.get(
                "/openapi.json",
                self.describe,
                Role.VIEW,
                "This description, as OpenAPI 3.1",
                {200: dict[str, Any]},
                more="Not in Flink. See [OpenAPI](#openapi)",
            )
        ]

    async def describe(self, _: web.Request) -> web.Response:
        if self._document is None:
            # In a thread: it takes longer than a request may keep the event loop.
            self._document = await asyncio.to_thread(lambda: encode(document(self._described(), self._version)))
        return json_bytes(self._document)
