"""`minflinkd collected`: the rows of a collect sink."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from minflinkd.cli.completing import jobs
from minflinkd.cli.connection import Connection, connection_options
from minflinkd.cli.exits import ExitCode, Failure
from minflinkd.cli.find import find_job
from minflinkd.cli.output import print_json

if TYPE_CHECKING:
    from minflinkd.cli.client import Client  # it imports aiohttp: only commands that need a daemon pay for that


@click.command()
@click.argument("job", shell_complete=jobs)
@click.argument("sink", required=False)
@connection_options
def collected(connection: Connection, job: str, sink: str | None) -> None:
    """Print the last rows of a job's collect sink, one JSON object a line, oldest first.

    JOB is an id, the beginning of one, or a name; SINK the id of the sink's vertex, where the job has several.

    \b
    Examples:
      minflinkd collected carrier-delays
      minflinkd collected carrier-delays out | jq .carrier
      minflinkd collected carrier-delays --json | jq .dropped
    """

    async def show(client: Client) -> None:
        import msgspec

        from minflinkd.rest.schemas import CollectedRows

        job_id = await find_job(client, job)
        name = sink or await _only_sink(client, job_id)
        path = f"/jobs/{job_id}/vertices/{name}/collected"
        if connection.as_json:
            print_json(await client.get(path, msgspec.Raw))
            return
        for row in (await client.get(path, CollectedRows)).rows:
            click.echo(bytes(row.row))

    connection.run(show)


async def _only_sink(client: Client, job_id: str) -> str:
    found = [sink.vertex for sink in (await client.job(job_id)).minflinkd.sinks if sink.format == "collect"]
    if not found:
        raise Failure("The job has no collect sink.\nsink: {format: collect}", ExitCode.NOT_FOUND)
    if len(found) > 1:
        raise Failure(f"The job has {len(found)} collect sinks: {', '.join(found)}\nName one.", ExitCode.REFUSED)
    return found[0]
