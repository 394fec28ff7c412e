"""A log on another TaskManager, over HTTP: single requests to its data endpoint, and what their failures mean."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import msgspec

from minflinkd.blob.transfer import finish
from minflinkd.runtime.errors import MALFORMED
from minflinkd.runtime.ids import AttemptId
from minflinkd.runtime.tls_faults import why_refused
from minflinkd.taskmanager.exchange.access import ExchangeUnreachable, is_data_file
from minflinkd.taskmanager.exchange.log import DataFile, Entry, ExchangeDamaged

CHUNK = 1024**2  # bytes
WAIT = 5  # seconds that the other side waits for an entry
SILENCE = 15.0  # seconds without a byte after which a request has failed


class RemoteLog:
    """The log of one attempt. All methods raise ExchangeUnreachable, after which another try may succeed."""

    def __init__(self, http: aiohttp.ClientSession, url: str, attempt_id: AttemptId, *, token: str) -> None:
        self._http = http
        self._url = f"{url}/exchanges/{attempt_id}"
        self._headers = {"Authorization": f"Bearer {token}", "Accept-Encoding": "identity"}
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=5.0, sock_read=SILENCE)

    async def schema(self) -> str | None:
        """Return the schema, or None if there is no such log, yet or any more."""
        async with self._request("GET", "schema") as response:
            return None if response.status == 404 else await response.text()

    async def entries(self, first: int) -> list[Entry]:
        """Return the entries from `first` on. Waits for one for a few seconds. Raises ExchangeDamaged."""
        async with self._request("GET", f"entries?from={first}&wait={WAIT}", exists=True) as response:
            body = await response.read()
        try:
            return msgspec.json.decode(body, type=list[Entry])
        except MALFORMED as error:
            raise ExchangeUnreachable(f"{self._url} answers something else than entries: {error}") from error

    async def fetch(self, file: DataFile, target: Path) -> None:
        """Fetch a file. `target` appears whole, or not at all. Raises ExchangeDamaged if the name is no data file's."""
        if not is_data_file(file.name):
            raise ExchangeDamaged(f"an entry of {self._url} names {file.name[:80]!r}, which is no data file")
        part = target.with_name(f".{target.name}.part")
        async with self._request("GET", f"data/{file.name}", exists=True) as response:
            size = 0
            with part.open("wb", buffering=CHUNK) as out:
                async for piece in response.content.iter_chunked(CHUNK):
                    size += len(piece)
                    await finish(asyncio.to_thread(out.write, piece))
                    if size > file.size:
                        break
        if size != file.size:
            raise ExchangeUnreachable(f"{file.name} from {self._url} has not {file.size} bytes: {size} or more came")
        await finish(asyncio.to_thread(part.replace, target))

    async def begin(self, reader: str, position: int) -> None:
        """Begin to read at `position`, as `log.begin_reading`. Raises ExchangeDamaged if entries are gone."""
        async with self._request("PUT", f"consumed/{reader}?begin=1", body=str(position).encode(), exists=True):
            pass

    async def consumed(self, reader: str, position: int) -> None:
        async with self._request("PUT", f"consumed/{reader}", body=str(position).encode(), exists=True):
            pass

    async def covered(self, reader: str, position: int) -> None:
        """Tell what no later attempt of the reader needs. A TaskManager of an earlier version keeps nothing for it."""
        async with self._request("PUT", f"covered/{reader}", body=str(position).encode()):
            pass

    @asynccontextmanager
    async def _request(
        self, method: str, path: str, *, body: bytes | None = None, exists: bool = False
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yield an answer that is not an error. 404 is an error only if the log must exist (`exists`)."""
        url = f"{self._url}/{path}"
        try:
            async with self._http.request(
                method, url, data=body, headers=self._headers, timeout=self._timeout
            ) as response:
                if response.status == 410:
                    raise ExchangeDamaged(f"{url}: {await response.text()}")
                if response.status >= 400 and (exists or response.status != 404):
                    raise ExchangeUnreachable(f"{url}: HTTP {response.status}, {(await response.text())[:200]}")
                yield response
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            raise ExchangeUnreachable(
                f"{method} {url}: {why_refused(error) or str(error) or repr(error)}",
                hint="TaskManagers on several hosts reach each other where taskmanager.bind-host and taskmanager.host "
                "say so, and the network lets them",
            ) from error
