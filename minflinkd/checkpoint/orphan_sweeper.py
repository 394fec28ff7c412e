"""The sweeps of one running job. They delete physical files that nothing refers to or will refer to (F7)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import structlog

from minflinkd.checkpoint import layout
from minflinkd.checkpoint.machine.state import State, orphans
from minflinkd.checkpoint.orphans import UNREADABLE, NotLeading, chosen, delete_in_batches
from minflinkd.checkpoint.store import CheckpointStore, Recovered
from minflinkd.rpc.jobs import JobOrphans
from minflinkd.runtime.clock import Clock
from minflinkd.runtime.supervision import TaskOwner

log = structlog.get_logger(__name__)


class Sweeping:
    """`state`: returns the coordinator's current state. `grace`: seconds within which a file may still be in use."""

    def __init__(
        self,
        *,
        store: CheckpointStore,
        state: Callable[[], State],
        grace: float,
        clock: Clock,
        name: str,
    ) -> None:
        self._store = store
        self._state = state
        self._grace = grace
        self._clock = clock
        self._name = name
        self._unreadable = False  # whether some metadata could not be read; it may refer to anything

    def begin(self, recovered: Recovered, tasks: TaskOwner) -> None:
        self._unreadable = bool(recovered.set_aside)
        tasks.job("sweep of orphans", self._sweep(recovered))
        if not self._unreadable:
            tasks.loop("sweeps", self._sweep_again_and_again)

    async def orphans(self, before_ms: int) -> JobOrphans:
        """Return the orphans last written before `before_ms`. Raises StorageError."""
        job_id = self._state().job_id
        if self._unreadable:
            return JobOrphans(job_id=job_id, skipped=UNREADABLE)
        present = await self._store.listed_files()
        names = {file.name: layout.parse_physical_file(file.name) for file in present}
        return chosen(job_id, present, orphans(self._state(), names), before_ms=before_ms)  # current, as in the sweep

    async def _sweep(self, recovered: Recovered) -> None:
        await self._delete(await self._store.orphans(recovered))

    async def _sweep_again_and_again(self) -> None:
        """Delete what failed uploads and abandoned deletions left behind.

        A file is deleted only if two sweeps in a row find it.
        """
        suspects = frozenset[str]()
        while True:
            await self._clock.sleep(self._grace / 2)
            if not self._store.leads():
                suspects = frozenset()
                continue
            present = await self._store.physical_files()
            found = orphans(self._state(), present)  # the current state, not that from before the listing
            gone = found & suspects
            await self._delete(gone)
            suspects = found - gone

    async def _delete(self, names: Iterable[str]) -> None:
        """Delete nothing while leadership is in doubt: another leader may need files that nothing here refers to."""
        if not (orphaned := sorted(names)):
            return
        try:
            await delete_in_batches(orphaned, self._store.delete_files, leads=self._store.leads)
        except NotLeading:
            log.warning("orphans are not deleted: does this daemon lead?", component=self._name, files=len(orphaned))
        else:
            log.info("orphans deleted", component=self._name, files=len(orphaned))
