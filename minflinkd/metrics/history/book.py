"""The past of the cluster, of its jobs and of their tasks, and what happened to the jobs. Bounded in all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from minflinkd.metrics.history.series import CLUSTER, COARSE_KEPT, COARSE_MS, FINE_MS, JOB, TASK, Value
from minflinkd.metrics.history.track import Track
from minflinkd.runtime.ids import JobId

KEPT_MS: Final = COARSE_KEPT * COARSE_MS  # a job is forgotten a day after it was last heard of
MOST_MARKS: Final = 200  # of a job; the oldest go first
LONGEST_TEXT: Final = 300  # characters of a mark
MOST_TRACKS: Final = 4000  # of tasks and jobs together


class MarkKind(StrEnum):
    SUBMITTED = "submitted"
    RESTART = "restart"
    RECOVERED = "recovered"
    HOT_RESTART = "hot-restart"
    RESCALE = "rescale"
    CHECKPOINT_FAILED = "checkpoint-failed"
    SAVEPOINT = "savepoint"
    EXCEPTION = "exception"
    ENDED = "ended"


class Mark(NamedTuple):
    """Something that happened. A mark of the same time and kind takes its place: how it went is known later."""

    at: int  # milliseconds since 1970
    kind: MarkKind
    text: str

    @property
    def key(self) -> tuple[int, MarkKind]:
        return (self.at, self.kind)


@dataclass
class JobPast:
    name: str
    heard_ms: int  # when it was last said to exist
    track: Track = field(default_factory=lambda: Track(JOB))
    tasks: dict[str, Track] = field(default_factory=dict)
    marks: dict[tuple[int, MarkKind], tuple[str, int]] = field(default_factory=dict)  # text, when it was told

    def mark(self, found: Iterable[Mark], now_ms: int) -> None:
        for mark in found:
            text = mark.text[:LONGEST_TEXT]
            known = self.marks.get(mark.key)
            if known is None or known[0] != text:
                self.marks[mark.key] = (text, now_ms)
        if len(self.marks) > MOST_MARKS:
            newest = sorted(self.marks)[-MOST_MARKS:]
            self.marks = {key: self.marks[key] for key in newest}

    def in_order(self) -> list[Mark]:
        return [Mark(at, kind, text) for (at, kind), (text, _) in sorted(self.marks.items())]


class HistoryBook:
    """`most_tracks`: jobs and tasks together. Beyond it, those that ended first are forgotten, and then none added."""

    def __init__(self, *, most_tracks: int = MOST_TRACKS) -> None:
        self._most = most_tracks
        self.cluster = Track(CLUSTER)
        self.jobs: dict[JobId, JobPast] = {}
        self.left_out = 0  # subjects that had no room when they were last measured
        self._tracks = 0

    @property
    def tracks(self) -> int:
        """How many jobs and tasks have a past."""
        return self._tracks

    def heard_of(self, job_id: JobId, name: str, now_ms: int) -> JobPast | None:
        """Note that the job exists. None: there is no room for it."""
        past = self.jobs.get(job_id)
        if past is None:
            if not self._has_room(now_ms):
                return None
            past = self.jobs[job_id] = JobPast(name, now_ms)
            self._tracks += 1
        past.name, past.heard_ms = name, max(past.heard_ms, now_ms)
        return past

    def task_of(self, past: JobPast, task_id: str, now_ms: int) -> Track | None:
        """Return the past of a task. None: there is no room for it."""
        track = past.tasks.get(task_id)
        if track is None:
            if not self._has_room(now_ms):
                return None
            track = past.tasks[task_id] = Track(TASK)
            self._tracks += 1
        return track

    def put(self, past: JobPast, slot: int, values: Sequence[Value], tasks: Mapping[str, Sequence[Value]]) -> None:
        """Set a row of a job and of its tasks."""
        past.track.put(slot, values)
        for task_id, of_task in tasks.items():
            if (track := self.task_of(past, task_id, slot * FINE_MS)) is None:
                self.left_out += 1
            else:
                track.put(slot, of_task)

    def forget(self, now_ms: int) -> None:
        """Drop jobs of which nothing was heard for a day, and tasks that a version of their job had a day ago."""
        oldest = now_ms - KEPT_MS
        for job_id in [job_id for job_id, past in self.jobs.items() if past.heard_ms <= oldest]:
            self._drop(job_id)
        for past in self.jobs.values():
            for task_id in [task_id for task_id, track in past.tasks.items() if track.last_ms <= oldest]:
                del past.tasks[task_id]
                self._tracks -= 1

    def _has_room(self, now_ms: int) -> bool:
        """Make room by forgetting the job that was not heard of for the longest time, if there is one."""
        if self._tracks < self._most:
            return True
        gone = [(past.heard_ms, job_id) for job_id, past in self.jobs.items() if past.heard_ms < now_ms - COARSE_MS]
        if not gone:
            return False
        self._drop(min(gone)[1])
        return True

    def _drop(self, job_id: JobId) -> None:
        self._tracks -= 1 + len(self.jobs.pop(job_id).tasks)
