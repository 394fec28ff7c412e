"""`minflinkd taskmanager drain`: move the jobs of a TaskManager to others, then end it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from minflinkd.cli.absence import RECONNECTING, Look, Verdict, Watch, look_at
from minflinkd.cli.completing import task_managers
from minflinkd.cli.connection import Connection, connection_options
from minflinkd.cli.exits import ExitCode, Failure, of_status
from minflinkd.cli.find import find_task_manager
from minflinkd.cli.output import print_json
from minflinkd.cli.processes import lives_here

if TYPE_CHECKING:
    from minflinkd.cli.client import Client  # it imports aiohttp: only commands that need a daemon pay for that
    from minflinkd.rest.schemas import ClusterOverview

PAUSE = 0.2  # seconds between two looks


@click.command(short_help="Move a TaskManager's jobs to others, then end it.")
@click.argument("taskmanager", shell_complete=task_managers)
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
        epoch = await leading(client)
        answer = await client.drain(name, undo=undo)
        if not wait:
            said = "is used again" if undo else "is draining: it ends when its jobs have left"
            if connection.as_json:
                print_json({"id": answer.id, "draining": answer.draining, "ended": False})
            else:
                click.echo(f"{name} {said}")
            return ExitCode.OK
        say: Callable[[str], None] = (lambda _: None) if connection.as_json else click.echo
        held = await until_ended(client, name, Watch(epoch=epoch, asked=epoch), say=say, timeout=wait_timeout)
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


async def asked(client: Client, name: str) -> Watch | None:
    """Begin to drain the TaskManager. Return the watch for its end, or None if it is not registered."""
    from minflinkd.cli.endpoint import Refused  # imports aiohttp

    epoch = await leading(client)
    try:
        await client.drain(name)
    except Refused as error:
        if of_status(error.status) is ExitCode.NOT_FOUND:
            return None
        raise
    return Watch(epoch=epoch, asked=epoch)


async def leading(client: Client) -> int:
    """Return the epoch of the daemon that leads; 0 if its version is too old to say."""
    return epoch_of(await client.overview())


def epoch_of(overview: ClusterOverview) -> int:
    return 0 if (leader := overview.minflinkd.leader) is None else leader.epoch


async def until_ended(
    client: Client, name: str, watch: Watch, *, say: Callable[[str], None], timeout: float | None = None
) -> dict[str, str] | None:
    """Wait until a draining TaskManager has ended. Whenever the jobs that it waits for change, print them.

    Return None if it has ended. After `timeout` seconds, return the remaining jobs and why they are still there.
    """
    import asyncio

    deadline = None if timeout is None else time.monotonic() + timeout
    patience = await _registration_time(client)
    said: dict[str, str] = {}
    pid = 0  # of a TaskManager on the daemon's host
    epoch = await leading(client)
    while True:
        info = next((info for info in (await client.task_managers()).taskmanagers if info.id == name), None)
        overview = await client.overview()
        before, epoch = epoch, epoch_of(overview)
        verdict = Verdict.UNKNOWN  # if the leader has just changed, it is not known whose list this is
        if epoch == before:
            starting = any(each.id == name for each in overview.minflinkd.starting)
            lives = starting or (pid != 0 and lives_here(client.url, pid, name))
            look = Look(epoch, None if info is None else info.minflinkd.draining, lives)
            watch, verdict = look_at(watch, look, time.monotonic(), patience)
        if verdict is Verdict.ENDED:
            return None
        if verdict is Verdict.UNDONE:
            raise Failure(f"{name} is no longer draining: somebody has undone the drain.", ExitCode.CONFLICT)
        if verdict is Verdict.DRAIN and (again := await asked(client, name)) is not None:
            watch = again
        if verdict is Verdict.THERE and info is not None:
            pid = 0 if info.minflinkd.standalone else info.minflinkd.pid
            held = info.minflinkd.held_by
            for job, why in held.items():
                if said.get(job) != why:
                    say(f"{name}: job {job} {f'is still there: {why}' if why else 'is moving'}")
            said = dict(held)
        if deadline is not None and time.monotonic() >= deadline:
            return said
        await asyncio.sleep(PAUSE)


async def _registration_time(client: Client) -> float:
    """Return how many seconds a TaskManager that runs may take to register with a new leader."""
    from minflinkd.config.cluster_options import Heartbeat
    from minflinkd.rest.schemas import ConfigEntry
    from minflinkd.runtime.units import Duration

    options = {entry.key: entry.value for entry in await client.get("/jobmanager/config", tuple[ConfigEntry, ...])}
    silent = options.get("heartbeat.timeout", Heartbeat().timeout)
    return Duration.parse(silent) + RECONNECTING
