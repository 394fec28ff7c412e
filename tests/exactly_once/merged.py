"""Deaths between the steps of checkpoints whose state lies in many small physical files that are compacted often."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from minflinkd.filemerging.segments import physical_file_name
from minflinkd.rest.schemas import Orphans
from minflinkd.runtime.crash_points import CrashPoint
from minflinkd.runtime.ids import AttemptId, ResourceId
from tests.cluster import write_job
from tests.exactly_once.crashes import Crashes
from tests.exactly_once.stored import StoredCheckpoints
from tests.files import files_below
from tests.waiting import until

FILE_MERGING = "execution.checkpointing.file-merging"
SETTINGS = {f"{FILE_MERGING}.max-file-size": "4 KiB", f"{FILE_MERGING}.max-space-amplification": 1.05}
LATE = physical_file_name(1, 1, AttemptId("0" * 32), ResourceId("tm-000000000000"), 0)  # written after the job's end
CHANGES = {"checkpointing": {"interval": "1 s", "externalized": "retain", "num-retained": 2}}


class MergedFiles(Crashes):
    """After each death, all that checkpoints refer to is there, byte for byte, and so is an earlier savepoint.

    After the last death orphans are listed. Then the jobs are cancelled with their checkpoints retained, and nothing
    else is left of their files. A file that comes later is found by listing. Other jobs continue from those checkpoints
    to the end.
    """

    def __init__(self, base: Path, names: Sequence[str], points: Sequence[CrashPoint], **others: Any) -> None:
        super().__init__(base, names, points, changes=CHANGES, settings=SETTINGS, **others)
        self.orphans: dict[str, set[str]] = {}  # what was found after the last death, by job
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
        async with self.cluster.configured(**{f"{FILE_MERGING}.orphan-grace": "1 s"}):
            await self._find_orphans()
            for job_id in self.ids.values():
                await self.cluster.cancel(job_id)
            await until(self._cleaned_up, "the end of the jobs is cleaned up", timeout=60)
            for name, job_id in self.ids.items():
                stored = self.stored(job_id)
                assert stored.present() == stored.named(), f"{name}\n{self.told}"
            self._check()
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

    async def _find_orphans(self) -> None:
        """List the orphans of the running jobs. No checkpoint refers to them, now or later."""
        found = await until(self._orphans_of_each, "orphans are old enough", timeout=30, pause=0.2)
        for name, job_id in self.ids.items():
            self.orphans[name] = {
                orphan.name for of_job in found.jobs if of_job.job == job_id for orphan in of_job.orphans
            }
            assert not self.orphans[name] & self.stored(job_id).named(), f"{name}\n{self.told}"
        self.tell(f"orphans: { {name: len(files) for name, files in self.orphans.items()} }")

    async def _sweep(self) -> None:
        """List the orphans of the ended jobs, and delete them: exactly the files that no metadata refers to."""
        for job_id in self.ids.values():
            (self.stored(job_id).directory / LATE).write_bytes(b"late")
        found = await until(self._listed, "nothing was written for a second", timeout=30, pause=0.2)
        listed = {of_job.job: {orphan.name for orphan in of_job.orphans} for of_job in found.jobs}
        for name, job_id in self.ids.items():
            stored = self.stored(job_id)
            assert listed[job_id] == {LATE} == stored.present() - stored.named(), f"{name}\n{self.told}"
        swept = await self.cluster.client.orphans(job=None, dry_run=False)
        assert swept.jobs == found.jobs
        for name, job_id in self.ids.items():
            stored = self.stored(job_id)
            assert stored.present() == stored.named(), f"{name}\n{self.told}"
        self._check()

    async def _cleaned_up(self) -> bool:
        """Whether everything is done that follows the end of the jobs.

        A job is CANCELED before its JobMaster has ended, and before files are deleted. After that the job's result is
        stored without the mark `dirty`.
        """
        results = [self.cluster.state / "jobs/results" / f"{job_id}.json" for job_id in self.ids.values()]
        return all(path.exists() and json.loads(path.read_bytes()).get("dirty") is False for path in results)

    async def _orphans_of_each(self) -> Orphans | None:
        """Return None if a job has no orphan that is old enough."""
        found = await self.cluster.client.orphans(job=None, dry_run=True)
        with_orphans = {of_job.job for of_job in found.jobs if of_job.orphans}
        return found if with_orphans >= set(self.ids.values()) else None

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
