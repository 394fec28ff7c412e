"""What Flink has and minflinkd has not: answered as Flink answers where it is not available, with a sentence."""

from __future__ import annotations

from aiohttp import web

from minflinkd.rest import route
from minflinkd.rest.backend import Backend, json_answer
from minflinkd.rest.declared import (
    DATASET,
    JOB_ID,
    LOG_NAME,
    OPERATOR_UID,
    TASK_MANAGER_ID,
    TRIGGER_ID,
    Body,
    InQuery,
    whole,
)
from minflinkd.rest.errors import CrossSite, InvalidRequest, RequestError
from minflinkd.rest.guard import Limits
from minflinkd.rest.identity.roles import Role
from minflinkd.rest.route import NOTHING
from minflinkd.rest.schemas import Empty
from minflinkd.rest.schemas.unavailable import (
    ClientHeartbeat,
    CoordinationRequest,
    DataSets,
    ProfilingList,
    ProfilingRequest,
)
from minflinkd.rest.taskmanagers import find
from minflinkd.rpc.jobs import CancelJob
from minflinkd.runtime.errors import Conflict, NotFound

_PARALLELISM = InQuery[int | None]("parallelism", "How parallel", whole(most=2**31 - 1), None)
_PROFILING = Body(ProfilingRequest, "What async-profiler would be asked for")
_HEARTBEAT = Body(ClientHeartbeat, "Until when Flink's client says that it lives")
_COORDINATION = Body(CoordinationRequest, "A message for Java code of Flink's")
_SAME_SITE = ("same-origin", "none")


class RescalingDisabled(RequestError):
    """Flink refuses its old rescaling in all of its versions, with this sentence and status."""

    code = "rescaling-disabled"
    status = 503


