"""Finds what a submission's artifacts claim of a session (B31). It is found once and stored with the job."""

from __future__ import annotations

import asyncio
import zipfile
from pathlib import Path

from msgspec.structs import replace

from minflinkd.blob.keys import BlobKey
from minflinkd.dispatcher.blobs import Blobs
from minflinkd.jobgraph.libraries import ARCHIVE_SUFFIXES, claims, is_damage, units
from minflinkd.jobgraph.model import Artifact, JobGraph
from minflinkd.rpc.messages import Library
from minflinkd.runtime.ids import JobId
from minflinkd.storage.os_errors import os_errors


async def with_units(graph: JobGraph, job_id: JobId, blobs: Blobs) -> JobGraph:
    """Return the graph with the units of each artifact. Its blobs must be held. Raises BlobNotFound, StorageError."""

    async def one(artifact: Artifact) -> Artifact:
        members: tuple[str, ...] = ()
        if artifact.name.endswith(ARCHIVE_SUFFIXES):
            path = await blobs.path(job_id, BlobKey.parse(artifact.key or ""))
            members = await asyncio.to_thread(_members, path)
        return replace(artifact, units=units(artifact.name, members))

    return replace(graph, artifacts=tuple([await one(artifact) for artifact in graph.artifacts]))


def libraries(graph: JobGraph) -> tuple[Library, ...]:
    """Return the job's libraries, from the units that were found."""
    claimed = ((a.units, BlobKey.parse(a.key).sha256) for a in graph.artifacts if a.key is not None)
    return tuple(Library(unit, digest) for unit, digest in claims(claimed).items())


def _members(path: Path) -> tuple[str, ...]:
    """Return the archive's members. None if it is no archive: the analysis reports that when it reads the file.

    Raises StorageError.
    """
    with os_errors(path):
        try:
            with zipfile.ZipFile(path) as archive:
                return tuple(archive.namelist())
        except Exception as error:
            if not is_damage(error):
                raise
            return ()
