"""`/taskmanagers/:id/thread-dump`: what the threads of a TaskManager's processes do."""

from __future__ import annotations

from aiohttp import web

from minflinkd.rest import route
from minflinkd.rest.backend import Backend, json_answer
from minflinkd.rest.declared import TASK_MANAGER_ID
from minflinkd.rest.identity.roles import Role
from minflinkd.rest.schemas.daemon import ThreadDump, ThreadInfo
from minflinkd.rest.taskmanagers import find
from minflinkd.rpc.messages import DumpThreads, ThreadsDumped

PATIENCE = 30.0  # seconds; a session that hangs is looked at from outside, which takes longer


class ThreadRoutes:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def routes(self) -> list[route.Route]:
        return [
            route.get(
                "/taskmanagers/{taskmanagerid}/thread-dump",
                self.dump,
                Role.VIEW,
                "The threads of the supervisor, the session child, its Python workers and its JVM",
                {200: ThreadDump},
            )
        ]

    async def dump(self, request: web.Request) -> web.Response:
        info = await find(self._backend, TASK_MANAGER_ID.of(request))
        return json_answer(shown(await self._backend.task_manager(info.resource_id, DumpThreads(), PATIENCE)))


def shown(dumped: ThreadsDumped) -> ThreadDump:
    """Return the dump. What is not known comes first, as if it were a thread: Flink has no field for it."""
    notes = tuple(ThreadInfo(thread_name="(not known)", stringified_thread_info=f"{why}\n\n") for why in dumped.missing)
    threads = (ThreadInfo(thread_name=one.name, stringified_thread_info=one.text) for one in dumped.threads)
    return ThreadDump(thread_infos=(*notes, *threads))
