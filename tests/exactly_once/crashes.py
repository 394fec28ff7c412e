"""A process dies at a named point between two steps of a checkpoint, one point after the other.

If it is the daemon, the next one adopts all tasks. If it is another, the tasks that it ran are restarted.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from minflinkd.runtime.crash_points import VARIABLE, CrashPoint
from tests.exactly_once.trial import Trial, attempts
from tests.waiting import until

OF_A_COMPLETION = (  # only the daemon reaches these
    CrashPoint.METADATA,
    CrashPoint.COMPLETE,
    CrashPoint.NOTIFY,
    CrashPoint.NOTIFIED,
    CrashPoint.SUBSUME,
    CrashPoint.DELETED,
)
OF_SMALL_FILES = (CrashPoint.FILE, CrashPoint.REWRITE)  # reached only by snapshots of several files, and worn ones


class Crashes(Trial):
    """The first process at a point dies there. The trial restarts the daemon, and the daemon everything else."""

    def __init__(self, base: Path, names: Sequence[str], points: Sequence[CrashPoint], **others: Any) -> None:
        super().__init__(base, names, **others)
        self._points = points
        self._armed = base / "crash-at"
        self._armed.mkdir(parents=True)
        self.environ = {VARIABLE: str(self._armed)}

    async def strike(self) -> None:
        for point in self._points:
            await self.await_running(frozenset())
            await self.settle()
            self.note_strike(jobs := await self.jobs())
            self.tell(f"whoever reaches {point} dies")
            (self._armed / point).touch()
            await until(partial(self._reached, point), f"somebody dies at {point}", timeout=60)
            if point in OF_A_COMPLETION:
                await self.cluster.process.wait()
                await self.cluster.start_again()
                await self.await_adopted(attempts(jobs))
            else:
                await until(partial(self._restarted, attempts(jobs)), "a job restarts", timeout=60)
            await self.look_after(point)
        await self.await_running(frozenset())
        await self.settle()  # who has a new checkpoint now was not hit, or is over it
        self.hit = frozenset()

    async def look_after(self, point: CrashPoint) -> None:
        """Called when the death at this point is over and a job has restarted."""

    async def _reached(self, point: CrashPoint) -> bool:
        return not (self._armed / point).exists()

    async def _restarted(self, before: set[str]) -> bool:
        """Whether a job restarted. Only jobs that the dead process ran are in new attempts."""
        jobs = await self.jobs()
        return not jobs or attempts(jobs) != before
