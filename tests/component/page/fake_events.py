"""The past and the events of the endpoint, as the page reads them: made-up figures, and streams that a test breaks."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from minflinkd.rest import route
from minflinkd.rest.backend import encode
from minflinkd.rest.identity.roles import Role
from minflinkd.rest.route import Route, Text

STEP = 5000
SLOTS = 720
PHASES = ("latestOffset", "getBatch", "queryPlanning", "walCommit", "addBatch", "commitOffsets")

Get = Callable[[str], Awaitable[Any]]


class FakeEvents:
    """`get` returns the JSON at a path of the same server. `outage`: when nothing was measured, in slots before now."""

    def __init__(self, get: Get) -> None:
        self.get = get
        self.open: set[asyncio.Task[Any]] = set()
        self.opened = 0
        self.refusing = False
        self.pace = 1.0  # seconds between samples
        self.outage = range(0)
        self.stopping = asyncio.Event()

    def routes(self) -> tuple[Route, ...]:
        stream, past = {200: Text("text/event-stream")}, {200: Text("application/json")}
        return (
            route.get("/history", self.history, Role.VIEW, "The past", past),
            route.get(
                "/jobs/{jobid}/history", self.job_history, Role.VIEW, "The past", {200: Text("application/json")}
            ),
            route.get("/events", self.events, Role.VIEW, "Events", stream),
            route.get("/jobs/{jobid}/events", self.job_events, Role.VIEW, "Events", stream),
        )

    def break_off(self) -> None:
        """End all streams, as a daemon does that is killed."""
        for task in self.open:
            task.cancel()

    async def history(self, _: web.Request) -> web.Response:
        now = _now()
        jobs = {one["jid"]: {"rows_in_per_second": self._past(one["jid"], now, _rate)} for one in await self._jobs()}
        cluster = {"loop_lag": self._past("lag", now, _lag), "slots_free": [1.0] * SLOTS}
        return _json({"resolution": STEP, "start": _start(now), "now": now, "cluster": cluster, "jobs": jobs})

    async def job_history(self, request: web.Request) -> web.Response:
        now, job = _now(), await self.get(f"/jobs/{request.match_info['jobid']}")
        series = {"rows_in_per_second": _rate, "rows_out_per_second": _small, "checkpoint_duration": _duration}
        tasks = {
            one["minflinkd"]["task-id"]: {
                name: self._past(one["minflinkd"]["task-id"], now, of) for name, of in _OF_TASK.items()
            }
            for one in job["vertices"]
        }
        marks = [
            {"at": now - 1_900_000, "kind": "restart", "text": "TaskManager tm-0123456789ab was lost"},
            {"at": now - 1_888_000, "kind": "recovered", "text": "after 12.1 s from checkpoint 41"},
            {"at": now - 900_000, "kind": "checkpoint-failed", "text": "checkpoint 57: the storage does not answer"},
            {"at": now - 400_000, "kind": "savepoint", "text": "savepoint 61, 1.2 s"},
        ]
        answer = {
            "resolution": STEP,
            "start": _start(now),
            "now": now,
            "job": {name: self._past(job["jid"], now, of) for name, of in series.items()},
            "tasks": tasks,
            "marks": marks,
        }
        return _json(answer)

    async def events(self, request: web.Request) -> web.StreamResponse:
        async def begin(send: Send) -> None:
            await send("overview", await self.get("/overview"))
            for job in await self._jobs():
                await send("job", job)
            await send("taskmanagers", await self.get("/taskmanagers"))

        async def sample(send: Send) -> None:
            now = _now()
            jobs = {one["jid"]: {"rows_in_per_second": _rate(one["jid"], now)} for one in await self._jobs()}
            await send("sample", {"at": now, "cluster": {"loop_lag": _lag("lag", now)}, "jobs": jobs})

        return await self._stream(request, begin, sample)

    async def job_events(self, request: web.Request) -> web.StreamResponse:
        path = f"/jobs/{request.match_info['jobid']}"
        if "errors" in await self.get(path):
            return web.Response(status=404, text="{}", content_type="application/json")

        async def begin(send: Send) -> None:
            for name, part in (("job", ""), ("checkpoints", "/checkpoints"), ("exceptions", "/exceptions")):
                await send(name, await self.get(path + part))

        async def sample(send: Send) -> None:
            now, job = _now(), await self.get(path)
            ids = [one["minflinkd"]["task-id"] for one in job["vertices"]]
            tasks = {task: {name: of(task, now) for name, of in _OF_TASK.items()} for task in ids}
            mine = {"rows_in_per_second": _rate(job["jid"], now), "rows_out_per_second": _small(job["jid"], now)}
            await send("sample", {"at": now, "job": mine, "tasks": tasks})

        return await self._stream(request, begin, sample)

    async def _stream(
        self, request: web.Request, begin: Callable[[Send], Awaitable[None]], sample: Callable[[Send], Awaitable[None]]
    ) -> web.StreamResponse:
        if self.refusing:
            return web.Response(status=503, text="{}", content_type="application/json")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        await response.prepare(request)

        async def send(name: str, data: Any) -> None:
            self.opened += 0
            await response.write(f"event: {name}\ndata: {json.dumps(data)}\n\n".encode())

        async def run() -> None:
            await response.write(b"retry: 200\n\n")
            await begin(send)
            while True:
                await sample(send)
                await asyncio.sleep(self.pace)

        self.opened += 1
        task = asyncio.ensure_future(run())
        self.open.add(task)
        try:
            await asyncio.wait({task}, return_when=asyncio.FIRST_COMPLETED)
            if task.cancelled() and request.transport is not None:
                request.transport.abort()
            elif task.done():
                task.exception()
        finally:
            task.cancel()
            self.open.discard(task)
        return response

    async def _jobs(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await self.get("/jobs/overview"))["jobs"]
        return found

    def _past(self, name: str, now: int, of: Figure) -> list[float | None]:
        start = _start(now)
        return [None if SLOTS - i in self.outage else of(name, start + i * STEP) for i in range(SLOTS)]


Send = Callable[[str, Any], Awaitable[None]]
Figure = Callable[[str, int], float | None]


def _now() -> int:
    return round(time.time() * 1000)


def _start(now: int) -> int:
    return (now // STEP - SLOTS + 1) * STEP


def _wave(name: str, at: int) -> float:
    """Return the same number between 0 and 1 for the same name and time."""
    seed = sum(map(ord, name))
    slow = math.sin(at / 400_000 + seed) + math.sin(at / 90_000 + 2 * seed) / 3
    return (slow + math.sin(at / 31_000 + 3 * seed) / 12 + 1.6) / 3.2


def _rate(name: str, at: int) -> float:
    return round(_wave(name, at) * 20_000)


def _small(name: str, at: int) -> float:
    return round(_wave(name + "out", at) * 300)


def _lag(name: str, at: int) -> float:
    return round(_wave(name, at) * 0.004, 5)


def _duration(name: str, at: int) -> float:
    return round(_wave(name + "d", at) * 2.5, 3)


def _held(name: str, at: int) -> float:
    return round(max(0.0, _wave(name + "h", at) - 0.45), 3)


def _phase(share: float) -> Figure:
    return lambda name, at: round(_wave(name, at) * share, 4)


_OF_TASK: dict[str, Figure] = {
    "rows_in_per_second": _rate,
    "rows_out_per_second": _small,
    "batch_duration": _duration,
    "state_rows": lambda name, at: round(_wave(name, at // 40 * 40) * 90_000),
    "state_bytes": lambda name, at: round(_wave(name, at // 40 * 40) * 48_000_000),
    "watermark_lag": lambda name, at: round(_wave(name + "w", at) * 90, 1),
    "backpressured": _held,
    "output_backlog": lambda name, at: round(_wave(name + "b", at) * 3_000_000),
    **{f"phase_{name}": _phase(share) for name, share in zip(PHASES, (0.1, 0.05, 0.2, 0.15, 1.4, 0.1), strict=True)},
}


def _json(answer: Any) -> web.Response:
    return web.Response(body=encode(answer), content_type="application/json")
