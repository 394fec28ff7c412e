"""The two answers that are asked for most, `/overview` and `/jobs/overview`: encoded once for each change (E4).

The parties return the same object as long as nothing has changed. So identity says whether an answer is still right.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from minflinkd.ha.standing import Standing
from minflinkd.rest.backend import encode
from minflinkd.rest.schemas import ClusterOverview
from minflinkd.rpc.jobs import JobOverview
from minflinkd.rpc.messages import ResourceOverview
from minflinkd.runtime.ids import JobId

CLOCK_MS: Final = 50  # the durations of running jobs may be so old
_DURATION: Final = b'"duration":'  # no text holds these bytes: in a text, the quotes have backslashes

Jobs = tuple[JobOverview, ...]


@dataclass(frozen=True)
class _Encoded:
    """A job as JSON, without its duration."""

    job: JobOverview
    head: bytes
    tail: bytes

    def at(self, now_ms: int) -> bytes:
        return b"%s%d%s" % (self.head, duration(self.job.start_ms, self.job.end_ms, now_ms), self.tail)


class EncodedJobs:
    """All jobs as JSON: a list of summaries called `name`. If a job changes, only that one is encoded.

    `summary` takes a job and the time. Of what it returns, only the first field called `duration` depends on the time.
    """

    def __init__(self, name: str, summary: Callable[[JobOverview, int], msgspec.Struct]) -> None:
        self._name = name.encode()
        self._summary = summary
        self._jobs: Jobs | None = None
        self._at_ms = 0
        self._encoded: dict[JobId, _Encoded] = {}
        self._body = b""

    def of(self, jobs: Jobs, now_ms: int) -> bytes:
        if jobs is not self._jobs or not 0 <= now_ms - self._at_ms < CLOCK_MS:
            if jobs is not self._jobs:
                self._encoded = {job.job_id: self._one(job) for job in jobs}
            self._body = b'{"%s":[%s]}' % (
                self._name,
                b",".join([one.at(now_ms) for one in self._encoded.values()]),
            )
            self._jobs, self._at_ms = jobs, now_ms
        return self._body

    def _one(self, job: JobOverview) -> _Encoded:
        known = self._encoded.get(job.job_id)
        if known is not None and known.job is job:
            return known
        head, mark, rest = encode(self._summary(job, 0)).partition(_DURATION)
        return _Encoded(job, head + mark, b"," + rest.partition(b",")[2])


class EncodedCluster:
    """The cluster as JSON."""

    def __init__(self, overview: Callable[[Jobs, ResourceOverview, Standing], ClusterOverview]) -> None:
        self._overview = overview
        self._of: tuple[Jobs, ResourceOverview, Standing] | None = None
        self._body = b""

    def of(self, jobs: Jobs, resources: ResourceOverview, standing: Standing) -> bytes:
        before = self._of
        same = before is not None and before[0] is jobs and before[1] is resources and before[2] == standing
        if not same:
            self._body = encode(self._overview(jobs, resources, standing))
            self._of = jobs, resources, standing
        return self._body


def duration(start_ms: int, end_ms: int, now_ms: int) -> int:
    """Return how long something has taken, in milliseconds; -1 if it has not begun."""
    if start_ms < 0:
        return -1
    return max(0, (end_ms if end_ms >= 0 else now_ms) - start_ms)
