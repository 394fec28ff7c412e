"""`python -m minflinkd.rest.openapi docs/http.md` writes the list of paths into that page."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from minflinkd.blob.keys import BlobKey, BlobKind
from minflinkd.blob.server import BlobStatistics
from minflinkd.blob.transfer import BlobInfo
from minflinkd.metrics.registry import Metrics
from minflinkd.rest.backend import Backend
from minflinkd.rest.cluster import About
from minflinkd.rest.identity.access import Access
from minflinkd.rest.openapi.page import with_paths
from minflinkd.rest.route import Route
from minflinkd.rest.server import Entrance, Listening, RestServer
from minflinkd.rpc.local import LocalNetwork
from minflinkd.runtime.ids import JobId


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    page = Path(arguments[0])
    page.write_text(with_paths(page.read_text(encoding="utf-8"), all_routes()), encoding="utf-8")
    return 0


def all_routes() -> tuple[Route, ...]:
    """Return the routes of a daemon with everything that its endpoint can serve. It is not started."""
    server = RestServer(
        Backend(LocalNetwork(), uploads=Path()),
        listening=Listening(host="127.0.0.1", port=0),
        entrance=Entrance(access=Access.open_to_all()),
        about=About(version="", config_items=tuple, blob_url=str),
        metrics=Metrics(version=""),
        blobs=_NoBlobs(),
    )
    return server.routes


class _NoBlobs:
    """A BlobServer that nobody asks."""

    url = ""
    token = None

    async def blobs(self) -> Sequence[BlobInfo]:
        return ()

    async def put(self, job_id: JobId | None, data: bytes, kind: BlobKind, *, user: str = "") -> BlobKey:
        raise NotImplementedError

    async def copy(self, job_id: JobId, key: BlobKey, to: JobId, *, user: str = "") -> BlobKey:
        raise NotImplementedError

    async def release(self, job_id: JobId | None, key: BlobKey, *, at_once: bool = False) -> None:
        raise NotImplementedError

    async def delete_job(self, job_id: JobId) -> None:
        raise NotImplementedError

    def statistics(self) -> BlobStatistics:
        return BlobStatistics(received_bytes=0, sent_bytes=0, running=0, waiting=0, staged=0, deleted=0, moved_aside=0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
