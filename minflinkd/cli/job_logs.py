"""The logs of a job, from the TaskManagers that run its tasks or on which it failed last.

For an ended TaskManager, the last lines are printed if its logs are on the daemon's host: they say why it ended.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import click

from minflinkd.cli.client import Client
from minflinkd.cli.endpoint import Refused
from minflinkd.cli.exits import ExitCode, Failure
from minflinkd.cli.job_lines import JobLines
from minflinkd.rest.schemas import JobInfo, Log

_NOT_HERE = (400, 404)  # the daemon's answers about a TaskManager that has left nothing on its host
_MAIN = "taskmanager"  # prefix of the supervisor's log, which is read first because it names the jobs of attempts
ENDED = 100  # lines printed of each log of an ended TaskManager
PAUSE = 0.5  # seconds between two reads of followed logs


@dataclass
class _File:
    """One log, and how far it was read."""

    resource_id: str
    name: str
    lines: JobLines | None  # None: every line is wanted
    offset: int = 0
    rest: bytes = b""  # an incomplete last line

    async def news(self, client: Client, size: int, *, last: bool) -> list[bytes]:
        """Return the wanted lines since the last call; with `last`, an incomplete last line too."""
        if size < self.offset:  # it was rotated
            self.offset, self.rest = 0, b""
        found = [line async for line in self._lines(client)] if size > self.offset else []
        if last and self.rest:
            found.append(self.rest + b"\n")
        return list(self.lines.concern(found)) if self.lines is not None else found

    async def _lines(self, client: Client) -> AsyncIterator[bytes]:
        async for piece in client.read_log(self.resource_id, self.name, offset=self.offset):
            self.offset += len(piece)
            *whole, self.rest = (self.rest + piece).split(b"\n")
            for line in whole:
                yield line + b"\n"


@dataclass
class JobLogs:
    """`name` selects one file on each TaskManager; None: all. With `whole`, lines of other jobs are included."""

    client: Client
    job_id: str
    name: str | None
    whole: bool
    pattern: re.Pattern[bytes] | None = None  # only lines in which it is found
    _files: dict[tuple[str, str], _File] = field(default_factory=dict)
    _shown: tuple[str, str] | None = None
    _follows: bool = False
    _ended: dict[str, tuple[Log, ...]] = field(default_factory=dict)  # of ended TaskManagers, listed once
    _told: set[str] = field(default_factory=set)  # ended TaskManagers that have left nothing here
    _attempts: tuple[str, ...] = ()  # the job's current ones; logs name earlier ones when they are deployed

    async def listed(self) -> dict[str, tuple[Log, ...]]:
        """Return the files by TaskManager. Reports each ended TaskManager once, on stderr."""
        job = await self.client.job(self.job_id)
        wanted = await self._task_managers(job)
        living = {manager.id for manager in (await self.client.task_managers()).taskmanagers}
        found = {}
        for resource_id in wanted:
            if resource_id in living:
                with self._looked_at_again():
                    found[resource_id] = self._chosen((await self.client.logs(resource_id)).logs)
            elif resource_id in self._ended or await self._has_left_logs(resource_id):
                found[resource_id] = self._ended[resource_id]
        self._attempts = tuple(a for vertex in job.vertices if (a := vertex.minflinkd.attempt_id) is not None)
        return found

    def _chosen(self, logs: tuple[Log, ...]) -> tuple[Log, ...]:
        of_name = [log for log in logs if self.name in (None, log.name)]
        return tuple(sorted(of_name, key=lambda log: (not log.name.startswith(_MAIN), log.name)))

    async def _has_left_logs(self, resource_id: str) -> bool:
        """Whether an ended TaskManager has left logs. Reports where they are, because only their ends are printed."""
        place = f"taskmanagers/{resource_id}/log of the state directory"
        try:
            logs = (await self.client.logs(resource_id)).logs
        except Refused as error:
            if error.status not in _NOT_HERE:
                raise
            if resource_id not in self._told:
                self._told.add(resource_id)
                click.echo(f"{resource_id} has ended; its logs are in {place}, on its host", err=True)
            return False
        self._ended[resource_id] = self._chosen(logs)
        click.echo(f"{resource_id} has ended; its logs, of which the end is printed, are in {place}", err=True)
        return True

    async def print(self, *, tail: int | None, follow: bool) -> None:
        """Print the logs; with `tail`, only so many last lines of each file."""
        self._follows = follow
        found = await self.listed()
        if not any(found.values()):
            named = f" named {self.name}" if self.name is not None else ""
            why = "" if found else ": no TaskManager that runs, or ran, its tasks is there"
            raise Failure(f"The job has no logs{named}{why}.", ExitCode.NOT_FOUND)
        while True:
            for resource_id, logs in found.items():
                for log in logs:
                    with self._looked_at_again():
                        await self._print(resource_id, log, tail, last=not follow)
            if not follow:
                return
            await asyncio.sleep(PAUSE)
            tail, found = None, await self.listed()

    @contextmanager
    def _looked_at_again(self) -> Iterator[None]:
        """Tolerate that a TaskManager ends between two requests. With --follow the other logs go on."""
        try:
            yield
        except Refused:
            if not self._follows:
                raise

    async def _task_managers(self, job: JobInfo) -> list[str]:
        running = [vertex.minflinkd.taskmanager_id for vertex in job.vertices]
        failures = (await self.client.exceptions(self.job_id)).history.entries
        return list(dict.fromkeys(filter(None, (*running, *(failure.task_manager_id for failure in failures)))))

    async def _print(self, resource_id: str, log: Log, tail: int | None, *, last: bool) -> None:
        key = (resource_id, log.name)
        if key not in self._files:
            known = (*self._attempts, *self._known_attempts(resource_id))
            self._files[key] = _File(resource_id, log.name, None if self.whole else JobLines(self.job_id, known))
        lines = await self._files[key].news(self.client, log.size, last=last or resource_id in self._ended)
        if self.pattern is not None:
            lines = [line for line in lines if self.pattern.search(line)]
        if tail is None and resource_id in self._ended:
            tail = ENDED
        if tail is not None:
            lines = lines[-tail:] if tail else []
        if not lines:
            return
        if self._shown != key:
            click.echo(f"{'' if self._shown is None else chr(10)}==> {resource_id} {log.name} <==")
            self._shown = key
        sys.stdout.buffer.write(b"".join(lines))
        sys.stdout.buffer.flush()

    def _known_attempts(self, resource_id: str) -> set[str]:
        """Return the job's known attempts. Spark's log names only attempts; the supervisor's names their jobs."""
        files = (file for (of, _), file in self._files.items() if of == resource_id)
        return {attempt for file in files if file.lines is not None for attempt in file.lines.attempts}
