"""What the Dispatcher asks of the BlobServer (B17, B19)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Protocol

from msgspec.structs import replace

from minflinkd.blob.keys import BlobKey
from minflinkd.blob.uploads import Upload
from minflinkd.dispatcher.versions import Versions
from minflinkd.jobgraph.model import JobGraph
from minflinkd.runtime.ids import JobId


class Blobs(Protocol):
    """The BlobServer, as the Dispatcher uses it.

    A job's blobs are held from its submission until they are deleted with it.
    """

    async def take_stock(self, jobs: Mapping[JobId, Collection[BlobKey] | None]) -> None:
        """Hold these blobs, and all blobs of a job with None. From now on, what no job needs is cleaned up."""

    async def hold(self, job_id: JobId, keys: Collection[BlobKey]) -> frozenset[BlobKey]:
        """Hold the blobs and return those that do not exist. Raises StorageError if this is not known."""
        ...

    async def path(self, job_id: JobId, key: BlobKey) -> Path:
        """Return the verified file of a blob that is held. Raises BlobNotFound, StorageError."""
        ...

    async def size(self, job_id: JobId, key: BlobKey) -> int:
        """Return the size of a blob that is held, in bytes. Raises BlobNotFound, StorageError."""
        ...

    def uploads(self) -> Collection[Upload]:
        """Return what users have uploaded, or are uploading, and no job has taken over."""
        ...

    def taken_over(self, job_id: JobId, keys: Collection[BlobKey]) -> None:
        """The record of the job names these blobs, so they count as the job's."""

    def let_go(self, job_id: JobId) -> None:
        """The job was only inspected."""

    async def recover(self, job_id: JobId, keys: Collection[BlobKey]) -> None:
        """Make sure that the blobs can be served. May be repeated. Raises BlobNotFound, StorageError."""

    def failed(self, job_id: JobId) -> None:
        """The job's JobMaster is gone."""

    async def delete_job(self, job_id: JobId) -> None:
        """Delete local and HA copies. Idempotent. Raises StorageError."""


async def with_sizes(graph: JobGraph, job_id: JobId, blobs: Blobs) -> JobGraph:
    """Return the graph with the sizes that its artifacts really have. Its blobs must be held.

    Raises BlobNotFound, StorageError.
    """
    sizes = {key: await blobs.size(job_id, key) for key in artifact_keys(graph)}
    artifacts = (a if a.key is None else replace(a, size=sizes[BlobKey.parse(a.key)]) for a in graph.artifacts)
    return replace(graph, artifacts=tuple(artifacts))


def artifact_keys(graph: JobGraph) -> frozenset[BlobKey]:
    """Return the keys of a job's artifacts. Raises InvalidId."""
    return frozenset(BlobKey.parse(artifact.key) for artifact in graph.artifacts if artifact.key is not None)


def keys_of_versions(versions: Versions) -> frozenset[BlobKey]:
    """Return the artifacts of all versions that may be brought up. Raises InvalidId."""
    return frozenset[BlobKey]().union(*map(artifact_keys, versions.graphs))
