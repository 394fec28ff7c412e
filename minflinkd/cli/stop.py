"""`minflinkd stop`: end a job with a savepoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from minflinkd.cli.completing import live_jobs
from minflinkd.cli.connection import Connection, connection_options
from minflinkd.cli.exits import ExitCode
from minflinkd.cli.find import find_job
from minflinkd.cli.output import print_json

if TYPE_CHECKING:
    from minflinkd.cli.client import Client  # it imports aiohttp: only commands that need a daemon pay for that

_ENDED = frozenset({"CANCELED", "FAILED", "FINISHED"})
_PAUSE = 0.1  # seconds between two queries


@click.command()
@click.argument("job", shell_complete=live_jobs)
@click.argument("directory", required=False)
@click.option(
    "--drain", is_flag=True, help="First let all open windows and timers fire. For a job that will not be continued."
)
@connection_options
def stop(connection: Connection, job: str, directory: str | None, drain: bool) -> None:
    """Take a savepoint, then end the job as FINISHED. Its sinks publish exactly what the savepoint covers.

    JOB is an id, the beginning of one, or a name. DIRECTORY is a URI, or a path on the daemon's machine.
    The default is execution.checkpointing.savepoint-dir. If that is not set either, savepoints are written to
    `savepoints` next to the checkpoints. Prints the savepoint's path.

    \b
    Examples:
      minflinkd stop carrier-delays /data/savepoints
      minflinkd stop carrier-delays --drain
      minflinkd run job.yaml --from-savepoint "$(minflinkd stop carrier-delays)"
    """

    import asyncio

    async def end(client: Client) -> ExitCode:
        job_id = await find_job(client, job)
        tell = connection.tell
        tell("Draining, and taking a savepoint" if drain else "Taking a savepoint")
        path = await client.stop(job_id, directory, drain=drain)
        tell("The savepoint is written; the job is ending")
        status = ""
        while status not in _ENDED:
            status = await client.status(job_id)
            if status not in _ENDED:
                await asyncio.sleep(_PAUSE)
        if connection.as_json:
            print_json({"jobid": job_id, "state": status, "savepoint": path})
        else:
            click.echo(path)
        return ExitCode.OK if status == "FINISHED" else ExitCode.JOB_ENDED_BADLY

    connection.run(end)
