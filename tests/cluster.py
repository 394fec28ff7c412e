"""A real daemon with real TaskManagers for tests: a process of its own, on free ports, in a directory of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from minflinkd.cli.client import Client
from minflinkd.cli.credentials import Credentials
from minflinkd.cli.job_files import JobFile
from minflinkd.cli.submission import submit
from minflinkd.rest.schemas import JobInfo, TaskManager
from minflinkd.runtime.errors import MinflinkError
from tests.class_archives import CLASS_ARCHIVES
from tests.servers.process import free_ports
from tests.tokens import bearer
from tests.waiting import PATIENCE, until

CONFIG = "minflinkd.yaml"
RELOADED = "configuration reloaded"  # what the daemon logs


@dataclass
class Cluster:
    """A daemon under test. Every wait is bounded."""

    client: Client
    process: asyncio.subprocess.Process
    launch: Launch
    settings: Mapping[str, object]
    url: str  # of this daemon; the client's may be that of the leader to which this one redirects
    jobs: list[str] = field(default_factory=list)

    @property
    def state(self) -> Path:
        return self.launch.state

    @property
    def headers(self) -> dict[str, str]:
        """For a test's own HTTP client: the daemon's token."""
        return bearer(self.state)

    @property
    def log(self) -> str:
        return (self.launch.base / "daemon.log").read_text(errors="replace")

    async def kill(self) -> None:
        """Kill the daemon with SIGKILL."""
        self.process.kill()
        await self.process.wait()

    async def hand_over(self) -> None:
        """Let the daemon end by `minflinkd handover`, and return when it has."""
        command = ("-m", "minflinkd", "handover", "--url", self.url)
        waiting = await asyncio.create_subprocess_exec(sys.executable, *command)
        assert await asyncio.wait_for(waiting.wait(), 60 * PATIENCE) == 0
        # If another daemon leads then, this one may still be ending.
        left = 60 * PATIENCE if "high-availability.type" in self.settings else 1.0
        assert await asyncio.wait_for(self.process.wait(), left) == 0, "the command returned too soon"

    async def stop(self) -> None:
        """Stop the daemon with SIGTERM, and return when it has ended."""
        self.process.terminate()
        assert await asyncio.wait_for(self.process.wait(), 40 * PATIENCE) == 0

    async def start_again(self) -> None:
        """Start the daemon again with all that it has stored.

        It needs a fixed `rest.port`. Otherwise the client cannot find it.
        """
        self.process = await self.launch.start()
        await self.launch.url(self.process)

    @contextlib.asynccontextmanager
    async def configured(self, **settings: object) -> AsyncIterator[None]:
        """Apply these settings while the block runs. They must be settings that a reload applies."""
        before = self.settings
        await self._reload({**before, **settings})
        try:
            yield
        finally:
            await self._reload(before)

    async def _reload(self, settings: Mapping[str, object]) -> None:
        reloads, self.settings = self.log.count(RELOADED), settings
        _write_settings(self.launch.base, settings)
        self.process.send_signal(signal.SIGHUP)

        async def applied() -> bool:
            return self.log.count(RELOADED) > reloads

        await until(applied, "the configuration is reloaded", timeout=10)

    # --- TaskManagers ---

    async def task_managers(self, *, ready: bool = True) -> list[TaskManager]:
        found = (await self.client.task_managers()).taskmanagers
        return [tm for tm in found if tm.minflinkd.session == "ready" or not ready]

    async def await_ready(self, count: int, *, timeout: float = 150.0) -> list[TaskManager]:
        async def enough() -> list[TaskManager] | None:
            found = await self.task_managers()
            return found if len(found) >= count else None

        return await until(enough, f"{count} TaskManagers with a ready session", timeout=timeout, pause=0.2)

    async def await_count(self, count: int, *, timeout: float = 60.0) -> list[TaskManager]:
        """Wait until there are exactly `count` TaskManagers, each with a ready session."""

        async def exact() -> list[TaskManager] | None:
            found = await self.task_managers(ready=False)
            return found if len(found) == count and all(tm.minflinkd.session == "ready" for tm in found) else None

        return await until(exact, f"{count} TaskManagers, all ready", timeout=timeout, pause=0.2)

    async def task_manager_of(self, job_id: str) -> TaskManager:
        """Return the TaskManager that runs the job's first task."""
        runs_on = (await self.client.job(job_id)).vertices[0].minflinkd.taskmanager_id
        return next(tm for tm in await self.task_managers(ready=False) if tm.id == runs_on)

    async def measured(self, resource_id: str) -> TaskManager:
        """Return the TaskManager with the metrics of a heartbeat: updates between two heartbeats carry no metrics."""

        async def with_metrics() -> TaskManager | None:
            found = {tm.id: tm for tm in await self.task_managers()}.get(resource_id)
            return found if found is not None and found.minflinkd.metrics.get("jvm.pid") else None

        return await until(with_metrics, f"a heartbeat of {resource_id} with its session's processes")

    # --- jobs ---

    async def submit(self, file: JobFile, **params: Any) -> str:
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

        return await until(reached, f"job {job_id} {what}", timeout=timeout)

    async def await_state(self, job_id: str, state: str, *, timeout: float = 90.0) -> JobInfo:
        return await self.await_job(job_id, lambda job: job.state == state, f"is {state}", timeout=timeout)

    async def await_checkpoints(self, job_id: str, count: int, *, timeout: float = 60.0) -> None:
        async def enough() -> bool:
            return (await self.client.checkpoints(job_id)).counts.completed >= count

        await until(enough, f"{count} checkpoints of {job_id}", timeout=timeout)

    async def cancel_all(self) -> None:
        """Cancel the jobs submitted here that still run."""
        running, self.jobs = self.jobs, []
        for job_id in running:
            with contextlib.suppress(MinflinkError):  # most have ended
                await self.client.cancel(job_id)

    async def cancel(self, job_id: str) -> None:
        await self.client.cancel(job_id)
        await self.await_state(job_id, "CANCELED")


