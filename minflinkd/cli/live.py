"""`minflinkd watch`: a cluster or a job, live."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import click

from minflinkd.cli.completing import jobs
from minflinkd.cli.connection import Connection, connection_options
from minflinkd.cli.exits import ExitCode
from minflinkd.cli.find import find_job
from minflinkd.cli.output import Output, document, wanted

if TYPE_CHECKING:
    import asyncio

    from minflinkd.cli.client import Client  # it imports aiohttp: only commands that need a daemon pay for that
    from minflinkd.cli.event_stream import ServerEvent
    from minflinkd.runtime.errors import MinflinkError

_LEAVE = frozenset(b"qQ\x03\x04")  # also Ctrl-C and Ctrl-D, which are keys while lines are not edited
_ENDED = frozenset({"FINISHED", "FAILED", "CANCELED"})


@click.command()
@click.argument("job", required=False, shell_complete=jobs)
@connection_options
def watch(connection: Connection, job: str | None) -> None:
    """Watch the cluster, or JOB, until you press q. Jobs that need somebody come first.

    JOB is an id, the beginning of one, or a name. It is a live view on a terminal: rates with a small chart (from 100
    columns), checkpoints, restarts, backpressure (HELD), watermarks (LAG). Elsewhere each change is a line; with --json
    each event of the daemon. A connection that is lost is said and mended. Watching a job ends with the job.

    \b
    Exit codes: 0 you have left, or the job is FINISHED; 1 it is FAILED or CANCELED; 3 no daemon for a minute; 4 there
    is no such job.

    \b
    Examples:
      minflinkd watch
      minflinkd watch clicks
      minflinkd watch clicks >> changes.log
      minflinkd watch --json | jq -c 'select(.event == "job").data.state'
    """

    async def show(client: Client) -> ExitCode | None:
        job_id = None if job is None else await find_job(client, job)
        if connection.as_json:
            return await _as_documents(client, job_id, wanted())
        if sys.stdout.isatty():
            return await _live(client, job_id)
        return await _as_lines(client, job_id)

    connection.run(show)


def _path(job_id: str | None) -> str:
    return "/events" if job_id is None else f"/jobs/{job_id}/events"


async def _as_documents(client: Client, job_id: str | None, form: Output) -> ExitCode | None:
    import msgspec

    async for event in client.events(_path(job_id)):
        told = document({"event": event.name, "data": msgspec.Raw(event.data)}, form)
        click.echo(f"---\n{told}" if form is Output.YAML else told)
        if job_id is not None and (code := _end(event)) is not None:
            return code
    return None


async def _as_lines(client: Client, job_id: str | None) -> ExitCode | None:
    from minflinkd.cli import live_changes
    from minflinkd.cli.live_state import ClusterState, JobState

    cluster, of_job, away = ClusterState(), JobState(), False

    def lost(error: MinflinkError, _: float) -> None:
        nonlocal away
        if not away:
            _say(f"no connection: {error.message}")
        away = True

    async for event in client.events(_path(job_id), lost=lost):
        if away:
            _say("connected again")
            away = False
        if job_id is None:
            before, cluster = cluster, cluster.after(event.name, event.data)
            # After a reset, what comes again is compared with what was known.
            changes = live_changes.of_cluster(before, cluster) if event.name != "reset" else iter(())
        else:
            known, of_job = of_job, of_job.after(event.name, event.data)
            changes = live_changes.of_job(known, of_job) if event.name != "reset" else iter(())
        for line in changes:
            _say(line)
        if job_id is not None and (code := _end(event)) is not None:
            return code
    return None


def _say(text: str) -> None:
    from datetime import datetime

    click.echo(f"{datetime.now().astimezone():%Y-%m-%d %H:%M:%S}  {text}")
    sys.stdout.flush()


def _end(event: ServerEvent) -> ExitCode | None:
    """Return the exit code if the job has ended."""
    from minflinkd.rest.schemas import JobInfo

    if event.name != "job":
        return None
    state = event.read_as(JobInfo).state
    return None if state not in _ENDED else ExitCode.OK if state == "FINISHED" else ExitCode.JOB_ENDED_BADLY


async def _live(client: Client, job_id: str | None) -> ExitCode | None:
    import asyncio

    from rich.live import Live

    from minflinkd.cli.text import console

    target = console()
    left = asyncio.Event()
    screen = _Screen(client, job_id)
    with Live(console=target, screen=True, auto_refresh=False) as live, _keys(left):
        events = asyncio.ensure_future(screen.follow())
        leaving = asyncio.ensure_future(left.wait())
        try:
            while not (events.done() or leaving.done()):
                live.update(screen.drawn(target.width, target.height), refresh=True)
                await asyncio.wait({events, leaving}, timeout=0.5, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (events, leaving):
                task.cancel()
            await asyncio.wait({events, leaving})
    code = None
    with suppress(asyncio.CancelledError):
        code = events.result()
    if screen.last:
        click.echo(screen.last)
    return code


class _Screen:
    """What is drawn: it is drawn twice a second, however many events there are."""

    def __init__(self, client: Client, job_id: str | None) -> None:
        from minflinkd.cli.live_state import ClusterState, JobState

        self._client = client
        self._job_id = job_id
        self._cluster, self._job = ClusterState(), JobState()
        self._note = ""
        self.last = ""  # what to say when the view is gone

    async def follow(self) -> ExitCode | None:
        async for event in self._client.events(_path(self._job_id), lost=self._lost):
            self._note = ""
            if self._job_id is None:
                self._cluster = self._cluster.after(event.name, event.data)
                continue
            self._job = self._job.after(event.name, event.data)
            if (code := _end(event)) is not None and self._job.job is not None:
                self.last = f"{self._job.job.name} is {self._job.job.state}."
                return code
        return None

    def drawn(self, width: int, rows: int) -> Any:
        from minflinkd.cli import live_view

        url = self._client.url
        if self._job_id is None:
            return live_view.of_cluster(self._cluster, url=url, width=width, rows=rows, note=self._note)
        return live_view.of_job(self._job, url=url, width=width, rows=rows, note=self._note)

    def _lost(self, error: MinflinkError, away: float) -> None:
        self._note = f"no connection for {away:.0f} s; the jobs may go on"


@contextmanager
def _keys(left: asyncio.Event) -> Iterator[None]:
    """Set the event when the user wants to leave. Without a keyboard, nobody does."""
    import asyncio
    import termios
    import tty

    try:
        keyboard = sys.stdin.fileno()
        before = termios.tcgetattr(keyboard)
    except (OSError, ValueError, termios.error):
        yield
        return

    def pressed() -> None:
        with suppress(OSError):
            if not (keys := os.read(keyboard, 64)) or _LEAVE.intersection(keys):
                left.set()

    loop = asyncio.get_running_loop()
    tty.setcbreak(keyboard)
    loop.add_reader(keyboard, pressed)
    try:
        yield
    finally:
        loop.remove_reader(keyboard)
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
