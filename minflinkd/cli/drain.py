"""`minflinkd taskmanager drain`: have the jobs of a TaskManager leave it, and end it."""

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
    """Have the jobs of TASKMANAGER (or the beginning of its id) leave it, then end it.

    It gives out no more slots. Each of its jobs moves to other TaskManagers by a hot restart without a change: its
    slots there are ready first, and one more TaskManager than the maximum may be started for them. When all its slots
    are free, it ends. It stays drained if the daemon is restarted.

    A job that cannot move runs on, and the TaskManager waits for it: `--wait` prints which and why, and so does
    `minflinkd taskmanagers TASKMANAGER`. Batch jobs are waited for.

    \b
    Exit codes: 0 it is being drained, with --wait: it has ended; 4 no such TaskManager; 5 with --wait-timeout: it has
    not ended.

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
            said = "is used again" if undo else "is drained: it ends when its jobs have left"
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
                f"{name} has not ended after {wait_timeout:g} s. It stays drained: --undo uses it again", err=True
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
    """Wait until a TaskManager that is drained has ended, and say what it waits for whenever that changes.

    Return None when it has ended. After `timeout` seconds, or when `enough` says so, return the jobs that are left, and
    why.
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
            raise Failure(f"{name} is not drained any more: somebody has undone it.", ExitCode.CONFLICT)
        held = info.minflinkd.held_by
        for job, why in held.items():
            if said.get(job) != why:
                say(f"{name}: job {job} {f'is still there: {why}' if why else 'moves'}")
        said = dict(held)
        if enough(info) or (deadline is not None and time.monotonic() >= deadline):
            return said
        await asyncio.sleep(PAUSE)
