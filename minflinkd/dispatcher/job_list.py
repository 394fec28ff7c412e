"""The list of all jobs, which is asked for far more often than a job changes (E4)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from minflinkd.rpc.jobs import JobOverview
from minflinkd.runtime.ids import JobId

AT_A_TIME: Final = 16  # jobs that are looked at, before the event loop does something else


class JobList:
    """Keeps an overview of each job. It is made anew for the first question after the job has changed.

    Whoever changes anything that an overview shows, or which jobs there are, calls `changed` in the same step. `ids`
    are those of all jobs, in their order in the list; `overview` returns None if there is no such job. As long as no
    overview has changed, `all` returns the same tuple.
    """

    def __init__(self, *, ids: Callable[[], Iterable[JobId]], overview: Callable[[JobId], JobOverview | None]) -> None:
        self._ids = ids
        self._overview = overview
        self._overviews: dict[JobId, JobOverview] = {}
        self._all: tuple[JobOverview, ...] = ()
        self._changed: set[JobId] = set()
        self._looking = asyncio.Lock()

    def changed(self, job_id: JobId) -> None:
        """The job may look different now, or may be new, or gone."""
        self._changed.add(job_id)

    async def all(self) -> tuple[JobOverview, ...]:
        """Return the overviews with every change before this call."""
        async with self._looking:
            if self._changed:
                await self._look(frozenset(self._changed))
            return self._all

    async def _look(self, changed: frozenset[JobId]) -> None:
        try:
            for number, job_id in enumerate(changed, start=1):
                self._look_at(job_id)
                if number % AT_A_TIME == 0:
                    await asyncio.sleep(0)
        finally:  # also if who asks does not wait any longer
            found = tuple(self._overviews[job_id] for job_id in self._ids() if job_id in self._overviews)
            if found != self._all:
                self._all = found

    def _look_at(self, job_id: JobId) -> None:
        overview = self._overview(job_id)
        if overview is None:
            self._overviews.pop(job_id, None)
        elif overview != self._overviews.get(job_id):
            self._overviews[job_id] = overview
        self._changed.discard(job_id)
