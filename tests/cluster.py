"""A real daemon with real TaskManagers for tests: its own process, on free ports, in a directory that goes with it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psutil

from minflinkd.cli.client import Client
from minflinkd.cli.submission import submit
from minflinkd.rest.schemas import JobInfo, TaskManager

T = TypeVar("T")
PAUSE = 0.05  # seconds between two looks at a condition


async def until(
    what: str, condition: Callable[[], Awaitable[T | None]], *, timeout: float = 60.0, pause: float = PAUSE
) -> T:
    """The first true answer of `condition`. Fails by naming what was waited for."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if found := await condition():
            return found
        await asyncio.sleep(pause)
    raise AssertionError(f"waited {timeout:g} s in vain for: {what}")


@dataclass
class Cluster:
    """A daemon under test. Every wait is bounded."""

    client: Client
    process: asyncio.subprocess.Process
    state: Path
    jobs: list[str] = field(default_factory=list)

    @property
    def log(self) -> str:
        return (self.state.parent / "daemon.log").read_text(errors="replace")

    # --- TaskManagers ---

    async def task_managers(self, *, ready: bool = True) -> list[TaskManager]:
        found = (await self.client.task_managers()).taskmanagers
        return [tm for tm in found if tm.minflinkd.session == "ready" or not ready]

    async def await_ready(self, count: int, *, timeout: float = 150.0) -> list[TaskManager]:
        async def enough() -> list[TaskManager] | None:
            found = await self.task_managers()
            return found if len(found) >= count else None

        return await until(f"{count} TaskManagers with a ready session", enough, timeout=timeout, pause=0.2)

    async def task_manager_of(self, job_id: str) -> TaskManager:
        """That which runs the job's first task."""
        runs_on = (await self.client.job(job_id)).vertices[0].minflinkd.taskmanager_id
        return next(tm for tm in await self.task_managers(ready=False) if tm.id == runs_on)

    # --- jobs ---

    async def submit(self, file: Path, **params: Any) -> str:
        job_id = (await submit(self.client, file, params=params, tell=lambda _: None)).jobid
        self.jobs.append(job_id)
        return job_id

    async def await_job(
        self, job_id: str, condition: Callable[[JobInfo], bool], what: str, *, timeout: float = 90.0
    ) -> JobInfo:
        async def reached() -> JobInfo | None:
            job = await self.client.job(job_id)
            if condition(job):
                return job
            if job.state == "FAILED":
                raise AssertionError(f"the job FAILED: {(await self.client.exceptions(job_id)).root_exception}")
            return None

        return await until(f"job {job_id} {what}", reached, timeout=timeout)

    async def await_state(self, job_id: str, state: str, *, timeout: float = 90.0) -> JobInfo:
        return await self.await_job(job_id, lambda job: job.state == state, f"is {state}", timeout=timeout)

    async def await_checkpoints(self, job_id: str, count: int, *, timeout: float = 60.0) -> None:
        async def enough() -> bool:
            return (await self.client.checkpoints(job_id)).counts.completed >= count

        await until(f"{count} checkpoints of {job_id}", enough, timeout=timeout)

    async def cancel(self, job_id: str) -> None:
        await self.client.cancel(job_id)
        await self.await_state(job_id, "CANCELED")


@contextlib.asynccontextmanager
async def running_cluster(base: Path, **settings: object) -> AsyncIterator[Cluster]:
    """Start a daemon in `base/state`; at the end stop it, and see that it leaves no process."""
    base.mkdir(parents=True, exist_ok=True)
    values = {"rest.port": 0, "restart-strategy.exponential-delay.initial-backoff": "100 ms", **settings}
    options = [part for key, value in values.items() for part in ("--set", f"{key}={value}")]
    state = base / "state"
    with (base / "daemon.log").open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "minflinkd", "serve", "--state-dir", str(state), *options),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    brood: set[psutil.Process] = set()
    try:
        url = await until("a ready daemon", lambda: _url(state, process), timeout=30)
        async with Client(url) as client:
            cluster = Cluster(client, process, state)
            yield cluster
            for job_id in cluster.jobs:
                with contextlib.suppress(Exception):  # most have ended
                    await client.cancel(job_id)
            brood = set(psutil.Process(process.pid).children(recursive=True))
    finally:
        await _end(process, brood)


async def _url(state: Path, process: asyncio.subprocess.Process) -> str | None:
    if process.returncode is not None:
        log = (state.parent / "daemon.log").read_text(errors="replace")
        raise AssertionError(f"the daemon ended with {process.returncode}:\n{log[-4000:]}")
    with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
        return str(json.loads((state / "daemon.json").read_bytes())["url"])
    return None


async def _end(process: asyncio.subprocess.Process, brood: set[psutil.Process]) -> None:
    if process.returncode is None:
        process.terminate()
        try:
            async with asyncio.timeout(40):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            raise AssertionError("the daemon did not end within 40 s of SIGTERM") from None
    _, alive = await asyncio.to_thread(psutil.wait_procs, list(brood), 10)
    for leftover in alive:
        with contextlib.suppress(psutil.Error):
            leftover.kill()
    assert not alive, f"the daemon left processes behind: {[p.cmdline()[:4] for p in alive if p.is_running()]}"


def write_job(path: Path, document: dict[str, Any]) -> Path:
    """A job file."""
    path.write_text(json.dumps(document, indent=1))  # JSON is YAML
    return path
