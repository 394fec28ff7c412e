"""Sends events to a server over HTTP, or appends them to a file."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Mapping
from pathlib import Path

import aiohttp
import structlog

from minflinkd.listeners.interface import JobChange, Listener
from minflinkd_openlineage.events import event
from minflinkd_openlineage.options import parsed

log = structlog.get_logger(__name__)

FIRST_PAUSE = 0.5  # seconds before the second attempt; it doubles
LONGEST_PAUSE = 5.0
PATIENCE = 50.0  # seconds for one event with all its attempts; later ones wait meanwhile
_LATER = frozenset({408, 425, 429})  # refusals that may end


class OpenLineage(Listener):
    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = parsed(options)
        self._http: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        if self._options.url:
            self._http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=self._options.timeout))

    async def told(self, change: JobChange) -> None:
        """Raises nothing: an event that cannot be delivered is logged and dropped."""
        document = json.dumps(event(change, self._options.namespace), separators=(",", ":")).encode()
        if self._options.file:
            try:
                await asyncio.to_thread(_append, Path(self._options.file), document)
            except OSError as error:
                log.error("an OpenLineage event was not written", job=change.job_id, error=str(error))
        if self._http is not None:
            try:
                async with asyncio.timeout(PATIENCE):
                    problem = await self._post(self._http, document)
            except TimeoutError:
                problem = f"it took longer than {PATIENCE:.0f} s"
            if problem:
                log.error("an OpenLineage event was not delivered", job=change.job_id, change=change.kind, why=problem)

    async def aclose(self) -> None:
        if self._http is not None:
            await self._http.close()

    async def _post(self, http: aiohttp.ClientSession, document: bytes) -> str:
        """Return why the server did not take it; empty if it did."""
        options, problem, pause = self._options, "", FIRST_PAUSE
        url = f"{options.url.rstrip('/')}/{options.endpoint.lstrip('/')}"
        for attempt in range(options.attempts):
            if attempt:
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311  # spreads requests, hides nothing
                pause = min(2 * pause, LONGEST_PAUSE)
            try:
                headers = {"Content-Type": "application/json"}
                if token := await asyncio.to_thread(lambda: options.token):
                    headers["Authorization"] = f"Bearer {token}"
                async with http.post(url, data=document, headers=headers) as response:
                    if response.status < 300:
                        return ""
                    said = (await response.content.read(500)).decode(errors="replace")
                    problem = f"HTTP {response.status}: {said}"
                    if response.status < 500 and response.status not in _LATER:
                        return problem
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                problem = str(error) or type(error).__name__
        return problem


def _append(file: Path, document: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("ab") as output:
        output.write(document + b"\n")
