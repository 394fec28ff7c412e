"""Turns a submitted document into a JobGraph that Spark has analysed, or reports all its faults at once (J4)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Protocol

import structlog
from msgspec.structs import replace as copy

from minflinkd.blob.keys import BlobKey
from minflinkd.checkpoint import hooks
from minflinkd.dispatcher.blobs import Blobs, with_sizes
from minflinkd.dispatcher.libraries import with_units
from minflinkd.dispatcher.quotas import Share, share_of
from minflinkd.dispatcher.sessions import ASK_AGAIN, NoSession, find_session
from minflinkd.dispatcher.state_fit import RestoreCheck
from minflinkd.jobgraph.archives import ArchiveLimits
from minflinkd.jobgraph.bad_records import in_agreement
from minflinkd.jobgraph.chaining import chain
from minflinkd.jobgraph.document import parse_json
from minflinkd.jobgraph.faults import GraphFault, InvalidJobGraph, at
from minflinkd.jobgraph.model import Isolation, JobGraph, Task, Vertex, encode
from minflinkd.jobgraph.records import with_formats
from minflinkd.jobgraph.resources import profiles_of
from minflinkd.jobgraph.sound_part import of_the_job, sound_tasks
from minflinkd.rpc import messages as m
from minflinkd.rpc.jobs import ExplainedTask
from minflinkd.rpc.network import Address, Network, RpcTimeout, Unreachable
from minflinkd.rpc.snapshot import without_meaning
from minflinkd.runtime.clock import Clock
from minflinkd.runtime.errors import InvalidId, Kind, MinflinkError, RemoteError
from minflinkd.runtime.ids import JobId, TaskId
from minflinkd.runtime.resource_profile import NO_PROFILE

log = structlog.get_logger(__name__)

OF_SCRIPTS = ("vertices", "mode", "trigger-interval")  # what a script may say of its job; the rest is checked by then
ANALYSIS_TIMEOUT = 120.0  # seconds; it runs user code
AROUND_ANALYSIS = 30.0  # seconds for the rest of a submission: its blobs, the last request, storing, starting


@dataclass(frozen=True, kw_only=True)
class Analyzer:
    """Checks submissions. Starts nothing and stores nothing. After a check, the job holds its artifacts."""

    network: Network
    clock: Clock
    blobs: Blobs
    restoring: RestoreCheck
    session_timeout: Callable[[], float]  # seconds to wait for a TaskManager with a session
    archive_limits: Callable[[], ArchiveLimits]

    async def check(
        self, job_id: JobId, document: bytes, context: ContextOf, *, admit: Admit, explain: bool = False
    ) -> tuple[JobGraph, m.Analysis]:
        """Check a document and return its graph. `explain`: the analysis has Spark's plans.

        Raises InvalidJobGraph with all faults, NoSession, StorageError, and what `admit` raises.
        """
        graph, analysis = await self.analyze(
            job_id, document, context, held=self.restoring.held, admit=admit, explain=explain
        )
        if faults := await self.restoring.faults(graph, analysis.operators, analysis.verdicts):
            raise InvalidJobGraph(faults)
        return graph, analysis

    async def analyze(
        self,
        job_id: JobId,
        document: bytes,
        context: ContextOf,
        *,
        held: HeldOf,
        admit: Admit,
        beside: frozenset[BlobKey] = frozenset(),
        explain: bool = False,
    ) -> tuple[JobGraph, m.Analysis]:
        """Analyse a document. `held`: returns the state that the graph's tasks continue with.

        `admit` gets what the job takes, before Spark is asked, which is slow, and may need another TaskManager.
        `beside`: artifacts that the job holds already. Raises InvalidJobGraph with all faults, NoSession, and what
        `held` and `admit` raise.
        """
        try:
            graph = await asyncio.to_thread(lambda: parse_json(document).job())
        except InvalidJobGraph as error:
            more = await self._analyze_sound_part(job_id, error, context, beside)
            raise InvalidJobGraph((*error.faults, *more)) from None
        faults = (*_unknown_hooks(graph), *await self._missing_artifacts(job_id, graph, beside))
        notes: tuple[str, ...] = ()
        if not faults and graph.script is not None:
            admit(await asyncio.to_thread(share_of, graph))
            graph, notes = await self._with_queries(job_id, graph, context)
        if not faults:
            graph = await with_sizes(graph, job_id, self.blobs)
            admit(await asyncio.to_thread(share_of, graph))
            graph = await with_units(graph, job_id, self.blobs, self.archive_limits())
            tasks = await asyncio.to_thread(chain, graph)
            request = _question(context(job_id, graph), graph, tasks, held=dict(await held(graph)))
            analysis = await self._analyze(copy(request, explain=explain), self.session_timeout())
            analysis = copy(analysis, notes=(*notes, *analysis.notes))
            faults = analysis.faults
        if faults:
            raise InvalidJobGraph(faults)
        return with_formats(graph, analysis.record_formats), analysis

    async def _with_queries(
        self, job_id: JobId, graph: JobGraph, context: ContextOf
    ) -> tuple[JobGraph, tuple[str, ...]]:
        """Have a script executed. Return the job with its queries as vertices, and notes for the user.

        Raises InvalidJobGraph, NoSession.
        """
        script, graph = graph.script or "", copy(graph, script=None)
        asked = await with_units(graph, job_id, self.blobs, self.archive_limits())
        question = copy(_question(context(job_id, asked), asked, ()), script=script)
        answer = await self._analyze(question, self.session_timeout())
        if answer.faults or answer.script is None:
            nothing = GraphFault(path="script", problem=f"{script} returns no queries", hint="use `minflinkd run`")
            raise InvalidJobGraph(answer.faults or (nothing,))
        told = {key: value for key, value in answer.script.document.items() if key in OF_SCRIPTS}
        document = json.loads(encode(graph)) | told
        return await asyncio.to_thread(lambda: parse_json(json.dumps(document).encode()).job()), answer.script.notes

    async def _missing_artifacts(
        self, job_id: JobId, graph: JobGraph, beside: frozenset[BlobKey]
    ) -> tuple[GraphFault, ...]:
        keys = [_permanent_key(artifact.key) for artifact in graph.artifacts]
        missing = await self.blobs.hold(job_id, beside | {key for key in keys if key is not None})
        return tuple(
            GraphFault(
                path=at("artifacts", i),
                problem=f"the artifact {artifact.name} was not uploaded, or too long ago",
                hint="submit with `minflinkd run`, which uploads it",
            )
            for i, (artifact, key) in enumerate(zip(graph.artifacts, keys, strict=True))
            if key is None or key in missing
        )

    async def _analyze_sound_part(
        self, job_id: JobId, error: InvalidJobGraph, context: ContextOf, beside: frozenset[BlobKey]
    ) -> tuple[GraphFault, ...]:
        """Return Spark's faults of the vertices that are otherwise sound; none if nobody can be asked at once."""
        if error.sound is None:
            return ()
        missing = await self._missing_artifacts(job_id, error.sound, beside)
        sound = without_python(error.sound) if missing else error.sound
        if not sound.vertices:
            return missing
        tasks = await asyncio.to_thread(sound_tasks, sound)
        try:
            sound = sound if missing else await with_units(sound, job_id, self.blobs, self.archive_limits())
            request = _question(context(job_id, sound), sound, tasks)
            return (*missing, *of_the_job((await self._analyze(request, 0.0)).faults, tasks))
        except MinflinkError as problem:
            log.info("the sound part of a faulty job was not analysed", job=job_id, error=str(problem))
            return missing

    async def _analyze(self, request: m.AnalyzeJob, session_timeout: float) -> m.Analysis:
        """Ask a TaskManager to analyse the job. Raises NoSession.

        If the session is lost meanwhile, ask a second TaskManager, because the job may not be the cause. Do not ask a
        third: perhaps the job's code ends every session that runs it.
        """
        deadline = self.clock.monotonic() + session_timeout
        lost = 0
        while True:
            address = await self._find_session(request, session_timeout, deadline)
            try:
                return await self.network.ask(address, request, timeout=ANALYSIS_TIMEOUT)
            except (Unreachable, RpcTimeout, RemoteError) as error:
                taken = error.info().kind is Kind.SESSION_TAKEN
                lost += not taken
                again = taken or (lost == 1 and _lost_session(error))
                if not again or self.clock.monotonic() >= deadline:
                    why = f"the job could not be analysed at {address}: {error}"
                    raise NoSession(why, hint="submit it again") from error
                log.info("the job will be analysed by another session", job=request.job.job_id, error=str(error))
            await self.clock.sleep(ASK_AGAIN)  # by then the loss, or the job whose libraries came first, is reported

    async def _find_session(self, question: m.AnalyzeJob, timeout: float, deadline: float) -> Address:
        job = question.job
        request = m.FindSession(
            job_id=job.job_id, libraries=job.libraries, exclusive=question.exclusive, profile=question.profile
        )
        what = "analyse the job"
        return await find_session(self.network, self.clock, request, timeout=timeout, deadline=deadline, what=what)


