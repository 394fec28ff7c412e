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
        while True:
            with contextlib.suppress(MinflinkError):  # the daemon may be down
                read = min([await files_read(cluster, name, job_id) for name, job_id in jobs.items()])
                await asyncio.to_thread(self.give, read + AHEAD)
            await asyncio.sleep(LOOK)

    async def all_read(self, cluster: Cluster, name: str, job_id: str) -> None:
        """Wait until a job has read everything that it was given."""

        async def read() -> bool:
            return await files_read(cluster, name, job_id) >= self.given

        await until(read, f"{name} has read {self.given} files of each source", timeout=180, pause=0.2)


async def files_read(cluster: Cluster, name: str, job_id: str) -> int:
    """Return how many files each source of the job has read, at least."""
    sources = {vertex.id for vertex in job_graph(name, Path("in"), Path("out")).vertices if vertex.source is not None}
    offsets = await cluster.client.get(f"/jobs/{job_id}/offsets", dict[str, Any])
    read = dict.fromkeys(sources, 0)
    for task in offsets["tasks"].values():
        read |= {
            source: int(found["logOffset"]) + 1 for source, found in task["processed"].items() if source in sources
        }
    return min(read.values())
