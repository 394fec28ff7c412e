"""`minflinkd cancel`: end a job without a savepoint."""

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
@click.option("--wait/--no-wait", default=True, show_default=True, help="Return when the job has ended.")
@connection_options
def cancel(connection: Connection, job: str, wait: bool) -> None:
    """Cancel a job. Its sinks publish what its checkpoints cover; then the checkpoints are deleted and its slots freed.

    JOB is an id, the beginning of one, or a name. If the job has already ended, the exit code is 5.

    \b
    Examples:
      minflinkd cancel carrier-delays
      minflinkd cancel 3fa9 --no-wait
    """

    import asyncio

    async def end(client: Client) -> ExitCode:
        job_id = await find_job(client, job)
        await client.cancel(job_id)
        if wait:
            connection.tell("Canceling: sinks publish what the last checkpoint covers")
        status = "CANCELLING"
        while wait and status not in _ENDED:
            status = await client.status(job_id)
            if status not in _ENDED:
                await asyncio.sleep(_PAUSE)
        if connection.as_json:
            print_json({"jobid": job_id, "state": status})
        else:
            click.echo(f"{job_id} is {status}." if wait else f"{job_id} is being canceled.")
        return ExitCode.OK if not wait or status == "CANCELED" else ExitCode.JOB_ENDED_BADLY

    connection.run(end)
