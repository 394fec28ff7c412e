"""A log on another TaskManager, over HTTP: single requests to its data endpoint, and what their failures mean.

The other side may be broken, or somebody else. So no answer may be larger or take longer than a good one, and no
redirection is followed (E45).
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
from aiohttp import hdrs

from minflinkd.blob.transfer import finish, in_chunks, pieces
from minflinkd.runtime.ids import AttemptId
from minflinkd.runtime.tls_faults import why_refused
from minflinkd.taskmanager.exchange.access import ExchangeUnreachable, is_data_file
from minflinkd.taskmanager.exchange.log import DataFile, Entry, ExchangeDamaged
from minflinkd.taskmanager.exchange.received import parse

CHUNK = 1024**2  # bytes
SCHEMA_BYTES = 16 * 1024**2  # of the largest schema
ENTRIES_BYTES = 16 * 1024**2  # of the largest answer with entries; the endpoint ends an answer far sooner
WORDS_BYTES = 1000  # of an error that are read
WAIT = 5  # seconds that the other side waits for an entry
SILENCE = 15.0  # seconds without a byte after which a request has failed
BEGINNING = WAIT + SILENCE  # seconds in which an answer begins


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
            body = b"" if response.status == 404 else await self._body(response, SCHEMA_BYTES)
        try:
            return None if response.status == 404 else body.decode()
        except UnicodeDecodeError as error:
            raise ExchangeUnreachable(f"{self._url} answers something else than a schema: {error}") from error

    async def entries(self, first: int) -> list[Entry]:
        """Return the entries from `first` on. Waits for one for a few seconds. Raises ExchangeDamaged."""
        async with self._request("GET", f"entries?from={first}&wait={WAIT}", exists=True) as response:
            body = await self._body(response, ENTRIES_BYTES)
        return await asyncio.to_thread(parse, self._url, body)

    async def fetch(self, file: DataFile, target: Path) -> None:
        """Fetch a file. `target` appears whole, or not at all. Raises ExchangeDamaged if the name is no data file's."""
        if not is_data_file(file.name):
            raise ExchangeDamaged(f"an entry of {self._url} names {file.name[:80]!r}, which is no data file")
        free = (await asyncio.to_thread(shutil.disk_usage, target.parent)).free
        if file.size > free:
            raise ExchangeUnreachable(
                f"{file.name} from {self._url} has {file.size} bytes, and {free} are free in {target.parent}",
                hint="make room on the disk of the TaskManager's working directory",
            )
        part = target.with_name(f".{target.name}.part")
        try:
            size = await self._save(file, part)
            if size != file.size:
                raise ExchangeUnreachable(
                    f"{file.name} from {self._url} has not {file.size} bytes: {size} or more came"
                )
            await finish(asyncio.to_thread(part.replace, target))
        finally:
            await finish(asyncio.to_thread(part.unlink, missing_ok=True))

    async def _save(self, file: DataFile, part: Path) -> int:
        """Write what comes to `part`, until it is more than the file has. Return how many bytes came."""
        size = 0
        async with self._request("GET", f"data/{file.name}", exists=True) as response:
            with part.open("wb", buffering=CHUNK) as out:
                async for piece in in_chunks(pieces(response.content, idle_timeout=SILENCE)):
                    size += len(piece)
                    if size > file.size:
                        break
                    await finish(asyncio.to_thread(out.write, piece))
        return size

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
            async with asyncio.timeout(BEGINNING):
                response = await self._http.request(
                    method, url, data=body, headers=self._headers, timeout=self._timeout, allow_redirects=False
                )
            async with response:
                if response.status == 410:
                    raise ExchangeDamaged(f"{url}: {await _words(response)}")
                if not (response.status in (200, 204) or (response.status == 404 and not exists)):
                    raise ExchangeUnreachable(f"{url}: HTTP {response.status}, {(await _words(response))[:200]}")
                if response.headers.get(hdrs.CONTENT_ENCODING, "identity").lower() != "identity":
                    raise ExchangeUnreachable(f"{url}: the answer is packed, which was not asked for")
                yield response
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            raise ExchangeUnreachable(
                f"{method} {url}: {why_refused(error) or str(error) or 'no answer in time'}",
                hint="TaskManagers on several hosts reach each other where taskmanager.bind-host and taskmanager.host "
                "say so, and the network lets them",
            ) from error

    async def _body(self, response: aiohttp.ClientResponse, most: int) -> bytes:
        """Return the whole body. Raises ExchangeUnreachable if it has more than `most` bytes, TimeoutError."""
        body = bytearray()
        async for piece in pieces(response.content, idle_timeout=SILENCE):
            body += piece
            if len(body) > most:
                raise ExchangeUnreachable(f"{self._url} answers with more than {most} bytes, which is no exchange's")
        return bytes(body)


async def _words(response: aiohttp.ClientResponse) -> str:
    """Return the beginning of the text of an error. Raises TimeoutError."""
    text = b""
    async for piece in pieces(response.content, idle_timeout=SILENCE):
        text += piece
        if len(text) > WORDS_BYTES:
            break
    return text[:WORDS_BYTES].decode("utf-8", "replace")
