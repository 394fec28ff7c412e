"""Input without an end: files come as the jobs read them, for as long as something is done to the jobs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from minflinkd.runtime.errors import MinflinkError
from tests.cluster import Cluster
from tests.exactly_once.batch import job_graph
from tests.waiting import LOOK, until

AHEAD = 6  # files that are there and not yet read


class Feed:
    """Moves files from `reserve` into `inputs`, which both have a directory for each source.

    No job gets ahead of the others, so none has a backlog in the end. The jobs read one file in each micro-batch.
    """

    def __init__(self, reserve: Path, inputs: Path) -> None:
        self._reserve = reserve
        self._inputs = inputs
        self.given = 0  # files, of each source

    def give(self, files: int) -> None:
        """See to it that each source has so many files, if the reserve has them."""
        for directory in self._reserve.iterdir():
            (self._inputs / directory.name).mkdir(parents=True, exist_ok=True)
            for number in range(self.given, files):
                name = f"{number:05d}.json"
                with contextlib.suppress(FileNotFoundError):
                    (directory / name).rename(self._inputs / directory.name / name)
        self.given = max(self.given, files)

    async def run(self, cluster: Cluster, jobs: Mapping[str, str]) -> None:
        """Feed the jobs, ids by name, until cancelled."""
        sources = {name: self._sources(name) for name in jobs}
        while True:
            with contextlib.suppress(MinflinkError):  # the daemon may be down
                read = [await files_read(cluster, job_id, sources[name]) for name, job_id in jobs.items()]
                await asyncio.to_thread(self.give, min(read) + AHEAD)
            await asyncio.sleep(LOOK)

    async def all_read(self, cluster: Cluster, name: str, job_id: str) -> None:
        """Wait until a job has read everything that it was given."""
        sources = self._sources(name)

        async def read() -> bool:
            return await files_read(cluster, job_id, sources) >= self.given

        await until(read, f"{name} has read {self.given} files of each source", timeout=180, pause=0.2)

    def _sources(self, name: str) -> set[str]:
        vertices = job_graph(name, self._inputs, self._inputs).vertices
        return {vertex.id for vertex in vertices if vertex.source is not None}


async def files_read(cluster: Cluster, job_id: str, sources: set[str]) -> int:
    """Return how many files each of these sources of the job has read, at least."""
    offsets = await cluster.client.get(f"/jobs/{job_id}/offsets", dict[str, Any])
    read = dict.fromkeys(sources, 0)
    for task in offsets["tasks"].values():
        found = {source: offset for source, offset in task["processed"].items() if source in sources}
        read |= {source: int(offset["logOffset"]) + 1 for source, offset in found.items()}
    return min(read.values())
