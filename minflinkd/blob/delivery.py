"""Sends one verified file over HTTP (B9): ranges, tags, and the checksum of what is sent."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable
from concurrent.futures import Executor
from io import FileIO

import structlog
from aiohttp import hdrs, web

from minflinkd.blob.keys import BlobKey
from minflinkd.blob.transfer import CHUNK, Pace, finish

log = structlog.get_logger(__name__)

PROBED = 64 * 1024  # one probe per so many bytes shows whether a file is cached


class Delivery:
    """Sends `file` as the answer to `request`. The caller closes the file.

    A whole file is hashed while it is sent, unless it is `trusted`: a file just verified for one TaskManager is not
    hashed again for each of the others. The last piece is held back until the file is known to be correct or, if it is
    not hashed, still `unchanged`.
    """

    def __init__(
        self,
        request: web.Request,
        file: FileIO,
        key: BlobKey,
        *,
        trusted: bool,
        unchanged: Callable[[], bool],
        threads: Executor,
        idle_timeout: float,
    ) -> None:
        self.sent = 0  # bytes
        self.reached_the_end = False  # the last byte of the blob was sent
        self.verified = False  # all of it was hashed and was correct
        self.corrupt = False  # the bytes sent did not match the key; the last piece was held back
        self._request = request
        self._file = file
        self._key = key
        self._trusted = trusted
        self._unchanged = unchanged
        self._threads = threads
        self._idle_timeout = idle_timeout

    async def run(self) -> web.StreamResponse:
        """Send the answer. Raises HTTPRequestRangeNotSatisfiable."""
        request, etag = self._request, f'"{self._key.sha256}"'
        if request.headers.get(hdrs.IF_NONE_MATCH) == etag:
            return web.Response(status=304, headers={hdrs.ETAG: etag})
        size = os.fstat(self._file.fileno()).st_size
        whole = hdrs.RANGE not in request.headers or request.headers.get(hdrs.IF_RANGE, etag) != etag
        start, stop = (0, size) if whole else wanted_range(request, size)
        response = web.StreamResponse(status=200 if whole else 206)
        response.headers.update({hdrs.ETAG: etag, hdrs.ACCEPT_RANGES: "bytes"})
        response.content_type = "application/octet-stream"
        response.content_length = stop - start
        if not whole:
            response.headers[hdrs.CONTENT_RANGE] = f"bytes {start}-{stop - 1}/{size}"
        await response.prepare(request)
        if request.method != hdrs.METH_HEAD:
            await self._send(response, start, stop, size)
        return response

    async def _send(self, response: web.StreamResponse, start: int, stop: int, size: int) -> None:
        """Send the body. An error here ends the connection, because the head of the answer is already out."""
        hasher = hashlib.sha256() if (start, stop) == (0, size) and not self._trusted else None
        known = self._unchanged()

        def check() -> None:
            """Check the file before the last piece goes out."""
            if hasher is not None:
                self.verified = hasher.hexdigest() == self._key.sha256
                self.corrupt = not self.verified
            else:
                self.corrupt = known and not self._unchanged()
            if self.corrupt:
                raise OSError("the file is not what it was")

        try:
            if start < stop:
                if self._trusted:
                    await self._send_by_kernel(start, stop, check)
                else:
                    await self._send_by_threads(response, start, stop, hasher, check)
            self.reached_the_end = stop == size  # even if the client leaves before the rest of this
            async with Pace(self._idle_timeout).step():
                await response.write_eof()
        except (OSError, TimeoutError) as error:
            log.info("a blob transfer broke off", path=self._request.path, error=repr(error))
            hang_up(self._request)

    async def _send_by_threads(
        self,
        response: web.StreamResponse,
        start: int,
        stop: int,
        hasher: hashlib._Hash | None,
        check: Callable[[], None],
    ) -> None:
        loop, pace, at = asyncio.get_running_loop(), Pace(self._idle_timeout), start

        def read_on() -> asyncio.Future[bytes]:
            return loop.run_in_executor(self._threads, _read, self._file, at, min(CHUNK, stop - at), hasher)

        reading: asyncio.Future[bytes] | None = read_on()
        try:
            while reading is not None:
                data = await asyncio.shield(reading)
                at += len(data)
                if at == stop:
                    check()
                reading = read_on() if at < stop else None  # while this one is written
                async with pace.step(len(data)):
                    await response.write(data)
                self.sent += len(data)
        finally:
            if reading is not None:  # do not close the file while it is being read
                await asyncio.wait({reading})
                if not reading.cancelled():
                    reading.exception()  # mark the exception as retrieved

    async def _send_by_kernel(self, start: int, stop: int, check: Callable[[], None]) -> None:
        """Send from the kernel's cache, so that nothing here waits for the disk.

        A trusted file was read recently. What has left the cache since is read once more, in a thread.
        """
        loop, pace = asyncio.get_running_loop(), Pace(self._idle_timeout)
        for at in range(start, stop, CHUNK):
            length = min(CHUNK, stop - at)
            if at + length == stop:
                check()
            wire = self._request.transport
            if wire is None or wire.is_closing():
                raise ConnectionResetError("the client has gone")
            if not _is_cached(self._file, at, length):
                await finish(loop.run_in_executor(self._threads, _read, self._file, at, length, None))
            async with pace.step(length):
                sent = await loop.sendfile(wire, self._file, at, length)
            self.sent += sent
            if sent < length:
                raise OSError("the file became shorter")


def wanted_range(request: web.Request, size: int) -> tuple[int, int]:
    """Return [start, stop) of the one requested range. Raises HTTPRequestRangeNotSatisfiable."""
    try:
        start, stop, _ = request.http_range.indices(size)
    except ValueError:
        start = stop = 0
    if start >= stop:
        raise web.HTTPRequestRangeNotSatisfiable(headers={hdrs.CONTENT_RANGE: f"bytes */{size}"})
    return start, stop


def hang_up(request: web.Request) -> None:
    """Abort the connection, so that the peer sees that the answer is incomplete."""
    if request.transport is not None:
        request.transport.abort()


def _is_cached(file: FileIO, at: int, size: int) -> bool:
    """Whether the kernel has this part in memory, as far as some probes show. Not blocking."""
    probe = bytearray(1)
    try:
        return all(os.preadv(file.fileno(), [probe], place, os.RWF_NOWAIT) for place in range(at, at + size, PROBED))
    except OSError:  # it would wait for the disk, or the file system cannot tell
        return False


def _read(file: FileIO, at: int, size: int, hasher: hashlib._Hash | None) -> bytes:
    if not (data := os.pread(file.fileno(), size, at)):
        raise OSError("the file became shorter")
    if hasher is not None:
        hasher.update(data)
    return data
