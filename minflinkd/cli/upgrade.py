"""`minflinkd upgrade`: replace the TaskManagers whose version differs from the daemon's, one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click

from minflinkd.cli.absence import Watch
from minflinkd.cli.connection import Connection, connection_options
from minflinkd.cli.drain import PAUSE, asked, epoch_of, until_ended
from minflinkd.cli.exits import ExitCode
from minflinkd.cli.output import print_json
from minflinkd.rest.schemas import DashboardConfiguration, TaskManager

if TYPE_CHECKING:
    from minflinkd.cli.client import Client  # it imports aiohttp: only commands that need a daemon pay for that

SETTLING = 10.0  # seconds that TaskManagers have to register


@click.command()
@click.option("--dry-run", is_flag=True, help="Only list the TaskManagers to replace, and the jobs that would move.")
@click.option(
    "--wait-timeout",
    type=float,
    metavar="SECONDS",
    help="Wait this long at most for each TaskManager, then go on with the next (exit code 5). Default: without end.",
)
@connection_options
def upgrade(connection: Connection, dry_run: bool, wait_timeout: float | None) -> None:
    """Replace the TaskManagers whose version differs from the daemon's, one by one.

    Run it after you restart the daemon with a new version, because TaskManagers and tasks keep running with the old
    version. Each TaskManager is drained, as by `minflinkd taskmanager drain`: its jobs move to TaskManagers that are
    ready, by a hot restart of the same job version, and it ends. TaskManagers without jobs come first. If the command
    is interrupted, run it again.

    TaskManagers that the daemon did not start (`minflinkd taskmanager`) are only listed. Drain them one after the
    other, and start each again in the way in which you started it before.

    \b
    Exit codes: 0 all have the daemon's version; 5 with --wait-timeout: some still run, and are draining.

    \b
    Examples:
      minflinkd upgrade --dry-run
      minflinkd upgrade
    """
    say: Callable[[str], None] = (lambda _: None) if connection.as_json else click.echo

    async def replace(client: Client) -> ExitCode:
        version = (await client.get("/config", DashboardConfiguration)).minflinkd.version
        known, epoch = await _all(client)
        old, alone = outdated(known, version)
        left: list[str] = []
        for info in old:
            say(_described(info, version))
            if dry_run:
                continue
            watch = await asked(client, info.id)
            missing = Watch(epoch=epoch, asked=0)
            if await until_ended(client, info.id, watch or missing, say=say, timeout=wait_timeout) is None:
                say(f"{info.id} has ended" if watch is not None else f"{info.id} has ended by itself")
            else:
                left.append(info.id)
                say(f"{info.id} has not ended after {wait_timeout:g} s. It is draining, and ends with its last job")
        for info in alone:
            say(f"{info.id} ({_named(info)}) was not started by the daemon: drain it, then start it again")
        if not old and not alone:
            say(f"All TaskManagers have the daemon's version, {version}")
        if connection.as_json:
            print_json(
                {
                    "version": version,
                    "dry-run": dry_run,
                    "replaced": [{"id": i.id, "jobs": jobs_on(i), "ended": i.id not in left} for i in old],
                    "standalone": [info.id for info in alone],
                }
            )
        return ExitCode.CONFLICT if left else ExitCode.OK

    connection.run(replace)


async def _all(client: Client) -> tuple[tuple[TaskManager, ...], int]:
    """Return the TaskManagers, and the epoch of the leader that lists them.

    Just after a restart of the daemon, wait for those that have not yet registered.
    """
    for _ in range(round(SETTLING / PAUSE)):
        overview = await client.overview()
        if not overview.minflinkd.starting:
            break
        await asyncio.sleep(PAUSE)
    return (await client.task_managers()).taskmanagers, epoch_of(overview)


def outdated(known: Iterable[TaskManager], version: str) -> tuple[list[TaskManager], list[TaskManager]]:
    """Return the TaskManagers of another version: those to replace, in this order, and those not started by the daemon.

    Those with the fewest jobs come first. The new TaskManagers in their place then take the jobs of the others.
    """
    other = sorted((i for i in known if i.minflinkd.version != version), key=lambda i: (len(jobs_on(i)), i.id))
    return [i for i in other if not i.minflinkd.standalone], [i for i in other if i.minflinkd.standalone]


def jobs_on(info: TaskManager) -> list[str]:
    return sorted({slot.job_id for slot in info.minflinkd.slots if slot.job_id is not None})


def _described(info: TaskManager, version: str) -> str:
    jobs = jobs_on(info)
    moves = f"{'jobs' if len(jobs) > 1 else 'job'} {', '.join(jobs)} to move" if jobs else "no jobs"
    return f"{info.id} ({_named(info)}, the daemon is {version}): {moves}"


def _named(info: TaskManager) -> str:
    return f"version {info.minflinkd.version}" if info.minflinkd.version else "an earlier version"
