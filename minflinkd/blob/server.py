"""The BlobServer: keeps a job's artifacts, serves them to TaskManagers over HTTP, and cleans up after jobs.

    GET    /blobs                                        all blobs, as a list
    PUT    /blobs/<job>?kind=p&sha256=...&set=...        the body is the blob; 201 with its key. `Expect: 100-continue`
                                                         is answered 200 if the content is already stored
    POST   /blobs/<job>/sets/<set>/complete              the set is complete
    GET    /blobs/<job>/<key>?delete=true                with Range, ETag, If-Range, If-None-Match; HEAD. `delete`: a
                                                         transient one is deleted after its last byte was sent
    DELETE /blobs/<job>/<key>                            a transient one
    DELETE /blobs/<job>                                  all blobs of a job that neither runs nor can be recovered

<job> is a job id, or `none` for transient blobs of no job; the client chooses <set>. Every request carries
`Authorization: Bearer <token>` if the server has one. Errors are answered as JSON, as everywhere.
"""

from __future__ import annotations

import asyncio
import hashlib
import ssl
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from minflinkd.blob.cleaning import BlobCleaner
from minflinkd.blob.depot import BlobDepot
from minflinkd.blob.errors import BlobNotFound
from minflinkd.blob.files import BlobFile
from minflinkd.blob.ha_store import HaStore
from minflinkd.blob.keys import Blob, BlobKey, BlobKind
from minflinkd.blob.lifecycle import BlobLifecycle
from minflinkd.blob.mending import CopyMender
from minflinkd.blob.reading import BlobReader
from minflinkd.blob.receiving import BlobReceiver
from minflinkd.blob.routes import BlobRoutes
from minflinkd.blob.store import BlobStore
from minflinkd.blob.transfer import CHUNK, BlobInfo, TransferGate
from minflinkd.blob.uploads import Upload, Uploads
from minflinkd.runtime.clock import Clock, SystemClock
from minflinkd.runtime.component import Component
from minflinkd.runtime.doorkeeper import MOST, Doorkeeper, most_connections
from minflinkd.runtime.errors import MinflinkError
from minflinkd.runtime.http_protocol import protocols
from minflinkd.runtime.ids import JobId
from minflinkd.runtime.listening import Place, PortTaken, bind
from minflinkd.storage.location import Location
from minflinkd.storage.os_errors import os_errors
from minflinkd.storage.parallel import for_each

READ_BUFFER = 256 * 1024  # bytes of a request buffered before they are read; at most twice that
SHORTEST_PAUSE = 0.01  # seconds between two rotations
RESTORATIONS = 4  # artifacts of a recovered job fetched at a time


@dataclass(frozen=True, kw_only=True)
class BlobOptions:
    """Times in seconds."""

    directory: Path
    """Of the local store (`blob.storage.directory`)."""
    host: str = "127.0.0.1"
    address: str = ""
    """Under which others reach the server; empty: `host`."""
    ports: tuple[int, ...] = (0,)
    """Tried in this order (`blob.server.port`); 0 takes any free one."""
    max_size: int | None = None
    """Bytes of one blob (`blob.max-size`)."""
    transfers: int = 50
    """At a time (`blob.fetch.num-concurrent`)."""
    backlog: int = 1000
    """Transfers that may wait (`blob.fetch.backlog`)."""
    idle_timeout: float = 60.0
    """Without a byte, after which a transfer is given up."""
    longest_wait: float = 30.0
    """In the backlog, after which a transfer is refused: before its client gives up a server that says nothing."""
    cleanup_interval: float = 3600.0
    """Between two looks for what nobody needs (`blob.service.cleanup.interval`)."""
    retention: float = 3600.0
    """For which a blob that nobody needs is kept at least (`blob.retention.interval`)."""


