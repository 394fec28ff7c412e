"""A job as it runs, on a terminal or in a log: state, rows and checkpoints, until it has ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

import click
from rich.live import Live
from rich.text import Text

from minflinkd.cli.client import Client, DaemonUnreachable, Refused
from minflinkd.cli.text import console, duration, size
from minflinkd.rest.schemas import Checkpoints, JobInfo

PAUSE = 0.25  # seconds between two looks
LINE_PAUSE = 1.0  # seconds between two lines, where there is no terminal
PATIENCE = 60.0  # seconds without a daemon, which may be restarting, before the watch is given up

ENDED = frozenset({"FINISHED", "FAILED", "CANCELED"})


@dataclass(frozen=True)
class Progress:
    """What is told of a job in one line."""

    state: str
    tasks_running: int
    tasks: int
    rows_in: int
    rows_out: int
    rows_per_second: float
    checkpoints: int
    checkpoints_failed: int
    state_bytes: int
    restarts: int

    @classmethod
    def of(cls, job: JobInfo, checkpoints: Checkpoints) -> Progress:
        last = checkpoints.latest.completed
        return cls(
            state=job.state,
            tasks_running=job.status_counts.running,
            tasks=len(job.vertices),
            rows_in=sum(vertex.metrics.read_records for vertex in job.vertices),
            rows_out=sum(vertex.metrics.write_records for vertex in job.vertices),
            rows_per_second=sum(vertex.minflinkd.rows_per_second for vertex in job.vertices),
            checkpoints=checkpoints.counts.completed,
            checkpoints_failed=checkpoints.counts.failed,
            state_bytes=last.state_size if last else 0,
            restarts=job.minflinkd.restarts,
        )

    def line(self) -> str:
        parts = [f"{self.state:<12} tasks {self.tasks_running}/{self.tasks}"]
        parts.append(f"rows in {self.rows_in:,}, out {self.rows_out:,} ({self.rows_per_second:,.0f}/s)")
        failed = f", {self.checkpoints_failed} failed" if self.checkpoints_failed else ""
        parts.append(f"checkpoints {self.checkpoints}{failed} ({size(self.state_bytes)})")
        if self.restarts:
            parts.append(f"restarts {self.restarts}")
        return "  ".join(parts)


async def watch(
    client: Client, job_id: str, *, on_progress: Callable[[JobInfo, Progress], None] | None = None
) -> JobInfo:
    """Show a job until it has ended, and return what it was. Raises Refused, and DaemonUnreachable after PATIENCE."""
    target = console()
    if not target.is_terminal:
        return await _follow(client, job_id, _Lines(), on_progress)
    with Live(console=target, refresh_per_second=8, transient=False) as live:
        started = time.monotonic()

        def show(line: str) -> None:
            live.update(Text(f"{line}  {duration((time.monotonic() - started) * 1000)}"))

        return await _follow(client, job_id, show, on_progress)


class _Lines:
    """A line when something changed, at most one a LINE_PAUSE; the last one always."""

    def __init__(self) -> None:
        self._shown = ""
        self._next = 0.0

    def __call__(self, line: str) -> None:
        now = time.monotonic()
        ended = line.split()[0] in ENDED
        if line != self._shown and (ended or now >= self._next):
            click.echo(line, err=True)
            self._shown, self._next = line, now + LINE_PAUSE


async def _follow(
    client: Client,
    job_id: str,
    show: Callable[[str], None],
    on_progress: Callable[[JobInfo, Progress], None] | None,
) -> JobInfo:
    lost: float | None = None
    while True:
        try:
            job, checkpoints = await client.job(job_id), await client.checkpoints(job_id)
        except (DaemonUnreachable, Refused) as error:
            now = time.monotonic()
            lost = now if lost is None else lost
            away = isinstance(error, DaemonUnreachable) or error.status == 503
            if not away or now - lost > PATIENCE:
                raise
            show(f"the daemon does not answer; the job may go on without it ({now - lost:.0f} s)")
        else:
            lost = None
            progress = Progress.of(job, checkpoints)
            show(progress.line())
            if on_progress is not None:
                on_progress(job, progress)
            if job.state in ENDED:
                return job
        await asyncio.sleep(PAUSE)
