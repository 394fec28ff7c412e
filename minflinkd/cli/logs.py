"""`minflinkd logs`: a TaskManager's log files, or the lines in them that concern a job."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import click

from minflinkd.cli.connection import Connection, connection_options
from minflinkd.cli.exits import ExitCode, Failure
from minflinkd.cli.find import find_job, find_task_manager
from minflinkd.cli.text import print_json, print_table, size
from minflinkd.rest.schemas import Log, Logs

if TYPE_CHECKING:
    from minflinkd.cli.client import Client  # it imports aiohttp: only commands that need a daemon pay for that

_PREFIX = "tm-"  # of every TaskManager's id
_LINE = 300  # estimated bytes of a line, to read the last lines of a log
_PAUSE = 0.5  # seconds between two reads of a followed log


@click.command()
@click.argument("whose", required=False, metavar="[TASKMANAGER|JOB]")
@click.argument("name", required=False)
@click.option(
    "-j",
    "--job",
    is_flag=True,
    help="The first argument is a JOB, even if a TaskManager's id begins with it.",
)
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
    whole: bool,
    names_only: bool,
    tail: int | None,
    follow: bool,
) -> None:
    """Print the logs of a job, or a log of a TaskManager: NAME, or its main log.

    JOB is an id, the beginning of one, or a name. Its logs are those of the TaskManagers that run its tasks, or that
    it failed on: all files, or NAME of each. Lines about other jobs are left out; what user code prints is always
    shown. TASKMANAGER is an id or the beginning of one, and may be left out if there is only one. With
    --json the files are listed.

    \b
    Examples:
      minflinkd logs clicks --tail 50
      minflinkd logs clicks session.log --follow
      minflinkd logs
      minflinkd logs tm-3f --list
      minflinkd logs tm-3f session.log --tail 50 --follow
    """
    if job and whose is None:
        raise click.UsageError("--job says what the first argument is: name a JOB.")

    async def show(client: Client) -> None:
        if whose is not None and (job or not await _is_task_manager(client, whose)):
            await _of_job(connection, client, whose, name, whole, names_only, tail, follow)
            return
        resource_id = await find_task_manager(client, whose)
        files = (await client.logs(resource_id)).logs
        if connection.as_json:
            print_json(Logs(logs=files))
        elif names_only:
            print_table(["LOG", ">SIZE"], ([file.name, size(file.size)] for file in files), empty="It has no logs yet.")
        else:
            file = _chosen(files, name)
            await _print(client, resource_id, file, tail=tail, follow=follow)

    connection.run(show)


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
    tail: int | None,
    follow: bool,
) -> None:
    from minflinkd.cli.job_logs import JobLogs

    of_job = JobLogs(client, await find_job(client, text), name, whole)
    if not (connection.as_json or names_only):
        await of_job.print(tail=tail, follow=follow)
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
        return min(files, key=lambda file: (not file.name.startswith("taskmanager"), file.name))
    for file in files:
        if file.name == name:
            return file
    raise Failure(f"There is no log {name!r}; there are: {', '.join(f.name for f in files)}", ExitCode.NOT_FOUND)


async def _print(client: Client, resource_id: str, file: Log, *, tail: int | None, follow: bool) -> None:
    name = file.name
    offset = 0 if tail is None else max(0, file.size - tail * _LINE)
    if tail is not None:
        data = b"".join([piece async for piece in client.read_log(resource_id, name, offset=offset)])
        offset += len(data)
        _write(b"".join(data.splitlines(keepends=True)[-tail:]) if tail else b"")
    while True:
        async for piece in client.read_log(resource_id, name, offset=offset):
            offset += len(piece)
            _write(piece)
        if not follow:
            return
        await asyncio.sleep(_PAUSE)
        size_now = next((f.size for f in (await client.logs(resource_id)).logs if f.name == name), 0)
        offset = 0 if size_now < offset else offset  # it was rotated


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