@dataclass(frozen=True, kw_only=True)
class BlobStatistics:
    received_bytes: int
    sent_bytes: int
    running: int
    """Transfers."""
    waiting: int
    staged: int
    """Blobs that go unless somebody takes hold of them."""
    deleted: int
    """Blobs, by the cleanup."""
    moved_aside: int
    """Corrupt files."""


class BlobServer(Component):
    """The daemon's blob server. `start` returns when it listens at `url`.

    Requests must carry `token` if there is one. `ha_store` holds the copies. `leads` says whether this process may
    delete there. Nothing is cleaned up before `take_stock`. `admit` is asked before a user has so many more bytes of
    uploads, and raises if they may not.
    """

    def __init__(
        self,
        *,
        options: BlobOptions,
        token: str | None = None,
        ha_store: Location | None = None,
        clock: Clock | None = None,
        leads: Callable[[], bool] = lambda: True,
        tls: ssl.SSLContext | None = None,
        admit: Callable[[str, int], None] = lambda user, size: None,
    ) -> None:
        super().__init__("blob server")
        self._options = options
        self._token = token
        self._ha_store = ha_store
        self._tls = tls
        self._clock = clock or SystemClock()
        self._gate = TransferGate(options.transfers, options.backlog, options.longest_wait)
        self._jobs_known = asyncio.Event()
        self._runner: web.AppRunner | None = None
        # Those who are told to come again need a connection, too.
        self._keeper = Doorkeeper("blobs", most=most_connections(options.transfers + options.backlog + MOST))
        self._port = 0
        self._orderly = False
        self._lifecycle = BlobLifecycle(retention=options.retention, now=self._clock.monotonic())
        self._store = BlobStore(options.directory)
        self._depot = BlobDepot(
            store=self._store,
            ha_store=None if ha_store is None else HaStore(ha_store),
            lifecycle=self._lifecycle,
            clock=self._clock,
            max_size=options.max_size,
            leads=leads,
            uploads=Uploads(admit),
        )
        self._reader = BlobReader(self._depot)
        self._receiver = BlobReceiver(self._depot, self._reader)
        self._mender = CopyMender(self._depot, self._reader, interval=options.cleanup_interval)
        self._cleaner = BlobCleaner(self._depot, self._mender, retention=options.retention)
        self._routes = BlobRoutes(
            self._depot,
            self._reader,
            self._receiver,
            self._cleaner,
            self._gate,
            on_served=self._served,
            token=token,
            idle_timeout=options.idle_timeout,
        )

    @property
    def url(self) -> str:
        host = self._options.address or self._options.host
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://[{host}]:{self._port}" if ":" in host else f"{scheme}://{host}:{self._port}"

    @property
    def token(self) -> str | None:
        return self._token

    # --- for the daemon's own parts ------------------------------------------------------------------------------

    async def put(self, job_id: JobId | None, data: bytes, kind: BlobKind, *, user: str = "") -> BlobKey:
        """Store the data. The caller holds one reference until it calls `release`. The same content is stored once.

        `user`: whose upload it is, if it is one. Raises BlobTooLarge, BlobInUse (the job's blobs are being deleted),
        StorageError, and what `admit` raises.
        """
        sha256 = (await asyncio.to_thread(hashlib.sha256, data)).hexdigest()
        known = await self._receiver.find(job_id, kind, sha256, None)
        key = known[0] if known is not None else BlobKey.new(kind, sha256)
        if known is None:
            key = await self._stored(Blob(job_id, key), _in_pieces(data), user, len(data))
        self._lifecycle.acquire(Blob(job_id, key))
        return key

    async def copy(self, job_id: JobId, key: BlobKey, to: JobId, *, user: str = "") -> BlobKey:
        """Store a blob of a job for another job as well, as `put` does. What that one has already is not read again.

        Raises BlobNotFound, and what `put` raises.
        """
        known = await self._receiver.find(to, key.kind, key.sha256, None)
        if known is not None:
            key = known[0]
        else:
            with await self._reader.open(Blob(job_id, key)) as file:
                pieces = self._pieces_of(file)
                key = await self._stored(Blob(to, BlobKey.new(key.kind, key.sha256)), pieces, user, file.found.size)
        self._lifecycle.acquire(Blob(to, key))
        return key

    async def _stored(self, blob: Blob, pieces: AsyncIterator[bytes], user: str, size: int) -> BlobKey:
        with self._depot.uploads.receiving(blob, user, size):
            return await self._receiver.receive(blob, pieces, None)

    async def _pieces_of(self, file: BlobFile) -> AsyncIterator[bytes]:
        while piece := await self._depot.in_thread(file.read, CHUNK):
            yield piece

    def acquire(self, job_id: JobId | None, key: BlobKey) -> None:
        """Take one more reference. Raises BlobNotFound if the blob is being deleted."""
        self._lifecycle.acquire(Blob(job_id, key))

    async def release(self, job_id: JobId | None, key: BlobKey, *, at_once: bool = False) -> None:
        """Give one reference back.

        With none left the blob is staged; with `at_once` a TRANSIENT one is deleted now (B18).
        """
        blob = Blob(job_id, key)
        if self._lifecycle.release(blob, self._clock.monotonic(), at_once=at_once):
            await self._cleaner.delete_condemned([blob])

    async def read(self, job_id: JobId | None, key: BlobKey) -> bytes:
        """Read a whole small blob, verified. Raises BlobNotFound, StorageError."""
        file = await self._reader.open(Blob(job_id, key))
        try:
            with os_errors(self._store.path(job_id, key)):
                return await self._depot.in_thread(file.readall)
        finally:
            file.close()

    async def path(self, job_id: JobId | None, key: BlobKey) -> Path:
        """Return the verified local file. It stays while somebody holds a reference.

        Raises BlobNotFound, StorageError.
        """
        return await self._reader.path(Blob(job_id, key))

    async def size(self, job_id: JobId | None, key: BlobKey) -> int:
        """Return the size of a blob in bytes. Raises BlobNotFound, StorageError."""
        file = await self._reader.open(Blob(job_id, key))
        try:
            return file.found.size
        finally:
            file.close()

    async def contains(self, job_id: JobId | None, key: BlobKey) -> bool:
        """Whether the blob can be served, from here or from the HA store. Raises StorageError if this is not known."""
        try:
            await self._reader.path(Blob(job_id, key))
        except BlobNotFound:
            return False
        return True

    async def blobs(self) -> list[BlobInfo]:
        """Return all local blobs, in the order of jobs and keys."""
        return [blob async for page in self._reader.pages() for blob in page]

    def statistics(self) -> BlobStatistics:
        return BlobStatistics(
            received_bytes=self._routes.received,
            sent_bytes=self._routes.sent,
            running=self._gate.running,
            waiting=self._gate.waiting,
            staged=self._lifecycle.staged,
            deleted=self._cleaner.deleted,
            moved_aside=self._store.moved_aside,
        )

    # --- for the Dispatcher --------------------------------------------------------------------------------------

    async def take_stock(self, jobs: Mapping[JobId, Collection[BlobKey] | None]) -> None:
        """Learn the jobs of the job store and their artifacts. From now on, what nobody needs is staged (B19).

        None instead of artifacts: the job's record cannot be read, and nothing of the job is deleted.
        """
        for job_id, keys in jobs.items():
            if keys is None:
                self._lifecycle.keep(job_id)
            else:
                self._lifecycle.hold(job_id, keys)
        self._lifecycle.jobs_known()
        self._jobs_known.set()

    async def hold(self, job_id: JobId, keys: Collection[BlobKey]) -> frozenset[BlobKey]:
        """On submission, take one reference to each of a job's artifacts, until `delete_job` or `let_go`.

        Returns the artifacts that do not exist. Raises StorageError if this is not known.
        """
        gone = self._lifecycle.hold(job_id, keys)
        missing = [key for key in keys if key not in gone and not await self.contains(job_id, key)]
        return gone.union(missing)

    def uploads(self) -> Collection[Upload]:
        """Return what users have uploaded, or are uploading, and no job has taken over."""
        return self._depot.uploads.all()

    def taken_over(self, job_id: JobId, keys: Collection[BlobKey]) -> None:
        """The record of the job names these blobs, so they count as the job's."""
        self._depot.uploads.taken_over(job_id, keys)

    def let_go(self, job_id: JobId) -> None:
        """The job was only inspected, not submitted: stage its artifacts."""
        self._lifecycle.let_go(job_id, self._clock.monotonic())

    def failed(self, job_id: JobId) -> None:
        """The job's JobMaster is gone. Drop the references to TRANSIENT blobs that it held (B17)."""
        self._lifecycle.failed(job_id, self._clock.monotonic())

    async def recover(self, job_id: JobId, keys: Collection[BlobKey]) -> None:
        """Make the job's artifacts available here, fetching them from the HA store if needed. May be repeated.

        Raises BlobNotFound if an artifact has no good copy, StorageError.
        """
        self._lifecycle.hold(job_id, keys)
        await for_each(keys, lambda key: self._reader.path(Blob(job_id, key)), limit=RESTORATIONS)

    async def delete_job(self, job_id: JobId) -> None:
        """The job ended for good or was refused. Delete all its blobs, here and in the HA store, whatever their counts.

        Idempotent. Raises StorageError; repeat the call then.
        """
        await self._cleaner.delete_job(job_id)

    # --- lifecycle -----------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        await asyncio.to_thread(self._store.open)
        self._runner = web.AppRunner(
            self._routes.app(),
            access_log=None,
            handler_cancellation=True,  # a client that leaves while it waits gives its place to others
            shutdown_timeout=2.0,
        )
        await self._runner.setup()
        self._port = await self._listen(self._runner)
        self.tasks.loop("rotation", self._rotate)
        self.tasks.loop("cleanup", self._keep_clean)
        if self._ha_store is not None:
            self.tasks.loop("copies", self._mender.mend_doubted)

    async def _before_stop(self) -> None:
        self._orderly = True

    async def _stop(self) -> None:
        await self._keeper.aclose()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        if self._orderly:
            self._orderly = False
            await self._cleaner.clear()
        self._depot.close()

    async def _listen(self, runner: web.AppRunner) -> int:
        place = Place(self._options.host, self._options.ports, "jobmanager.bind-host", "blob.server.port")
        try:
            bound = await bind(place)
        except PortTaken as error:
            raise PortsTaken(error.message, hint=error.hint) from error
        server = runner.server
        assert server is not None
        made = protocols(server, access_log=None, read_bufsize=READ_BUFFER)
        await self._keeper.serve(bound, made, self._tls)
        return int(bound[0].getsockname()[1])

    # --- cleanup -------------------------------------------------------------------------------------------------

    async def _rotate(self) -> None:
        """Rotate when the staged lists are due, independently of the cleanup (B16)."""
        await self._jobs_known.wait()
        while True:
            again_at = await self._cleaner.rotate()
            await self._clock.sleep(max(again_at - self._clock.monotonic(), SHORTEST_PAUSE))

    async def _keep_clean(self) -> None:
        await self._jobs_known.wait()
        while True:
            await self.clean_up()
            await self._clock.sleep(self._options.cleanup_interval)

    async def clean_up(self) -> None:
        """Run the cleanup once: stage what nobody needs, and delete what has been staged long enough (B16)."""
        await self._cleaner.clean_up()

    def _served(self, blob: Blob) -> None:
        self._lifecycle.used(blob, self._clock.monotonic())
        self._mender.doubt(blob)


class PortsTaken(MinflinkError):
    code = "blob-ports-taken"


async def _in_pieces(data: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(data), CHUNK):
        yield data[at : at + CHUNK]
