"""What the Dispatcher asks of the BlobServer (blob.md B17, B19)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Protocol

from minflinkd.blob.keys import BlobKey
from minflinkd.jobgraph.model import JobGraph
from minflinkd.runtime.ids import JobId


class Blobs(Protocol):
    """A job's blobs are held from its submission on until they are deleted with it."""

    async def take_stock(self, jobs: Mapping[JobId, Collection[BlobKey] | None]) -> None:
        """Hold these, and all that there is of a job with None. What no job of them needs is cleaned up from now on."""

    async def hold(self, job_id: JobId, keys: Collection[BlobKey]) -> frozenset[BlobKey]:
        """Returns those that there are not. Raises StorageError: not known."""
        ...

    async def path(self, job_id: JobId, key: BlobKey) -> Path:
        """The verified file of one that is held. Raises BlobNotFound, StorageError."""
        ...

    def let_go(self, job_id: JobId) -> None:
        """The job was only looked at."""

    async def recover(self, job_id: JobId, keys: Collection[BlobKey]) -> None:
        """They can be served when this returns. May be repeated. Raises BlobNotFound, StorageError."""

    def failed(self, job_id: JobId) -> None:
        """Its JobMaster is gone."""

    async def delete_job(self, job_id: JobId) -> None:
        """Local and HA copies; idempotent. Raises StorageError."""


def artifact_keys(graph: JobGraph) -> frozenset[BlobKey]:
    """Raises InvalidId."""
    return frozenset(BlobKey.parse(artifact.key) for artifact in graph.artifacts if artifact.key is not None)
