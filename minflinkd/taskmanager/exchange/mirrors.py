"""The mirrors of a TaskManager: inputs of its attempts that are written elsewhere, and the tasks that fetch them."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path

import aiohttp
import structlog

from minflinkd.rpc.messages import ExchangeSource
from minflinkd.runtime.component import Component
from minflinkd.runtime.errors import ErrorInfo, error_info
from minflinkd.runtime.ids import AttemptId, ResourceId
from minflinkd.taskmanager.exchange.access import ExchangeUnreachable
from minflinkd.taskmanager.exchange.mirror import Mirror
from minflinkd.taskmanager.exchange.remote_log import RemoteLog

log = structlog.get_logger(__name__)


class Mirrors(Component):
    """Runs the mirrors. `max_backlog` is in bytes, `patience` in seconds.

    `on_lost` is called with an attempt that can no longer read one of its inputs.
    """

    def __init__(
        self,
        *,
        resource_id: ResourceId,
        token: str,
        tls: ssl.SSLContext | None = None,
        max_backlog: int,
        patience: float,
        on_lost: Callable[[AttemptId, ErrorInfo], object],
    ) -> None:
        super().__init__("exchange mirrors")
        self.max_backlog = max_backlog
        self._resource_id = resource_id
        self._token = token
        self._tls = tls
        self._patience = patience
        self._on_lost = on_lost
        self._http: aiohttp.ClientSession | None = None
        self._running: dict[AttemptId, list[asyncio.Task[None]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._running.values()))

    def is_elsewhere(self, source: ExchangeSource) -> bool:
        """Whether another TaskManager writes this exchange."""
        return source.resource_id != self._resource_id

    def open(self, attempt_id: AttemptId, source: ExchangeSource, directory: Path, *, reader: str, first: int) -> None:
        """Mirror `source` into `directory` until the attempt's `close`. Raises ExchangeUnreachable."""
        if not source.data_url:
            raise ExchangeUnreachable(f"TaskManager {source.resource_id} has not said where its exchanges are read")
        if self._http is None:
            self._http = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, ssl=self._tls or True), cookie_jar=aiohttp.DummyCookieJar()
            )
        mirror = Mirror(
            RemoteLog(self._http, source.data_url, source.attempt_id, token=self._token),
            directory,
            reader=reader,
            first=first,
            max_backlog=self.max_backlog,
            patience=self._patience,
        )
        name = f"mirror {source.vertex_id} for {attempt_id}"
        task = self.tasks.job(name, mirror.run(), on_error=lambda error: self._lost(attempt_id, error))
        self._running.setdefault(attempt_id, []).append(task)

    async def close(self, attempt_id: AttemptId) -> None:
        """Stop the attempt's mirrors, and return when they write nothing any more. Idempotent."""
        tasks = self._running.get(attempt_id, [])
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._running.pop(attempt_id, None)

    async def _stop(self) -> None:
        self._running.clear()
        http, self._http = self._http, None
        if http is not None:
            await http.close()

    def _lost(self, attempt_id: AttemptId, error: Exception) -> None:
        log.warning("an input cannot be read any more", attempt=attempt_id, error=str(error))
        self._on_lost(attempt_id, error_info(error))
