"""`minflinkd logs`: a TaskManager's log files."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import click

from minflinkd.cli.connection import Connection, connection_options
from minflinkd.cli.exits import ExitCode, Failure
from minflinkd.cli.find import find_task_manager
from minflinkd.cli.text import print_json, print_table, size
from minflinkd.rest.schemas import Log, Logs

if TYPE_CHECKING:
    from minflinkd.cli.client import Client  # starts aiohttp: only who speaks to a daemon pays for it

_LINE = 300  # bytes that a line is thought to have, when the end of a log is asked for by lines
_PAUSE = 0.5  # seconds between two looks at a log that is followed


@click.command()
@click.argument("taskmanager", required=False)
@click.argument("name", required=False)
@click.option("-l", "--list", "names_only", is_flag=True, help="Only list the files.")
@click.option("-n", "--tail", type=click.IntRange(0), metavar="LINES", help="Only about the last LINES lines.")
@click.option("-f", "--follow", is_flag=True, help="Go on with what is added, until Ctrl-C.")
@connection_options
def logs(
    connection: Connection, taskmanager: str | None, name: str | None, names_only: bool, tail: int | None, follow: bool
) -> None:
    """Print a log of a TaskManager: NAME, or its main log.

    TASKMANAGER is an id or the beginning of one, and may be left out where there is only one. With --json the files
    are listed.

    \b
    Examples:
      minflinkd logs
      minflinkd logs tm-3f --list
      minflinkd logs tm-3f session.log --tail 50 --follow
    """

    async def show(client: Client) -> None:
        resource_id = await find_task_manager(client, taskmanager)
        files = (await client.logs(resource_id)).logs
        if connection.as_json:
            print_json(Logs(logs=files))
        elif names_only:
            print_table(["LOG", ">SIZE"], ([file.name, size(file.size)] for file in files), empty="It has no logs yet.")
        else:
            file = _chosen(files, name)
            await _print(client, resource_id, file, tail=tail, follow=follow)

    connection.run(show)


def _chosen(files: tuple[Log, ...], name: str | None) -> Log:
    """The named file, else the main log: the supervisor's."""
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
