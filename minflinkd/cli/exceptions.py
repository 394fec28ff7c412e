"""`minflinkd exceptions`: a job's failures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from minflinkd.cli.completing import jobs
from minflinkd.cli.connection import Connection, connection_options
from minflinkd.cli.find import find_job
from minflinkd.cli.output import print_json
from minflinkd.cli.text import moment

if TYPE_CHECKING:
    from minflinkd.cli.client import Client  # it imports aiohttp: only commands that need a daemon pay for that
    from minflinkd.rest.schemas import ExceptionEntry


@click.command()
@click.argument("job", shell_complete=jobs)
@click.option("-n", "--last", type=click.IntRange(1), default=20, show_default=True, help="How many, the newest first.")
@click.option("--full", is_flag=True, help="With the traceback of each, not only of the newest.")
@connection_options
def exceptions(connection: Connection, job: str, last: int, full: bool) -> None:
    """Show the failures of a job, newest first: when, in which task, on which TaskManager, why, and what to do.

    JOB is an id, the beginning of one, or a name. A job without failures is no error: the exit code is 0.

    \b
    Examples:
      minflinkd exceptions clicks
      minflinkd exceptions clicks --last 3 --full
      minflinkd exceptions clicks --json | jq -r '.exceptionHistory.entries[].minflinkd.code'
    """

    async def show(client: Client) -> None:
        found = await client.exceptions(await find_job(client, job), most=last)
        if connection.as_json:
            print_json(found)
            return
        entries = found.history.entries
        if not entries:
            click.echo("The job has had no failures.")
        for number, entry in enumerate(entries):
            if number:
                click.echo()
            _print(entry, traceback=full or number == 0)
        if found.history.truncated:
            click.secho("Older failures are left out, or not known any more.", dim=True)

    connection.run(show)


def _print(entry: ExceptionEntry, *, traceback: bool) -> None:
    where = f" in task {entry.task_name}" if entry.task_name else ""
    where += f" on {entry.task_manager_id}" if entry.task_manager_id else ""
    click.secho(f"{moment(entry.timestamp)}{where}: {entry.minflinkd.code}", bold=True)
    text = entry.stacktrace.rstrip()
    message = entry.minflinkd.message.rstrip()
    if not traceback or message not in text:
        click.echo(f"  {message}")
    if entry.minflinkd.hint:
        click.echo(f"  What to do: {entry.minflinkd.hint}")
    if traceback and text and text != message:
        click.echo("\n".join(f"    {line}" for line in text.splitlines()))
