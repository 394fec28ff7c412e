"""Metrics under Flink's names: of the daemon, of TaskManagers, jobs and vertices, one by one or aggregated.

Without `get` the answer has their names, with `get` their values as texts. Names that nobody knows are left out.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final

import psutil
from aiohttp import web
from msgspec import Meta

from minflinkd.checkpoint.messages import GetCheckpoints
from minflinkd.rest import route
from minflinkd.rest.backend import Backend, Handler, json_bytes
from minflinkd.rest.backend import encode as encoded
from minflinkd.rest.declared import SUBTASK, TASK_MANAGER_ID, VERTEX, InQuery
from minflinkd.rest.errors import InvalidRequest
from minflinkd.rest.flink import figures
from minflinkd.rest.flink.figures import AGGREGATES, Figures
from minflinkd.rest.flink.rates import Rates
from minflinkd.rest.identity.roles import Role
from minflinkd.rest.partitions import Partitions
from minflinkd.rest.plan import find_task
from minflinkd.rest.schemas.flink_metrics import AggregatedMetric, Metric
from minflinkd.rest.subtasks import subtask_at, subtasks_of
from minflinkd.rest.taskmanagers import find as find_task_manager
from minflinkd.rpc.jobs import GetJob, JobDetails, JobStatus, TaskDetails
from minflinkd.runtime.errors import MinflinkError
from minflinkd.runtime.ids import JobId

LONGEST = 10_000  # characters of the names in one request
_NUMBER: Final = re.compile("[0-9]{1,6}")
MOST_JOBS = 200  # whose metrics are aggregated in one request


def _list(text: str) -> tuple[str, ...]:
    if len(text) > LONGEST:
        raise InvalidRequest(f"{len(text):,} characters are too many", hint=f"{LONGEST:,} at most in one request")
    return tuple(dict.fromkeys(part for part in text.split(",") if part))


def _aggregates(text: str) -> tuple[str, ...]:
    found = tuple(part.lower() for part in _list(text))
    if unknown := [part for part in found if part not in AGGREGATES]:
        raise InvalidRequest(f"agg is {unknown[0][:80]!r}", hint=" or ".join(AGGREGATES))
    return found


def _indices(text: str) -> tuple[range, ...]:
    """From `0-2,5`, return the ranges of 0 to 2 and of 5: a request may name many, and large ones."""
    found = []
    for part in _list(text):
        first, dash, last = part.partition("-")
        if not _NUMBER.fullmatch(first) or (dash and not _NUMBER.fullmatch(last)):
            raise InvalidRequest(f"subtasks is {text[:80]!r}", hint="numbers and ranges, such as 0-3,7")
        found.append(range(int(first), int(last or first) + 1))
    return tuple(found)


def _listed(item: str) -> Any:
    """Return the type of a list of such items, with commas between them."""
    return Annotated[str, Meta(pattern=f"^,*({item}(,+{item})*,*)?$", max_length=LONGEST)]


_NAMES: Final = Annotated[str, Meta(max_length=LONGEST)]
_ONE_AGGREGATE: Final = "|".join("".join(f"[{c}{c.upper()}]" for c in name) for name in AGGREGATES)

GET = InQuery[tuple[str, ...] | None]("get", "Names of metrics, with commas between them", _NAMES, None, _list)
_AGG = InQuery[tuple[str, ...] | None](
    "agg",
    f"Which aggregates, with commas between them: {', '.join(AGGREGATES)}; all by default",
    _listed(f"({_ONE_AGGREGATE})"),
    None,
    _aggregates,
)
_SUBTASKS = InQuery[tuple[range, ...] | None](
    "subtasks", "Which subtasks, such as 0-3,7", _listed(r"[0-9]{1,6}(-[0-9]{1,6})?"), None, _indices
)
_JOBS = InQuery[tuple[str, ...] | None]("jobs", "Which jobs, by their ids", _NAMES, None, _list)
_TASK_MANAGERS = InQuery[tuple[str, ...] | None]("taskmanagers", "Which TaskManagers", _NAMES, None, _list)


class FlinkMetricRoutes:
    def __init__(self, backend: Backend, partitions: Partitions) -> None:
        self._backend = backend
        self._partitions = partitions
        self._rates = Rates()
        self._process = psutil.Process()

    def routes(self) -> list[route.Route]:
        def one(path: str, handler: Handler, means: str) -> route.Route:
            return route.get(path, handler, Role.VIEW, means, {200: list[Metric]}, query=(GET,))

        def several(path: str, handler: Handler, means: str, which: InQuery[Any]) -> route.Route:
            return route.get(
                path,
                handler,
                Role.VIEW,
                means,
                {200: list[AggregatedMetric]},
                query=(GET, _AGG, which),
            )

        vertex = "/jobs/{jobid}/vertices/{vertexid}"
        return [
            one("/jobmanager/metrics", self.daemon, "The daemon's metrics"),
            one("/taskmanagers/{taskmanagerid}/metrics", self.task_manager, "A TaskManager's metrics"),
            one("/jobs/{jobid}/metrics", self.job, "A job's metrics"),
            one(
                f"{vertex}/metrics",
                self.vertex,
                "A vertex's metrics: `numRecordsIn` of all of it, `0.numRecordsIn` of a subtask",
            ),
            one(f"{vertex}/subtasks/{{subtaskindex}}/metrics", self.subtask, "A subtask's metrics"),
            one(f"{vertex}/jm-operator-metrics", self.nothing, "Metrics of coordinators, which there are not"),
            route.get(
                f"{vertex}/watermarks", self.watermarks, Role.VIEW, "The watermark of each subtask", {200: list[Metric]}
            ),
            several("/jobs/metrics", self.jobs, "Metrics of running jobs, aggregated", _JOBS),
            several("/taskmanagers/metrics", self.task_managers, "Metrics of TaskManagers, aggregated", _TASK_MANAGERS),
            several(f"{vertex}/subtasks/metrics", self.subtasks, "Metrics of subtasks, aggregated", _SUBTASKS),
        ]

    # --- one by one ----------------------------------------------------------------------------------------------

    async def daemon(self, request: web.Request) -> web.Response:
        return _answer(request, await self._of_daemon())

    async def task_manager(self, request: web.Request) -> web.Response:
        info = await find_task_manager(self._backend, TASK_MANAGER_ID.of(request))
        return _answer(request, figures.of_task_manager(info))

    async def job(self, request: web.Request) -> web.Response:
        return _answer(request, await self._of_job(await self._backend.job(request)))

    async def vertex(self, request: web.Request) -> web.Response:
        task = find_task(await self._backend.job(request), VERTEX.of(request))
        rates = self._rates_of(task)
        found = dict(figures.of_task(task, rates))
        for view in subtasks_of(task, await self._partitions.of(task)):
            of_one = figures.of_subtask(task, rates, view)
            found |= {f"{view.index}.{name}": value for name, value in of_one.items()}
        return _answer(request, found)

    async def subtask(self, request: web.Request) -> web.Response:
        task = find_task(await self._backend.job(request), VERTEX.of(request))
        view = subtask_at(task, subtasks_of(task, await self._partitions.of(task)), SUBTASK.of(request))
        return _answer(request, figures.of_subtask(task, self._rates_of(task), view))

    async def nothing(self, request: web.Request) -> web.Response:
        find_task(await self._backend.job(request), VERTEX.of(request))
        return _answer(request, {})

    async def watermarks(self, request: web.Request) -> web.Response:
        task = find_task(await self._backend.job(request), VERTEX.of(request))
        at = task.metrics.watermark_ms
        if not at:  # 0: it has never moved
            return json_bytes(encoded([]))
        views = subtasks_of(task, await self._partitions.of(task))
        return json_bytes(encoded([Metric(id=f"{view.index}.{figures.WATERMARK}", value=str(at)) for view in views]))

    # --- aggregated ----------------------------------------------------------------------------------------------

    async def jobs(self, request: web.Request) -> web.Response:
        wanted = _JOBS.of(request)
        running = [
            job.job_id
            for job in await self._backend.jobs.get()
            if (job.job_id in wanted if wanted is not None else not job.status.terminal)
        ]
        found = await asyncio.gather(*(self._of_job_or_nothing(job_id) for job_id in running[:MOST_JOBS]))
        return _aggregated(request, found)

    async def task_managers(self, request: web.Request) -> web.Response:
        wanted = _TASK_MANAGERS.of(request)
        known = await self._backend.task_managers.get()
        mine = [info for info in known if wanted is None or info.resource_id in wanted]
        return _aggregated(request, [figures.of_task_manager(info) for info in mine])

    async def subtasks(self, request: web.Request) -> web.Response:
        wanted = _SUBTASKS.of(request)
        task = find_task(await self._backend.job(request), VERTEX.of(request))
        views = [
            view
            for view in subtasks_of(task, await self._partitions.of(task))
            if wanted is None or any(view.index in each for each in wanted)
        ]
        rates = self._rates_of(task)
        return _aggregated(request, [figures.of_subtask(task, rates, view) for view in views])

    # --- where they come from ------------------------------------------------------------------------------------

    def _rates_of(self, task: TaskDetails) -> Mapping[str, float]:
        clock = self._backend.clock
        return self._rates.of(task, clock.monotonic(), clock.epoch_ms())

    async def _of_job(self, job: JobDetails) -> Figures:
        try:
            checkpoints = await self._backend.dispatcher(GetCheckpoints(job_id=job.job_id))
        except MinflinkError:
            checkpoints = None
        return figures.of_job(job, checkpoints, self._backend.clock.epoch_ms())

    async def _of_job_or_nothing(self, job_id: JobId) -> Figures:
        try:
            return await self._of_job(await self._backend.dispatcher(GetJob(job_id=job_id)))
        except MinflinkError:
            return {}

    async def _of_daemon(self) -> Figures:
        jobs, resources = await self._backend.jobs.get(), await self._backend.resources.get()
        process = self._process
        with process.oneshot():
            times = process.cpu_times()
            return {
                "numRunningJobs": sum(not job.status.terminal for job in jobs),
                "numRegisteredTaskManagers": resources.task_managers,
                "taskSlotsTotal": resources.slots_total,
                "taskSlotsAvailable": resources.slots_free,
                "numPendingTaskManagers": len(resources.starting),
                "numRestartingJobs": sum(job.status is JobStatus.RESTARTING for job in jobs),
                "Status.FileDescriptor.Open": process.num_fds(),
                "Status.FileDescriptor.Max": process.rlimit(psutil.RLIMIT_NOFILE)[0],
                # The daemon is no JVM.
                "minflinkd.daemon.rss_bytes": process.memory_info().rss,
                "minflinkd.daemon.threads": process.num_threads(),
                "minflinkd.daemon.cpu_seconds": round(times.user + times.system, 2),
            }


def _answer(request: web.Request, found: Figures) -> web.Response:
    wanted = GET.of(request)
    if wanted is None:
        return json_bytes(encoded([Metric(id=name) for name in sorted(found)]))
    return json_bytes(encoded([Metric(id=name, value=figures.text(found[name])) for name in wanted if name in found]))


def _aggregated(request: web.Request, found: Iterable[Mapping[str, figures.Value]]) -> web.Response:
    wanted, aggregates, each = GET.of(request), _AGG.of(request) or tuple(AGGREGATES), list(found)
    if wanted is None:
        names = sorted({name for one in each for name, value in one.items() if not isinstance(value, str)})
        return json_bytes(encoded([AggregatedMetric(id=name) for name in names]))
    made = (figures.aggregated(name, [one[name] for one in each if name in one], aggregates) for name in wanted)
    return json_bytes(encoded([one for one in made if one is not None]))
