"""Job files over HTTP: that of a running job, and the reading of one that somebody writes.

An editor sends its text here before it submits: so YAML is read as the command line reads it, and every fault has its
line. Nothing is started, stored, or asked of Spark.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import replace
from typing import Any

import msgspec
from aiohttp import web

from minflinkd.jobgraph.chaining import chain, cut_reasons, slots_wanted
from minflinkd.jobgraph.document import JobDocument, parse_json, parse_yaml
from minflinkd.jobgraph.faults import InvalidJobGraph
from minflinkd.jobgraph.model import JobGraph, encode
from minflinkd.rest import route
from minflinkd.rest.backend import Backend, json_answer
from minflinkd.rest.declared import Body
from minflinkd.rest.errors import InvalidJob
from minflinkd.rest.guard import Limits
from minflinkd.rest.identity.roles import Role
from minflinkd.rest.schemas.answer import Fault
from minflinkd.rest.schemas.documents import ChainedTask, Cut, JobGraphInfo, JobText, ReadJob
from minflinkd.storage.masking import without_secrets

_TEXT = Body(JobText, "A job file as text, and its format")


class DocumentRoutes:
    def __init__(self, backend: Backend, *, limits: Limits) -> None:
        self._backend = backend
        self._limits = limits
        self._reading = asyncio.Lock()  # YAML is read slowly: one text at a time

    def routes(self) -> list[route.Route]:
        return [
            route.get(
                "/jobs/{jobid}/graph",
                self.graph,
                Role.VIEW,
                "The job file that runs, its tasks, and why they are cut where they are",
                {200: JobGraphInfo},
                more=(
                    "Not in Flink. `document` is a job file, in which `******` stands for what looks like a secret; "
                    "`hidden` says whether it has any. `cuts` are the exchanges, each with its reason"
                ),
            ),
            route.post(
                "/jobs/text",
                self.read,
                Role.SUBMIT,
                "Read a job file that is written just now",
                {200: ReadJob},
                body=_TEXT,
                names_job=True,
                more=(
                    "Not in Flink. The `document` for `POST /jobs`, the `lines` of its parts, `faults` with their "
                    "lines, and if there are none, the `normal` form in which jobs are stored. Nothing is started or "
                    "stored, and Spark is not asked"
                ),
            ),
        ]

    async def graph(self, request: web.Request) -> web.Response:
        job = await self._backend.job(request)
        return json_answer(await asyncio.to_thread(_graph_info, job.job_id, job.graph))

    async def read(self, request: web.Request) -> web.Response:
        """Raises InvalidJob if the text is neither JSON nor YAML."""
        body = await _TEXT.of(request, self._limits)
        async with self._reading:
            return json_answer(await asyncio.to_thread(_read, body))


def _graph_info(job_id: str, graph: JobGraph) -> JobGraphInfo:
    document = json.loads(encode(graph))
    shown = without_secrets(document)
    return JobGraphInfo(
        jid=job_id,
        document=shown,
        hidden=shown != document,
        tasks=tuple(
            ChainedTask(
                id=task.id,
                name=task.name,
                vertices=tuple(vertex.id for vertex in task.vertices),
                parallelism=task.parallelism,
                slot_sharing_group=task.slot_sharing_group,
            )
            for task in chain(graph)
        ),
        cuts=tuple(Cut(upstream=a, downstream=b, why=why) for (a, b), why in cut_reasons(graph).items()),
        slots=slots_wanted(chain(graph)),
    )


def _read(body: JobText) -> ReadJob:
    faults: tuple[Fault, ...] = ()
    normal: dict[str, Any] | None = None
    try:
        found = _parsed(body)
    except InvalidJobGraph as error:
        raise InvalidJob(error.faults) from error
    try:
        normal = without_secrets(json.loads(encode(found.job())))
    except InvalidJobGraph as error:
        faults = tuple(msgspec.convert(one, Fault, from_attributes=True) for one in found.locate(error.faults))
    name = found.value.get("name") if isinstance(found.value, dict) else None
    return ReadJob(
        document=found.value,
        name=name if isinstance(name, str) else "",
        lines=dict(found.positions),
        normal=normal,
        faults=faults,
    )


def _parsed(body: JobText) -> JobDocument:
    """Return the contents, with lines also for JSON: almost all of it is YAML as well."""
    text = body.text.encode()
    if body.syntax == "yaml":
        return parse_yaml(text)
    found = parse_json(text)
    with contextlib.suppress(InvalidJobGraph):
        found = replace(found, positions=parse_yaml(text).positions)
    return found
