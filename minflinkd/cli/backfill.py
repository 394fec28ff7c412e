"""`minflinkd backfill`: compute a past time again, beside the running job."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from minflinkd.cli.completing import live_jobs
from minflinkd.cli.connection import Connection, connection_options
from minflinkd.cli.exits import ExitCode
from minflinkd.cli.find import find_job
from minflinkd.cli.run import accepted_or_ended, params_of, refusal, warn

if TYPE_CHECKING:
    from minflinkd.cli.client import Client  # it imports aiohttp: only commands that need a daemon pay for that


@click.command()
@click.argument("job", shell_complete=live_jobs)
@click.option("--from", "since", required=True, metavar="TIME", help="The first time, such as 2026-03-01.")
@click.option("--to", "until", required=True, metavar="TIME", help="The time before which it ends.")
@click.option("--sink", "sinks", multiple=True, metavar="VERTEX", help="Write this sink only. May be repeated.")
@click.option("-p", "--param", "params", multiple=True, metavar="KEY=VALUE", help="Replace one of the job's params.")
@click.option("--parallelism", type=click.IntRange(1), help="Of all its tasks. Default: as in the job.")
@click.option("--name", default="", help="Its name. Default: the job's name with -backfill.")
@click.option("--allow-other-times", is_flag=True, help="Its rows may take the place of rows of another time.")
@click.option("--wait/--detach", default=False, help="Show it until it has ended, or return when it is accepted.")
@click.option("--dry-run", is_flag=True, help="Only check it.")
@connection_options
def backfill(
    connection: Connection,
    job: str,
    since: str,
    until: str,
    sinks: tuple[str, ...],
    params: tuple[str, ...],
    parallelism: int | None,
    name: str,
    allow_other_times: bool,
    wait: bool,
    dry_run: bool,
) -> None:
    """Compute a past time of JOB again, in a batch job of its own. JOB goes on, and its state is not touched.

    Its rows take the place of JOB's rows with the same key. A sink without a key would have both, so it is refused:
    give it another place (-p), or leave it out (--sink). docs/backfill.md says which rows are read.

    TIME is a date, or a date with a time: 2026-03-01T06:00. It is in UTC, unless it says its zone: ...T06:00+02:00.
    Choose times at which your windows begin: a range that cuts a window is refused.

    JOB takes a checkpoint first, so that nothing it has written of that time comes after the backfill.

    \b
    Exit codes: 0 accepted (with --wait: FINISHED); 1 it FAILED or was CANCELED; 2 refused with its faults; 3 no daemon
    answers; 130 Ctrl-C, which leaves it running.

    \b
    Examples:
      minflinkd backfill clicks --from 2026-03-01 --to 2026-03-02
      minflinkd backfill clicks --from 2026-03-01T06:00 --to 2026-03-01T09:00 --wait
      minflinkd backfill clicks --from 2026-03-01 --to 2026-04-01 --sink counts --parallelism 8
      minflinkd backfill clicks --from 2026-03-01 --to 2026-03-02 -p output=/data/march --dry-run
    """
    values = params_of(params)

    async def filled(client: Client) -> ExitCode | None:
        from minflinkd.cli.endpoint import Refused
        from minflinkd.cli.submission import refused_by_daemon
        from minflinkd.rest.schemas.documents import BackfillRequest

        asked = BackfillRequest(
            since=since,
            until=until,
            sinks=sinks,
            params=values,
            parallelism=parallelism,
            name=name,
            allow_other_times=allow_other_times,
        )
        job_id = await find_job(client, job)
        connection.tell("Checking it with Spark")
        try:
            accepted = await client.backfill(job_id, asked, dry_run=dry_run)
        except Refused as error:
            if error.answer.faults:
                raise refusal(connection, refused_by_daemon(job, error)) from error
            raise
        warn(accepted)
        return await accepted_or_ended(connection, client, accepted, wait=wait, dry_run=dry_run)

    connection.run(filled)
