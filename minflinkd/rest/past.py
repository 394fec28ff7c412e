"""The part of the history that the diagnosis looks at, a value a minute for the last hour."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from minflinkd.diagnosis.facts import NO_HISTORY, History
from minflinkd.metrics.history.book import HistoryBook
from minflinkd.metrics.history.track import Resolution, Track
from minflinkd.rest.history.routes import window
from minflinkd.runtime.clock import Clock
from minflinkd.runtime.ids import JobId, TaskId

HOUR: Final = 3600_000  # milliseconds
OF_TASKS: Final = ("state_rows", "backpressured")  # no rule looks at more, and there may be thousands of tasks
OF_CLUSTER: Final = ("loop_lag",)


class Past:
    def __init__(self, book: HistoryBook, clock: Clock) -> None:
        self._book = book
        self._clock = clock

    def of_tasks(self, job_id: JobId) -> Mapping[TaskId, History]:
        past = self._book.jobs.get(job_id)
        if past is None:
            return {}
        return {TaskId(task_id): self._series(track, OF_TASKS) for task_id, track in list(past.tasks.items())}

    def of_cluster(self) -> History:
        return self._series(self._book.cluster, OF_CLUSTER)

    def _series(self, track: Track, names: Iterable[str]) -> History:
        now = self._clock.epoch_ms()
        try:
            return History(Resolution.COARSE, window(Resolution.COARSE, now - HOUR, now).values(track, names))
        except ValueError:  # a series that this history does not have
            return NO_HISTORY
