"""`minflinkd taskmanager drain`: move the jobs of a TaskManager to others, then end it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from minflinkd.cli.connection import Connection, connection_options
from minflinkd.cli.exits import ExitCode, Failure
from minflinkd.cli.find import find_task_manager
from minflinkd.cli.processes import lives_here
from minflinkd.cli.text import print_json

if TYPE_CHECKING:
    from minflinkd.cli.client import Client  # it imports aiohttp: only commands that need a daemon pay for that
    from minflinkd.rest.schemas import TaskManager

PAUSE = 0.2  # seconds between two looks


@click.command()
@click.argument("taskmanager")
@click.option("--wait", is_flag=True, help="Return when the TaskManager has ended.")
@click.option(
    "--wait-timeout", type=float, metavar="SECONDS", help="Wait this long at most (exit code 5). Default: without end."
)
@click.option("--undo", is_flag=True, help="Use the TaskManager again. Jobs that have left do not come back.")
@connection_options
def drain(connection: Connection, taskmanager: str, wait: bool, wait_timeout: float | None, undo: bool) -> None:
    """Move the jobs of TASKMANAGER (or the beginning of its id) to other TaskManagers, then end it.

    A draining TaskManager gives out no more slots. Each of its jobs moves by a hot restart of the same version, as soon
    as its slots on other TaskManagers are ready. For these slots, one more TaskManager than the maximum may be started.
    When all slots are free, the TaskManager ends. A restart of the daemon does not interrupt the drain.

    If a job cannot move, it keeps running, and the TaskManager waits for it. Batch jobs never move. `--wait` prints
    which jobs are still there, and why; so does `minflinkd taskmanagers TASKMANAGER`.

    \b
    Exit codes: 0 it is draining, with --wait: it has ended; 4 no such TaskManager; 5 with --wait-timeout: it has not
    ended.

    \b
    Examples:
      minflinkd taskmanager drain tm-3f --wait     before maintenance of its host
      minflinkd taskmanager drain tm-3f --undo     use it again
    """
    if undo and wait:
        raise Failure("--undo has nothing to wait for.", ExitCode.REFUSED)

    async def begin(client: Client) -> ExitCode:
        name = await find_task_manager(client, taskmanager)
        answer = await client.drain(name, undo=undo)
        if not wait:
            said = "is used again" if undo else "is draining: it ends when its jobs have left"
            if connection.as_json:
                print_json({"id": answer.id, "draining": answer.draining, "ended": False})
            else:
                click.echo(f"{name} {said}")
            return ExitCode.OK
        say: Callable[[str], None] = (lambda _: None) if connection.as_json else click.echo
        held = await until_ended(client, name, say=say, timeout=wait_timeout)
        if connection.as_json:
            print_json({"id": answer.id, "draining": answer.draining, "ended": held is None, "held-by": held or {}})
        elif held is None:
            click.echo(f"{name} has ended")
        else:
            click.echo(
                f"{name} has not ended after {wait_timeout:g} s. It is still draining; --undo stops this", err=True
            )
        return ExitCode.OK if held is None else ExitCode.CONFLICT

    connection.run(begin)


async def until_ended(
    client: Client,
    name: str,
    *,
    say: Callable[[str], None],
    timeout: float | None = None,
    enough: Callable[[TaskManager], bool] = lambda _: False,
) -> dict[str, str] | None:
    """Wait until a draining TaskManager has ended. Whenever the jobs that it waits for change, print them.

    Return None if it has ended. After `timeout` seconds, or when `enough` returns True, return the remaining jobs and
    why they are still there.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    said: dict[str, str] = {}
    pid = 0  # of a TaskManager on the daemon's host
    while True:
        known = {info.id: info for info in (await client.task_managers()).taskmanagers}
        if (info := known.get(name)) is None:
            if pid and lives_here(client.url, pid) and (deadline is None or time.monotonic() < deadline):
                await asyncio.sleep(PAUSE)
                continue
            return None
        pid = 0 if info.minflinkd.standalone else info.minflinkd.pid
        if not info.minflinkd.draining:
            raise Failure(f"{name} is no longer draining: somebody has undone the drain.", ExitCode.CONFLICT)
        held = info.minflinkd.held_by
        for job, why in held.items():
            if said.get(job) != why:
                say(f"{name}: job {job} {f'is still there: {why}' if why else 'is moving'}")
        said = dict(held)
        if enough(info) or (deadline is not None and time.monotonic() >= deadline):
            return said
        await asyncio.sleep(PAUSE)
