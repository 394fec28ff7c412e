"""`/jobmanager`: the daemon's environment, log and threads. For Flink's clients it is the JobManager of each job."""

from __future__ import annotations

import platform
import sys

from aiohttp import web

from minflinkd.rest import route
from minflinkd.rest.backend import Backend, json_answer
from minflinkd.rest.cluster import About, config_entries
from minflinkd.rest.declared import APPLICATION_ID, LOG_NAME, TASK_MANAGER_ID
from minflinkd.rest.identity.access import identity_of
from minflinkd.rest.identity.roles import Role, require_job
from minflinkd.rest.logs import LENGTH, OFFSET, OFFSET_HEADER, SIZE_HEADER, Slice
from minflinkd.rest.route import Text
from minflinkd.rest.schemas import ConfigEntry, Empty, Log, Logs
from minflinkd.rest.schemas.daemon import Environment, LogUrl, RuntimeInfo, ThreadDump, ThreadInfo
from minflinkd.rpc.jobs import GetJob
from minflinkd.runtime import stacks
from minflinkd.runtime.errors import NotFound
from minflinkd.runtime.log_tail import Kept

LOG = "minflinkd.log"  # the only one; what it is called here, as it has no file
_TEXT = {200: Text("text/plain")}
_LOG = {
    200: Text("text/plain", {SIZE_HEADER: "Bytes that were logged in all", OFFSET_HEADER: "Where the answer begins"})
}
_LAST_LINES = "The last lines that the daemon has logged, or the part that offset and length select"
_KEPT = "The last MiB is kept. Offsets count from the start of the daemon"


class DaemonRoutes:
    def __init__(self, backend: Backend, about: About) -> None:
        self._backend = backend
        self._about = about

    def routes(self) -> list[route.Route]:
        return [
            route.get(
                "/jobmanager/environment", self.environment, Role.VIEW, "What the daemon runs on", {200: Environment}
            ),
            route.get("/jobmanager/logs", self.logs, Role.VIEW, "The daemon's log, as a list", {200: Logs}),
            route.get(
                "/jobmanager/logs/{filename}",
                self.named_log,
                Role.VIEW,
                _LAST_LINES,
                _LOG,
                query=(OFFSET, LENGTH),
                more=_KEPT,
            ),
            route.get("/jobmanager/log", self.log, Role.VIEW, _LAST_LINES, _LOG, query=(OFFSET, LENGTH), more=_KEPT),
            route.get("/jobmanager/stdout", self.stdout, Role.VIEW, "Empty: the daemon prints nothing", _TEXT),
            route.get(
                "/jobmanager/thread-dump",
                self.thread_dump,
                Role.VIEW,
                "The daemon's threads and tasks",
                {200: ThreadDump},
            ),
            route.get(
                "/jobs/{jobid}/jobmanager/config",
                self.job_config,
                Role.VIEW,
                "The options in force",
                {200: list[ConfigEntry]},
            ),
            route.get(
                "/jobs/{jobid}/jobmanager/environment",
                self.job_environment,
                Role.VIEW,
                "What the daemon runs on",
                {200: Environment},
            ),
            route.get(
                "/jobs/{jobid}/jobmanager/log-url", self.job_log, Role.VIEW, "Where the daemon's log is", {200: LogUrl}
            ),
            route.get(
                "/jobs/{jobid}/taskmanagers/{taskmanagerid}/log-url",
                self.task_manager_log,
                Role.VIEW,
                "Where a TaskManager's log is",
                {200: LogUrl},
            ),
            route.get(
                "/applications/{applicationid}/jobmanager/config",
                self.application_config,
                Role.VIEW,
                "The options in force",
                {200: list[ConfigEntry]},
            ),
            route.delete(
                "/cluster",
                self.stop,
                Role.ADMIN,
                "End the daemon and its TaskManagers, as `minflinkd stop`",
                {200: Empty},
            ),
        ]

    async def environment(self, _: web.Request) -> web.Response:
        return json_answer(environment())

    async def logs(self, _: web.Request) -> web.Response:
        if self._about.log_tail is None:
            return json_answer(Logs(logs=()))
        size = self._about.log_tail().end
        return json_answer(Logs(logs=(Log(name=LOG, size=size, mtime=self._backend.clock.epoch_ms()),)))

    async def named_log(self, request: web.Request) -> web.Response:
        OFFSET.of(request), LENGTH.of(request)  # a wrong value is refused, whether or not there is the log
        if LOG_NAME.of(request) != LOG or self._about.log_tail is None:
            raise NotFound(f"the daemon has no log {LOG_NAME.of(request)}", hint="GET /jobmanager/logs lists them")
        return _part(request, self._about.log_tail())

    async def log(self, request: web.Request) -> web.Response:
        return _part(request, Kept(0, b"") if self._about.log_tail is None else self._about.log_tail())

    async def stdout(self, _: web.Request) -> web.Response:
        return _text("")

    async def thread_dump(self, _: web.Request) -> web.Response:
        threads = [(each, "thread of the daemon") for each in stacks.thread_stacks()]
        tasks = [(each, "task of the daemon") for each in stacks.task_stacks()]
        return json_answer(
            ThreadDump(
                thread_infos=tuple(
                    ThreadInfo(thread_name=each.name, stringified_thread_info=stacks.as_text(each, kind))
                    for each, kind in (*threads, *tasks)
                )
            )
        )

    async def job_config(self, request: web.Request) -> web.Response:
        await self._backend.job(request)
        return json_answer(config_entries(self._about))

    async def job_environment(self, request: web.Request) -> web.Response:
        await self._backend.job(request)
        return json_answer(environment())

    async def job_log(self, request: web.Request) -> web.Response:
        await self._backend.job(request)
        return json_answer(LogUrl(url=f"{request.scheme}://{request.host}/jobmanager/log"))

    async def task_manager_log(self, request: web.Request) -> web.Response:
        await self._backend.job(request)
        wanted = TASK_MANAGER_ID.of(request)
        return json_answer(LogUrl(url=f"{request.scheme}://{request.host}/taskmanagers/{wanted}/log"))

    async def application_config(self, request: web.Request) -> web.Response:
        job = await self._backend.dispatcher(GetJob(job_id=APPLICATION_ID.of(request)))
        require_job(identity_of(request), job.graph.name)
        return json_answer(config_entries(self._about))

    async def stop(self, _: web.Request) -> web.Response:
        """Begin to end the daemon, as a signal would. The answer is sent before it ends."""
        self._backend.stop()
        return json_answer(Empty())


def environment() -> Environment:
    made = RuntimeInfo(
        version=f"{platform.python_implementation()} {platform.python_version()}",
        arch=platform.machine(),
        options=tuple(f"-X {name}" for name in sys._xoptions),
    )
    return Environment(jvm=made, classpath=tuple(sys.path))


def _text(body: str) -> web.Response:
    return web.Response(text=body, content_type="text/plain", charset="utf-8")


def _part(request: web.Request, kept: Kept) -> web.Response:
    """Answer what is asked for of the log, as far as it is kept."""
    first, end = Slice(OFFSET.of(request), LENGTH.of(request)).within(kept.end)
    first = max(first, kept.first)
    body = kept.data[first - kept.first : max(first, end) - kept.first]
    headers = {SIZE_HEADER: str(kept.end), OFFSET_HEADER: str(first)}
    return web.Response(body=body, headers=headers, content_type="text/plain", charset="utf-8")
