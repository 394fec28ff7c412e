"""`minflinkd logs`: a TaskManager's log files, or the lines in them that concern a job."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, NamedTuple

import click

from minflinkd.cli.completing import jobs_and_task_managers
from minflinkd.cli.connection import Connection, connection_options
from minflinkd.cli.exits import ExitCode, Failure
from minflinkd.cli.find import find_job, find_task_manager
from minflinkd.cli.near import did_you_mean
from minflinkd.cli.output import print_json
from minflinkd.cli.text import print_table, size

if TYPE_CHECKING:
    from minflinkd.cli.client import Client  # it imports aiohttp: only commands that need a daemon pay for that
    from minflinkd.rest.schemas import Log

_MAIN = ("taskmanager", "minflinkd")  # how the main log of a TaskManager and of a daemon begins
_PREFIX = "tm-"  # of every TaskManager's id
_LINE = 300  # estimated bytes of a line, to read the last lines of a log
_PAUSE = 0.5  # seconds between two reads of a followed log


class Lines(NamedTuple):
    """Which lines of a log are wanted."""

    tail: int | None
    follow: bool
    pattern: re.Pattern[bytes] | None

    def wants(self, line: bytes) -> bool:
        return self.pattern is None or self.pattern.search(line) is not None


@click.command()
@click.argument("whose", required=False, metavar="[TASKMANAGER|JOB]", shell_complete=jobs_and_task_managers)
@click.argument("name", required=False)
@click.option(
    "-j",
    "--job",
    is_flag=True,
    help="The first argument is a JOB, even if a TaskManager's id begins with it.",
)
@click.option("-d", "--daemon", is_flag=True, help="The daemon's own log.")
@click.option("-g", "--grep", "pattern", metavar="REGEX", help="Only lines in which this regular expression is found.")
@click.option("-i", "--ignore-case", is_flag=True, help="For --grep.")
@click.option("--whole", is_flag=True, help="For a job: every line of its TaskManagers' logs, other jobs' included.")
@click.option("-l", "--list", "names_only", is_flag=True, help="Only list the files.")
@click.option("-n", "--tail", type=click.IntRange(0), metavar="LINES", help="Only about the last LINES lines.")
@click.option("-f", "--follow", is_flag=True, help="Keep printing what is added, until Ctrl-C.")
@connection_options
def logs(
    connection: Connection,
    whose: str | None,
    name: str | None,
    job: bool,
    daemon: bool,
    pattern: str | None,
    ignore_case: bool,
    whole: bool,
    names_only: bool,
    tail: int | None,
    follow: bool,
) -> None:
    """Print the logs of a job, a log of a TaskManager, or of the daemon: NAME, or its main log.

    JOB is an id, the beginning of one, or a name. Its logs are those of the TaskManagers that run its tasks, or that
    it failed on: all files, or NAME of each. Lines about other jobs are left out; what user code prints is always
    shown. TASKMANAGER is an id or the beginning of one, and may be left out if there is only one. With
    --json the files are listed.

    \b
    Examples:
      minflinkd logs clicks --tail 50
      minflinkd logs clicks session.log --follow
      minflinkd logs clicks --follow --grep 'error|warn' --ignore-case
      minflinkd logs --daemon --tail 100
      minflinkd logs
      minflinkd logs tm-3f --list
      minflinkd logs tm-3f session.log --tail 50 --follow
    """
    if job and whose is None:
        raise click.UsageError("--job says what the first argument is: name a JOB.")
    if daemon and (job or name is not None):
        raise click.UsageError("The daemon has logs of its own: --daemon takes at most the NAME of one of them.")
    selected = Lines(tail, follow, _compiled(pattern, ignore_case=ignore_case))

    async def show(client: Client) -> None:
        if daemon:
            await _of_one(connection, client, None, whose, names_only, selected)
            return
        if whose is not None and (job or not await _is_task_manager(client, whose)):
            await _of_job(connection, client, whose, name, whole, names_only, selected)
            return
        await _of_one(connection, client, await find_task_manager(client, whose), name, names_only, selected)

    connection.run(show)


def _compiled(pattern: str | None, *, ignore_case: bool) -> re.Pattern[bytes] | None:
    """Raises click.UsageError."""
    if pattern is None:
        if ignore_case:
            raise click.UsageError("--ignore-case says how --grep looks: add --grep REGEX.")
        return None
    try:
        return re.compile(pattern.encode(), re.IGNORECASE if ignore_case else 0)
    except re.error as error:
        raise click.BadParameter(f"{pattern!r} is no regular expression: {error}", param_hint="--grep") from None


async def _of_one(
    connection: Connection, client: Client, whose: str | None, name: str | None, names_only: bool, selected: Lines
) -> None:
    """Print a log of a TaskManager, or of the daemon (None)."""
    files = (await client.logs(whose)).logs
    if connection.as_json:
        from minflinkd.rest.schemas import Logs

        print_json(Logs(logs=files))
    elif names_only:
        print_table(["LOG", ">SIZE"], ([file.name, size(file.size)] for file in files), empty="It has no logs yet.")
    else:
        await _print(client, whose, _chosen(files, name), selected)


async def _is_task_manager(client: Client, text: str) -> bool:
    """Whether it is a TaskManager or looks like one, so that an ended one is not searched for among the jobs."""
    known = [info.id for info in (await client.task_managers()).taskmanagers]
    return text.startswith(_PREFIX) or any(name.startswith(text) for name in known)


async def _of_job(
    connection: Connection,
    client: Client,
    text: str,
    name: str | None,
    whole: bool,
    names_only: bool,
    selected: Lines,
) -> None:
    from minflinkd.cli.job_logs import JobLogs

    of_job = JobLogs(client, await find_job(client, text), name, whole, selected.pattern)
    if not (connection.as_json or names_only):
        await of_job.print(tail=selected.tail, follow=selected.follow)
        return
    found = await of_job.listed()
    if connection.as_json:
        managers = [{"id": manager, "logs": files} for manager, files in found.items()]
        print_json({"job": of_job.job_id, "taskmanagers": managers})
    else:
        rows = ([manager, file.name, size(file.size)] for manager, files in found.items() for file in files)
        print_table(["TASKMANAGER", "LOG", ">SIZE"], rows, empty="It has no logs now.")


def _chosen(files: tuple[Log, ...], name: str | None) -> Log:
    """Return the named file, otherwise the main log: the supervisor's."""
    if not files:
        raise Failure("It has no logs yet.", ExitCode.NOT_FOUND)
    if name is None:
        return min(files, key=lambda file: (not file.name.startswith(_MAIN), file.name))
    for file in files:
        if file.name == name:
            return file
    names = [file.name for file in files]
    hint = f"{did_you_mean(name, names)}There are: {', '.join(names)}."
    raise Failure(f"There is no log {name!r}.\n{hint}", ExitCode.NOT_FOUND)