class UnavailableRoutes:
    def __init__(self, backend: Backend, *, limits: Limits) -> None:
        self._backend = backend
        self._limits = limits

    def routes(self) -> list[route.Route]:
        return [
            route.get(
                "/jobs/{jobid}/yarn-cancel",
                self.cancel,
                Role.OPERATE,
                "Cancel the job: what Flink's dashboard calls for it",
                {202: Empty},
                errors=(409,),
                changes_all_the_same=True,
            ),
            route.get(
                "/jobs/{jobid}/yarn-stop",
                self.stop,
                Role.OPERATE,
                "Refused, as in Flink",
                {200: NOTHING},
                errors=(409,),
            ),
            route.patch(
                "/jobs/{jobid}/rescaling",
                self.rescaling,
                Role.OPERATE,
                "Refused, as in Flink; see resource-requirements",
                {200: NOTHING},
                query=(_PARALLELISM,),
            ),
            route.get(
                "/jobs/{jobid}/rescaling/{triggerid}",
                self.rescaling_status,
                Role.VIEW,
                "Refused, as in Flink",
                {200: NOTHING},
            ),
            route.patch(
                "/jobs/{jobid}/clientHeartbeat",
                self.heartbeat,
                Role.OPERATE,
                "Accepted, and not needed: a job lives without the client that submitted it",
                {202: Empty},
                body=_HEARTBEAT,
            ),
            route.post(
                "/jobs/{jobid}/coordinators/{operatorUid}",
                self.coordinator,
                Role.OPERATE,
                "Refused: there are no operator coordinators",
                {200: NOTHING},
                body=_COORDINATION,
            ),
            route.get("/datasets", self.datasets, Role.VIEW, "Empty: there are no cluster data sets", {200: DataSets}),
            route.delete(
                "/datasets/{datasetid}", self.dataset, Role.OPERATE, "Not found: there are none", {202: NOTHING}
            ),
            route.get(
                "/datasets/delete/{triggerid}",
                self.dataset_deleted,
                Role.VIEW,
                "Not found: there are none",
                {200: NOTHING},
            ),
            route.get("/jobmanager/profiler", self.profilings, Role.VIEW, "Empty: no profiler", {200: ProfilingList}),
            route.post(
                "/jobmanager/profiler",
                self.profile,
                Role.OPERATE,
                "Refused: no profiler",
                {200: NOTHING},
                body=_PROFILING,
            ),
            route.get(
                "/jobmanager/profiler/{filename}", self.profiled, Role.VIEW, "Not found: no profiler", {200: NOTHING}
            ),
            route.get(
                "/taskmanagers/{taskmanagerid}/profiler",
                self.profilings_there,
                Role.VIEW,
                "Empty: no profiler",
                {200: ProfilingList},
            ),
            route.post(
                "/taskmanagers/{taskmanagerid}/profiler",
                self.profile,
                Role.OPERATE,
                "Refused: no profiler",
                {200: NOTHING},
                body=_PROFILING,
            ),
            route.get(
                "/taskmanagers/{taskmanagerid}/profiler/{filename}",
                self.profiled,
                Role.VIEW,
                "Not found: no profiler",
                {200: NOTHING},
            ),
        ]

    async def cancel(self, request: web.Request) -> web.Response:
        """Cancel the job. Being a GET, it is more easily sent by the page of another site than others."""
        if request.headers.get("Sec-Fetch-Site", "none") not in _SAME_SITE:
            raise CrossSite("a link of another site is not followed here", hint="use the endpoint's own page")
        await self._backend.dispatcher(CancelJob(job_id=JOB_ID.of(request)))
        return json_answer(Empty(), status=202)

    async def stop(self, request: web.Request) -> web.Response:
        JOB_ID.of(request)
        raise Conflict(
            'The termination mode "stop" has been removed. For an ungraceful shutdown, please use "cancel" instead. '
            'For a graceful shutdown, please use "jobs/:jobId/stop" instead.'
        )

    async def rescaling(self, request: web.Request) -> web.Response:
        JOB_ID.of(request)
        _PARALLELISM.of(request)
        raise _rescaling()

    async def rescaling_status(self, request: web.Request) -> web.Response:
        JOB_ID.of(request)
        TRIGGER_ID.of(request)
        raise _rescaling()

    async def heartbeat(self, request: web.Request) -> web.Response:
        await _HEARTBEAT.of(request, self._limits)
        await self._backend.job(request)
        return json_answer(Empty(), status=202)

    async def coordinator(self, request: web.Request) -> web.Response:
        await _COORDINATION.of(request, self._limits)
        await self._backend.job(request)
        raise NotFound(
            f"Coordinator of operator {OPERATOR_UID.of(request)[:80]} does not exist",
            hint="operators have no coordinators here",
        )

    async def datasets(self, _: web.Request) -> web.Response:
        return json_answer(DataSets())

    async def dataset(self, request: web.Request) -> web.Response:
        raise NotFound(
            f"there is no data set {DATASET.of(request)[:80]!r}", hint="GET /datasets lists them: there are none"
        )

    async def dataset_deleted(self, request: web.Request) -> web.Response:
        raise NotFound(f"there is no deletion {TRIGGER_ID.of(request)[:80]!r}", hint="there are no data sets")

    async def profilings(self, _: web.Request) -> web.Response:
        return json_answer(ProfilingList())

    async def profilings_there(self, request: web.Request) -> web.Response:
        await find(self._backend, TASK_MANAGER_ID.of(request))
        return json_answer(ProfilingList())

    async def profile(self, request: web.Request) -> web.Response:
        if "taskmanagerid" in request.match_info:
            await find(self._backend, TASK_MANAGER_ID.of(request))
        await _PROFILING.of(request, self._limits)
        raise InvalidRequest(
            "async-profiler is not part of minflinkd",
            hint="the flame graph of a vertex is made of samples of its threads",
        )

    async def profiled(self, request: web.Request) -> web.Response:
        raise NotFound(f"there is no profile {LOG_NAME.of(request)[:80]!r}", hint="minflinkd has no profiler")


def _rescaling() -> RescalingDisabled:
    return RescalingDisabled(
        "Rescaling is temporarily disabled. See FLINK-12312.",
        hint="PUT /jobs/:jobid/resource-requirements rescales a job",
    )
