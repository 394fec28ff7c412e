"""`/blobs`: the blobs on the BlobServer, their jobs, how many references they have, and which will be deleted.

The BlobServer itself handles uploads, downloads and deletions, on its own port. `GET /blobs/access` tells how to reach
it: whoever may use this endpoint can run code in jobs, and so may use their blobs too.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Protocol

from aiohttp import web

from minflinkd.blob.access import user_token
from minflinkd.blob.keys import NO_JOB, BlobKind, owner_name, parse_owner
from minflinkd.blob.server import BlobStatistics
from minflinkd.blob.transfer import BlobInfo
from minflinkd.metrics.samples import BlobSample
from minflinkd.rest import route
from minflinkd.rest.backend import Lasting, Shared, json_answer
from minflinkd.rest.declared import InQuery, like, whole
from minflinkd.rest.identity.access import identity_of
from minflinkd.rest.identity.roles import Role
from minflinkd.rest.schemas import Blob, BlobAccess, Blobs, BlobTotals
from minflinkd.runtime.clock import Clock
from minflinkd.runtime.ids import HEX32

MOST = 10_000  # blobs in one answer
PAGE = 1000  # if the request names no limit
MEASURED_EVERY = 10.0  # seconds, so that not every scrape lists all files

_OWNER = InQuery[str | None](
    "job",
    "Only blobs of this job; `none`: of no job",
    like(re.compile(f"{HEX32.pattern}|{NO_JOB}")),
    None,
    lambda text: owner_name(parse_owner(text)),
)
_OFFSET = InQuery("offset", "How many blobs to leave out", whole(most=10**9), 0)
_LIMIT = InQuery("limit", f"How many blobs to list, {MOST:,} at most", whole(most=10**9), PAGE)


class ListedBlobs(Protocol):
    """The BlobServer, for those who only list its blobs."""

    @property
    def url(self) -> str: ...

    @property
    def token(self) -> str | None: ...

    async def blobs(self) -> Sequence[BlobInfo]: ...

    def statistics(self) -> BlobStatistics: ...


class BlobListing:
    def __init__(self, server: ListedBlobs, clock: Clock) -> None:
        self._server = server
        self._blobs = Shared(server.blobs)  # an uploader sees its blob
        self._measured = Lasting(server.blobs, clock, MEASURED_EVERY)

    def routes(self) -> list[route.Route]:
        return [
            route.get(
                "/blobs",
                self.list,
                Role.VIEW,
                "What the BlobServer holds, by job and key",
                {200: Blobs},
                query=(_OWNER, _OFFSET, _LIMIT),
                more="See [below](#what-the-blobserver-holds)",
            ),
            route.get(
                "/blobs/access",
                self.access,
                Role.SUBMIT,
                "Where artifacts are uploaded, and how",
                {200: BlobAccess},
                more="The BlobServer's `url`, and the `token` that requests of this user carry",
            ),
        ]

    async def access(self, request: web.Request) -> web.Response:
        token = self._server.token
        of_user = None if token is None else user_token(token, identity_of(request).name)
        return json_answer(BlobAccess(url=self._server.url, token=of_user))

    async def list(self, request: web.Request) -> web.Response:
        wanted, offset, limit = _OWNER.of(request), _OFFSET.of(request), min(MOST, _LIMIT.of(request))
        found = [blob for blob in await self._blobs.get() if wanted is None or blob.job == wanted]
        return json_answer(
            Blobs(
                blobs=tuple(map(_blob, found[offset : offset + limit])),
                offset=offset,
                truncated=offset + limit < len(found),
                totals=_totals(found),
                jobs=tuple(_totals(of_job, job) for job, of_job in _by_job(found).items()),
            )
        )

    async def sample(self) -> BlobSample:
        """Return a sample for the metrics."""
        blobs, statistics = await self._measured.get(), self._server.statistics()
        sizes = Counter[str]()
        for blob in blobs:
            sizes[blob.state] += blob.size
        return BlobSample(
            stored=dict(Counter(blob.state for blob in blobs)),
            stored_bytes=dict(sizes),
            received_bytes=statistics.received_bytes,
            sent_bytes=statistics.sent_bytes,
            transfers_running=statistics.running,
            transfers_waiting=statistics.waiting,
            deleted=statistics.deleted,
            corrupt=statistics.moved_aside,
        )


def _blob(info: BlobInfo) -> Blob:
    return Blob(
        key=info.key,
        job=info.job,
        kind=BlobKind(info.kind).name.lower(),
        size=info.size,
        references=info.references,
        state=info.state,
        created=info.modified_ms,
    )


def _by_job(blobs: Iterable[BlobInfo]) -> dict[str, list[BlobInfo]]:
    by_job: dict[str, list[BlobInfo]] = {}
    for blob in blobs:
        by_job.setdefault(blob.job, []).append(blob)
    return by_job


def _totals(blobs: Sequence[BlobInfo], job: str | None = None) -> BlobTotals:
    return BlobTotals(
        job=job,
        blobs=len(blobs),
        size=sum(blob.size for blob in blobs),
        states=dict(Counter(blob.state for blob in blobs)),
    )