async def _print(client: Client, whose: str | None, file: Log, selected: Lines) -> None:
    import asyncio

    name, tail, pattern = file.name, selected.tail, selected.pattern
    # With a pattern, the last lines that have it may be anywhere.
    offset = 0 if tail is None or pattern is not None else max(0, file.size - tail * _LINE)

    def begins(first: int) -> None:
        nonlocal offset
        offset = max(offset, first)  # the daemon keeps the end of its log only

    if tail is not None:
        data = b"".join([piece async for piece in client.read_log(whose, name, offset=offset, begins=begins)])
        offset += len(data)
        lines = [line for line in data.splitlines(keepends=True) if selected.wants(line)]
        _write(b"".join(lines[-tail:]) if tail else b"")
    rest = b""  # an incomplete last line, kept back if there is a pattern
    while True:
        async for piece in client.read_log(whose, name, offset=offset, begins=begins):
            offset += len(piece)
            if pattern is None:
                _write(piece)
                continue
            *whole, rest = (rest + piece).split(b"\n")
            _write(b"".join(line + b"\n" for line in whole if selected.wants(line)))
        if not selected.follow:
            _write(rest if rest and selected.wants(rest) else b"")
            return
        await asyncio.sleep(_PAUSE)
        size_now = next((f.size for f in (await client.logs(whose)).logs if f.name == name), 0)
        if size_now < offset:  # it was rotated
            offset, rest = 0, b""


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
