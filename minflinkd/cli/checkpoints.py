"""`minflinkd checkpoints`: a job's checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from minflinkd.cli.connection import Connection, connection_options
from minflinkd.cli.find import find_job
from minflinkd.cli.text import duration, moment, print_table, size, state
from minflinkd.rest.schemas import Checkpoint

if TYPE_CHECKING:
    from minflinkd.cli.client import Client  # starts aiohttp: only who speaks to a daemon pays for it


@click.command()
@click.argument("job")
@click.option("--id", "checkpoint_id", type=int, metavar="N", help="One checkpoint, with its tasks (as JSON).")
@connection_options
def checkpoints(connection: Connection, job: str, checkpoint_id: int | None) -> None:
    """Show a job's last checkpoints, newest first.

    JOB is an id, the beginning of one, or a name.

    \b
    Examples:
      minflinkd checkpoints carrier-delays
      minflinkd checkpoints carrier-delays --id 7 | jq .tasks
      minflinkd checkpoints carrier-delays --json | jq .latest.completed.external_path
    """

    async def show(client: Client) -> None:
        job_id = await find_job(client, job)
        path = f"/jobs/{job_id}/checkpoints"
        if checkpoint_id is not None:
            click.echo(bytes(await client.get(f"{path}/details/{checkpoint_id}", msgspec.Raw)))
        elif connection.as_json:
            click.echo(bytes(await client.get(path, msgspec.Raw)))
        else:
            await _print(client, job_id)

    connection.run(show)


async def _print(client: Client, job_id: str) -> None:
    statistics = await client.checkpoints(job_id)
    counts = statistics.counts
    click.echo(f"{counts.completed} completed, {counts.failed} failed, {counts.in_progress} in progress")
    if statistics.latest.restored is not None:
        restored = statistics.latest.restored
        click.echo(f"Restored from checkpoint {restored.id} at {moment(restored.restore_timestamp)}")
    columns = [">ID", "STATE", "TRIGGERED", ">DURATION", ">TASKS", ">STATE SIZE", ">UPLOADED", "PATH OR FAILURE"]
    print_table(columns, map(_row, statistics.history), empty="No checkpoint yet.")


def _row(checkpoint: Checkpoint) -> list[object]:
    return [
        checkpoint.id,
        state(checkpoint.status),
        moment(checkpoint.trigger_timestamp),
        duration(checkpoint.end_to_end_duration),
        f"{checkpoint.num_acknowledged_subtasks}/{checkpoint.num_subtasks}",
        size(checkpoint.state_size),
        size(checkpoint.checkpointed_size),
        checkpoint.external_path or checkpoint.failure_message or "",
    ]
