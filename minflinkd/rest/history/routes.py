"""`/history` and `/jobs/:jobid/history`: metrics of the last hour or day (E16)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final, Literal, NamedTuple

from aiohttp import web

from minflinkd.metrics.history.book import HistoryBook, JobPast
from minflinkd.metrics.history.track import Resolution, Track
from minflinkd.rest import route
from minflinkd.rest.backend import Backend, encode, json_answer, json_bytes
from minflinkd.rest.declared import JOB_ID, MOST, InQuery, whole
from minflinkd.rest.identity.access import identity_of
from minflinkd.rest.identity.roles import Role
from minflinkd.rest.schemas.history import ClusterHistory, JobHistory, JobMark

AT_A_TIME: Final = 4  # subjects between which the event loop does something else
OF_JOBS: Final = ("rows_in_per_second",)  # what the overview shows of each job
_SINCE = InQuery[int | None](
    "since",
    "The time of the first value, in milliseconds since 1970; by default an hour ago",
    whole(most=MOST),
    None,
)
_RESOLUTION = InQuery[Literal["5s", "1m"]]("resolution", "1m: a minute, for the last day", Literal["5s", "1m"], "5s")


class Window(NamedTuple):
    resolution: Resolution
    start: int  # slots
    stop: int
    now: int

    @property
    def start_ms(self) -> int:
        return self.start * self.resolution

    def values(self, track: Track, names: Iterable[str] | None = None) -> dict[str, tuple[float | None, ...]]:
        layout = track.layout
        return {
            name: tuple(track.values(self.resolution, layout.names.index(name), self.start, self.stop))
            for name in (layout.names if names is None else names)
        }


def window(resolution: Resolution, since: int | None, now_ms: int) -> Window:
    """Return the slots to show: from `since`, at most all that are kept, up to now; by default those of an hour."""
    stop = now_ms // resolution + 1
    if since is None:
        start = stop - Resolution.FINE.kept * Resolution.FINE // resolution
    else:
        start = max(stop - resolution.kept, min(stop, since // resolution))
    return Window(resolution, start, stop, now_ms)


class HistoryRoutes:
    def __init__(self, backend: Backend, book: HistoryBook) -> None:
        self._backend = backend
        self._book = book

    def routes(self) -> list[route.Route]:
        query = (_SINCE, _RESOLUTION)
        return [
            route.get(
                "/history",
                self.cluster,
                Role.VIEW,
                "Metrics of the cluster, and the rows per second of each job, of the last hour",
                {200: ClusterHistory},
                query=query,
                more="Not in Flink. See [below](#history-and-events)",
            ),
            route.get(
                "/jobs/{jobid}/history",
                self.job,
                Role.VIEW,
                "Metrics of the job and its tasks of the last hour, and what happened to it",
                {200: JobHistory},
                query=query,
                more="Not in Flink; also of a job that ended in the last day",
            ),
        ]

    async def cluster(self, request: web.Request) -> web.Response:
        """Answer the cluster's series, and of each job that the client may see its rate."""
        shown, who = self._window(request), identity_of(request)
        jobs = []
        for number, (job_id, past) in enumerate(list(self._book.jobs.items())):
            if who.reaches(past.name):
                jobs.append(f'"{job_id}":'.encode() + encode(shown.values(past.track, OF_JOBS)))
            if number % AT_A_TIME == 0:
                await asyncio.sleep(0)
        head = {"resolution": int(shown.resolution), "start": shown.start_ms, "now": shown.now}
        return json_bytes(
            b"%s,%s"
            % (
                encode(head)[:-1],
                b'"cluster":%s,"jobs":{%s}}' % (encode(shown.values(self._book.cluster)), b",".join(jobs)),
            )
        )

    async def job(self, request: web.Request) -> web.Response:
        """Answer a job's series and marks: also of a job that has ended, or is not listed any more."""
        shown, job_id = self._window(request), JOB_ID.of(request)
        past = self._book.jobs.get(job_id)
        if past is None:
            name = (await self._backend.job(request)).graph.name  # raises NotFound
            past = JobPast(name, shown.now)
        tasks = {}
        for task_id, track in list(past.tasks.items()):
            tasks[task_id] = shown.values(track)
            await asyncio.sleep(0)
        answer = JobHistory(
            resolution=shown.resolution,
            start=shown.start_ms,
            now=shown.now,
            job=shown.values(past.track),
            tasks=tasks,
            marks=tuple(JobMark(at=mark.at, kind=mark.kind, text=mark.text) for mark in past.in_order()),
        )
        return json_answer(answer)

    def _window(self, request: web.Request) -> Window:
        resolution = Resolution.FINE if _RESOLUTION.of(request) == "5s" else Resolution.COARSE
        return window(resolution, _SINCE.of(request), self._backend.clock.epoch_ms())