FOR_TESTS: Mapping[str, object] = {
    "rest.port": 0,
    "restart-strategy.exponential-delay.initial-backoff": "100 ms",
    # How long a submission waits for a session, too. Two cores start several sessions while other tests run.
    "resourcemanager.taskmanager-registration.timeout": "5 min",
    "taskmanager.session.class-archive.dir": str(CLASS_ARCHIVES),
}


@contextlib.asynccontextmanager
async def running_cluster(
    base: Path,
    *,
    environ: Mapping[str, str] | None = None,
    serve: Sequence[str] = ("-m", "minflinkd", "serve"),
    ca_file: Path | None = None,
    **settings: object,
) -> AsyncIterator[Cluster]:
    """Start a daemon in `base/state`. At the end stop it, and check that it leaves no process behind.

    `environ` is the daemon's environment, in place of this process's. `serve` is what Python runs. `ca_file`: the CA of
    a daemon with TLS.
    """
    base.mkdir(parents=True, exist_ok=True)
    values = {**FOR_TESTS, **settings}
    launch = Launch(base, tuple(serve), None if environ is None else dict(environ))
    _write_settings(base, values)
    process = await launch.start()
    cluster: Cluster | None = None
    try:
        url = await launch.url(process)
        # Whoever names a CA means the TLS port, and not the Unix socket, which needs no token.
        own = None if ca_file is None else Credentials(token_file=launch.state / "http.token")
        async with Client(url, ca_file=None if ca_file is None else str(ca_file), credentials=own) as client:
            cluster = Cluster(client, process, launch, values, url)
            yield cluster
            await cluster.cancel_all()
    finally:
        await _end(cluster.process if cluster is not None else process)


@dataclass(frozen=True)
class Launch:
    """How to start the daemon of one directory."""

    base: Path
    serve: tuple[str, ...]
    environ: dict[str, str] | None

    @property
    def state(self) -> Path:
        return self.base / "state"

    async def start(self) -> asyncio.subprocess.Process:
        (self.state / "daemon.json").unlink(missing_ok=True)
        with (self.base / "daemon.log").open("ab") as output:
            return await asyncio.create_subprocess_exec(
                sys.executable,
                *(*self.serve, "--state-dir", str(self.state), "--config", str(self.base / CONFIG)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self.environ,
                start_new_session=True,
            )

    async def url(self, process: asyncio.subprocess.Process) -> str:
        """Return the daemon's address once it is ready."""
        return await until(lambda: _url(self.state, process), "a ready daemon", timeout=30, pause=0.02)


def _write_settings(base: Path, settings: Mapping[str, object]) -> None:
    """Write the daemon's configuration file: one option on each line, in JSON, which is YAML."""
    (base / CONFIG).write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in settings.items()))


def lives(process: psutil.Process) -> bool:
    """Whether the process lives. A zombie does not: not every init reaps the orphans that it adopts."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def free_port() -> int:
    """Return a port that is free now, for a daemon that must keep its address when it starts again.

    The kernel gives it to nobody who asks for any free port, so it is still free when the daemon binds it.
    """
    return free_ports(["port"])["port"]


async def _url(state: Path, process: asyncio.subprocess.Process) -> str | None:
    if process.returncode is not None:
        log = (state.parent / "daemon.log").read_text(errors="replace")
        raise AssertionError(f"the daemon ended with {process.returncode}:\n{log[-4000:]}")
    with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
        return str(json.loads((state / "daemon.json").read_bytes())["url"])
    return None


async def _end(process: asyncio.subprocess.Process) -> None:
    brood: list[psutil.Process] = []
    if process.returncode is None:
        brood = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        try:
            async with asyncio.timeout(40 * PATIENCE):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            raise AssertionError(f"the daemon did not end within {40 * PATIENCE:g} s of SIGTERM") from None
    _, alive = await asyncio.to_thread(psutil.wait_procs, brood, 30)
    for leftover in alive:
        with contextlib.suppress(psutil.Error):
            leftover.kill()
    assert not alive, f"the daemon left processes behind: {[p.cmdline()[:4] for p in alive if p.is_running()]}"


def write_job(path: Path, document: dict[str, Any]) -> Path:
    """Write a job file."""
    path.write_text(json.dumps(document, indent=1))  # JSON is YAML
    return path
