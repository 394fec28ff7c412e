"""Shows a running job, on a terminal or in a log: state, rows and checkpoints, until it has ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass

import click
from rich.live import Live
from rich.text import Text

from minflinkd.cli.client import Client
from minflinkd.cli.text import Part, console, duration, fit, short, size, stderr_width
from minflinkd.rest.schemas import Checkpoints, JobInfo
from minflinkd.runtime.errors import MinflinkError

BRIEF = 0.5  # seconds without a connection that are not worth a line
PATIENCE = 60.0  # seconds without a daemon, which may be restarting, before giving up

ENDED = frozenset({"FINISHED", "FAILED", "CANCELED"})

Line = Callable[[int | None, str], str]  # (columns, elapsed time) -> the text to show
Show = Callable[[Line, str], None]  # with the phase that the job is in


@dataclass(frozen=True)
class Progress:
    """What one line says about a job."""

    state: str
    tasks_running: int  # or FINISHED
    tasks: int
    rows_in: int
    rows_out: int
    rows_per_second: float
    checkpoints: int
    checkpoints_failed: int
    state_bytes: int
    restarts: int
    repeatedly: bool = False

    @classmethod
    def of(cls, job: JobInfo, checkpoints: Checkpoints) -> Progress:
        last = checkpoints.latest.completed
        return cls(
            state=job.state,
            tasks_running=job.status_counts.running + job.status_counts.finished,
            tasks=len(job.vertices),
            rows_in=job.minflinkd.source_records,
            rows_out=job.minflinkd.sink_records,
            rows_per_second=job.minflinkd.source_records_per_second,
            checkpoints=checkpoints.counts.completed,
            checkpoints_failed=checkpoints.counts.failed,
            state_bytes=last.state_size if last else 0,
            restarts=job.minflinkd.restarts,
            repeatedly=job.minflinkd.restarting_repeatedly is not None,
        )

    @property
    def phase(self) -> str:
        """What a log has a line for: state, tasks, restarts, and whether checkpoints complete or fail."""
        completes = "checkpoints complete" if self.checkpoints else ""
        return f"{self.state} {self.tasks_running}/{self.tasks} {self.restarts} {completes} {self.checkpoints_failed}"

    def line(self, width: int | None = None, elapsed: str = "") -> str:
        """Format in at most `width` columns. Time and exact numbers are dropped first, the state last."""
        rate = self.rows_per_second
        exact = f"rows in {self.rows_in:,}, out {self.rows_out:,}"
        short_rows = f"rows {short(self.rows_in)} in, {short(self.rows_out)} out"
        failed = f", {self.checkpoints_failed} failed" if self.checkpoints_failed else ""
        restarts = f"restarts {self.restarts}" if self.restarts else ""
        done = f"checkpoints {self.checkpoints}{failed}"
        parts = [
            Part((f"{self.state:<11}", self.state), rank=5),
            Part((f"tasks {self.tasks_running}/{self.tasks}",), rank=3),
            Part((f"{exact} ({rate:,.0f}/s)", f"{short_rows}, {short(rate)}/s", short_rows), rank=2),
            Part((f"{done} ({size(self.state_bytes)})", done, f"cp {self.checkpoints}{failed}"), rank=1),
            Part((f"{restarts}, repeatedly" if self.repeatedly else restarts,), rank=4),
            Part((elapsed,), rank=0),
        ]
        return fit(parts, width)


async def watch(
    client: Client, job_id: str, *, on_progress: Callable[[JobInfo, Progress], None] | None = None
) -> JobInfo:
    """Show a job until it has ended, and return its end. Raises Refused, and DaemonUnreachable after PATIENCE."""
    target = console()
    if not target.is_terminal:
        return await follow(client, job_id, _Lines(), on_progress)
    with Live(console=target, refresh_per_second=8, transient=False) as live:
        started = time.monotonic()

        def show(line: Line, _: str) -> None:
            elapsed = duration((time.monotonic() - started) * 1000)
            live.update(Text(line(target.width, elapsed), no_wrap=True, overflow="ellipsis"))

        return await follow(client, job_id, show, on_progress)


class _Lines:
    """Prints a line for each phase."""

    def __init__(self) -> None:
        self._phase = ""

    def __call__(self, text: Line, phase: str) -> None:
        if phase != self._phase:
            self._phase = phase
            click.echo(text(stderr_width(), ""), err=True)


async def follow(
    client: Client,
    job_id: str,
    show: Show,
    on_progress: Callable[[JobInfo, Progress], None] | None = None,
) -> JobInfo:
    """Like `watch`, but `show` shows the lines. Raises what `watch` raises."""

    def away(error: MinflinkError, seconds: float) -> None:
        if seconds > BRIEF:
            text = f"the daemon does not answer; the job may go on without it ({seconds:.0f} s)"
            show(lambda width, _: text[:width], "away")

    job: JobInfo | None = None
    checkpoints: Checkpoints | None = None
    async with aclosing(client.events(f"/jobs/{job_id}/events", patience=PATIENCE, lost=away)) as events:
        async for event in events:
            match event.name:
                case "job":
                    job = event.read_as(JobInfo)
                case "checkpoints":
                    checkpoints = event.read_as(Checkpoints)
                case _:
                    continue
            if job is None or checkpoints is None:
                continue
            progress = Progress.of(job, checkpoints)
            show(progress.line, progress.phase)
            if on_progress is not None:
                on_progress(job, progress)
            if job.state in ENDED:
                return job
    raise AssertionError("events end with an error")
