"""`minflinkd orphans`: files of checkpoints that nothing refers to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from minflinkd.cli.completing import jobs
from minflinkd.cli.connection import Connection, connection_options
from minflinkd.cli.find import find_job

if TYPE_CHECKING:
    from minflinkd.cli.client import Client  # it imports aiohttp: only commands that need a daemon pay for that
    from minflinkd.rest.schemas import Orphans


@click.command()
@click.option("--dry-run", is_flag=True, help="Only list them.")
@click.option(
    "--job", metavar="JOB", shell_complete=jobs, help="Only of this job: its id, the beginning of one, or its name."
)
@connection_options
def orphans(connection: Connection, dry_run: bool, job: str | None) -> None:
    """Delete files of checkpoints that no checkpoint of any job refers to, running or ended.

    Such files are left when a TaskManager dies while it writes, or when the storage does not answer a deletion. Files
    younger than execution.checkpointing.file-merging.orphan-grace are kept, and so are all savepoints and retained
    checkpoints. Only a daemon that leads can do this.

    \b
    Examples:
      minflinkd orphans --dry-run
      minflinkd orphans --job carrier-delays
      minflinkd orphans --dry-run --json | jq '.jobs[] | {job, files, size}'
    """
    from minflinkd.cli.output import print_json

    async def sweep(client: Client) -> None:
        found = await client.orphans(job=None if job is None else await find_job(client, job), dry_run=dry_run)
        if connection.as_json:
            print_json(found)
        else:
            _print(found)

    connection.run(sweep)


def _print(found: Orphans) -> None:
    from minflinkd.cli.text import duration, moment, print_table, size

    rows = [
        [orphan.name, of_job.job, size(orphan.size), moment(orphan.modified)]
        for of_job in found.jobs
        for orphan in of_job.orphans
    ]
    print_table(["FILE", "JOB", ">SIZE", "WRITTEN"], rows, empty="No orphans.")
    if left_out := found.files - len(rows):
        click.echo(f"... and {left_out} more")
    for of_job in found.jobs:
        if of_job.skipped:
            click.secho(f"{of_job.job} was left alone: {of_job.skipped}.", fg="yellow")
    done = "would be deleted" if found.dry_run else "deleted"
    files = "1 file" if found.files == 1 else f"{found.files} files"
    click.echo(f"{files} {done}, {size(found.size)}; what is younger than {duration(found.grace * 1000)} stays.")
