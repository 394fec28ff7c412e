"""Deaths between the steps of checkpoints whose state lies in many small physical files that are compacted often."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from minflinkd.rest.schemas import Orphans
from minflinkd.runtime.crash_points import CrashPoint
from tests.cluster import write_job
from tests.exactly_once.crashes import Crashes
from tests.exactly_once.stored import StoredCheckpoints
from tests.files import files_below
from tests.waiting import until

FILE_MERGING = "execution.checkpointing.file-merging"
SETTINGS = {f"{FILE_MERGING}.max-file-size": "4 KiB", f"{FILE_MERGING}.max-space-amplification": 1.05}
CHANGES = {"checkpointing": {"interval": "1 s", "externalized": "retain", "num-retained": 2}}


class MergedFiles(Crashes):
    """After each death, all that checkpoints refer to is there, byte for byte, and so is an earlier savepoint.

    After the last death the jobs are cancelled with their checkpoints retained. Orphans are listed and deleted, and
    other jobs continue from those checkpoints to the end.
    """

    def __init__(self, base: Path, names: Sequence[str], points: Sequence[CrashPoint], **others: Any) -> None:
        super().__init__(base, names, points, changes=CHANGES, settings=SETTINGS, **others)
        self.orphans: dict[str, set[str]] = {}  # what was found in the end, by job
        self._savepoints: dict[Path, bytes] = {}

    async def strike(self) -> None:
        await self.await_running(frozenset())
        await self.settle()
        for job_id in self.ids.values():
            await self.cluster.client.savepoint(job_id, f"file://{self._root / 'savepoints'}")
        self._savepoints = contents(self._root / "savepoints")
        assert self._savepoints
        await super().strike()
        await self.await_running(frozenset())
        await self.settle()
        for job_id in self.ids.values():
            await self.cluster.cancel(job_id)
        await until(self._without_masters, "no job has a JobMaster", timeout=60)
        async with self.cluster.configured(**{f"{FILE_MERGING}.orphan-grace": "1 s"}):
            await self._sweep()
        for name, job_id in self.ids.items():
            await self._go_on(name, self.stored(job_id))

    async def look_after(self, point: CrashPoint) -> None:
        await self.await_running(frozenset())
        await self.settle()
        self._check()

    def stored(self, job_id: str) -> StoredCheckpoints:
        return StoredCheckpoints(self._root / job_id)

    @property
    def _root(self) -> Path:
        return self.cluster.state / "checkpoints"

    def _check(self) -> None:
        for name, job_id in self.ids.items():
            assert not (wrong := self.stored(job_id).damaged()), f"{name}: {wrong}\n{self.told}"
        assert contents(self._root / "savepoints") == self._savepoints, self.told

    async def _sweep(self) -> None:
        """List the orphans, and delete them: exactly the files that no metadata refers to."""
        found = await until(self._listed, "nothing was written for a second", timeout=30, pause=0.2)
        listed = {of_job.job: {orphan.name for orphan in of_job.orphans} for of_job in found.jobs}
        for name, job_id in self.ids.items():
            stored = self.stored(job_id)
            self.orphans[name] = listed[job_id]
            assert listed[job_id] == stored.present() - stored.named(), f"{name}\n{self.told}"
        self.tell(f"orphans: { {name: len(files) for name, files in self.orphans.items()} }")
        swept = await self.cluster.client.orphans(job=None, dry_run=False)
        assert swept.jobs == found.jobs
        for name, job_id in self.ids.items():
            stored = self.stored(job_id)
            assert stored.present() == stored.named(), f"{name}\n{self.told}"
        self._check()

    async def _without_masters(self) -> bool:
        """Whether no job has a JobMaster any longer.

        A job is CANCELED before its JobMaster has ended. Until then the JobMaster may write and delete, and it answers
        for the job's files as it knows them. When it has ended, the job's result is stored without the mark `dirty`.
        """
        results = [self.cluster.state / "jobs/results" / f"{job_id}.json" for job_id in self.ids.values()]
        return all(path.exists() and json.loads(path.read_bytes()).get("dirty") is False for path in results)

    async def _listed(self) -> Orphans | None:
        """Return None if a directory was written to just now."""
        found = await self.cluster.client.orphans(job=None, dry_run=True)
        return None if any(of_job.skipped for of_job in found.jobs) else found

    async def _go_on(self, name: str, stored: StoredCheckpoints) -> None:
        file = self.base / "jobs" / f"{name}.json"
        write_job(file, json.loads(file.read_bytes()) | {"restore": {"path": f"file://{stored.latest()}"}})
        self.ids[name] = await self.submit(name)


def contents(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in files_below(directory)}
