"""`minflinkd checkpoint`: take a checkpoint now."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from minflinkd.cli.completing import live_jobs
from minflinkd.cli.connection import Connection, connection_options
from minflinkd.cli.find import find_job
from minflinkd.cli.output import print_json

if TYPE_CHECKING:
    from minflinkd.cli.client import Client  # it imports aiohttp: only commands that need a daemon pay for that


@click.command()
@click.argument("job", shell_complete=live_jobs)
@click.option("--full", is_flag=True, help="Upload all state anew: the checkpoint refers to no file of an earlier one.")
@connection_options
def checkpoint(connection: Connection, job: str, full: bool) -> None:
    """Take a checkpoint of JOB now, in addition to the periodic ones. Waits until it is complete, and prints its id.

    JOB is an id, the beginning of one, or a name. Sinks publish what the checkpoint covers. The checkpoint
    belongs to the job and is deleted after a later one is complete. To keep it, take a savepoint.

    \b
    Examples:
      minflinkd checkpoint carrier-delays
      minflinkd checkpoint carrier-delays --full
      minflinkd checkpoints carrier-delays --id "$(minflinkd checkpoint carrier-delays)"
    """

    async def taken(client: Client) -> None:
        job_id = await find_job(client, job)
        connection.tell("Taking a checkpoint")
        number = await client.checkpoint(job_id, full=full)
        if connection.as_json:
            print_json({"jobid": job_id, "checkpoint-id": number})
        else:
            click.echo(number)

    connection.run(taken)
