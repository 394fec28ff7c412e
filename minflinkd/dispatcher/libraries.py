"""Finds what a submission's artifacts claim of a session (B31). It is found once and stored with the job."""

from __future__ import annotations

import asyncio
from pathlib import Path

from msgspec.structs import replace

from minflinkd.blob.keys import BlobKey
from minflinkd.dispatcher.blobs import Blobs
from minflinkd.jobgraph.archives import ArchiveLimits, contents, why_refused
from minflinkd.jobgraph.faults import GraphFault, InvalidJobGraph, at
from minflinkd.jobgraph.libraries import ARCHIVE_SUFFIXES, claims, units
from minflinkd.jobgraph.model import Artifact, JobGraph
from minflinkd.rpc.messages import Library
from minflinkd.runtime.ids import JobId
from minflinkd.storage.os_errors import os_errors


async def with_units(graph: JobGraph, job_id: JobId, blobs: Blobs, limits: ArchiveLimits) -> JobGraph:
    """Return the graph with the units of each artifact. Its blobs must be held.

    Raises InvalidJobGraph if archives are too large, BlobNotFound, StorageError.
    """
    faults: list[GraphFault] = []

    async def one(number: int, artifact: Artifact) -> Artifact:
        if not artifact.name.endswith(ARCHIVE_SUFFIXES):
            return replace(artifact, units=units(artifact.name, ()))
        path = await blobs.path(job_id, BlobKey.parse(artifact.key or ""))
        found, why = await asyncio.to_thread(_units, artifact.name, path, limits)
        if why:
            faults.append(_too_large(number, artifact, why))
        return replace(artifact, units=found)

    artifacts = tuple([await one(number, artifact) for number, artifact in enumerate(graph.artifacts)])
    if faults:
        raise InvalidJobGraph(faults)
    return replace(graph, artifacts=artifacts)


def _too_large(number: int, artifact: Artifact, why: str) -> GraphFault:
    return GraphFault(
        path=at("artifacts", number),
        problem=f"the artifact {artifact.name}: {why}",
        hint="leave out what the job does not need, or raise the limit",
        code="archive-too-large",
    )


def libraries(graph: JobGraph) -> tuple[Library, ...]:
    """Return the job's libraries, from the units that were found."""
    claimed = ((a.units, BlobKey.parse(a.key).sha256) for a in graph.artifacts if a.key is not None)
    return tuple(Library(unit, digest) for unit, digest in claims(claimed).items())


def _units(name: str, path: Path, limits: ArchiveLimits) -> tuple[tuple[str, ...], str]:
    """Return the units of an archive, and why it is refused; none if it is damaged: the analysis reports that.

    Raises StorageError.
    """
    with os_errors(path):
        found = contents(path, limits)
        if isinstance(found, str):
            return (), found
        claimed = units(name, found.members)
        return claimed, why_refused(found, path.stat().st_size, claimed, limits)