def explained(analysis: m.Analysis) -> tuple[ExplainedTask, ...]:
    """Return what Spark says of the tasks, for somebody who has asked for it."""
    return tuple(
        ExplainedTask(task_id=task, plan=plan, operators=without_meaning(analysis.operators.get(task, ())))
        for task, plan in sorted(analysis.plans.items())
    )


def _question(
    job: m.JobContext, graph: JobGraph, tasks: tuple[Task, ...], *, held: dict[TaskId, m.HeldState] | None = None
) -> m.AnalyzeJob:
    exclusive, profile = graph.isolation is Isolation.JOB, NO_PROFILE
    if exclusive:
        profile = reduce(or_, profiles_of(graph, {task.slot_sharing_group for task in tasks}).values(), NO_PROFILE)
    return m.AnalyzeJob(job=job, tasks=tasks, held=held or {}, exclusive=exclusive, profile=profile)


def _lost_session(error: MinflinkError) -> bool:
    return isinstance(error, Unreachable) or error.info().kind is Kind.SESSION_LOST


def _unknown_hooks(graph: JobGraph) -> tuple[GraphFault, ...]:
    names = graph.checkpointing.master_hooks
    missing = hooks.unknown(names)
    return tuple(
        GraphFault(
            path=at(at("checkpointing", "master-hooks"), i),
            problem=f"no master hook {name} is installed beside the daemon",
            hint=f"installed are: {', '.join(sorted(hooks.installed())) or 'none'}",
        )
        for i, name in enumerate(names)
        if name in missing
    )


def _permanent_key(text: str | None) -> BlobKey | None:
    """Parse the key of an artifact. None if it is not one: a transient blob would not survive the daemon (B2)."""
    try:
        key = None if text is None else BlobKey.parse(text)
    except InvalidId:
        return None
    return key if key is not None and key.is_permanent else None


def without_python(graph: JobGraph) -> JobGraph:
    """Return the vertices that need no artifact and read nothing that does. `graph` is in topological order."""
    kept: dict[str, Vertex] = {}
    for vertex in graph.vertices:
        code = vertex.python or (vertex.source and vertex.source.python) or (vertex.sink and vertex.sink.python)
        if not code and all(edge.id in kept for edge in vertex.inputs):
            kept[vertex.id] = vertex
    return copy(graph, vertices=in_agreement(kept.values()), artifacts=())


Admit = Callable[[Share], None]  # raises QuotaExceeded
HeldOf = Callable[[JobGraph], Awaitable[Mapping[TaskId, m.HeldState]]]


class ContextOf(Protocol):
    def __call__(self, job_id: JobId, graph: JobGraph) -> m.JobContext: ...
