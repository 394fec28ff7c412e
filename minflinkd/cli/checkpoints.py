"""`minflinkd checkpoints`: a job's checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from minflinkd.cli.completing import jobs
from minflinkd.cli.connection import Connection, connection_options
from minflinkd.cli.exits import ExitCode
from minflinkd.cli.find import find_job
from minflinkd.cli.output import print_json
from minflinkd.cli.text import duration, moment, print_table, size, state

if TYPE_CHECKING:
    from minflinkd.cli.client import Client  # it imports aiohttp: only commands that need a daemon pay for that
    from minflinkd.rest.schemas import Checkpoint
    from minflinkd.rest.schemas.checkpoints import TaskCheckpoint
    from minflinkd.rest.schemas.verification import VerifiedCheckpoint


@click.command()
@click.argument("job", shell_complete=jobs)
@click.option("--id", "checkpoint_id", type=int, metavar="N", help="One checkpoint, with its tasks.")
@click.option("--verify", is_flag=True, help="Read all checkpoints that are stored, and compare their checksums.")
@connection_options
def checkpoints(connection: Connection, job: str, checkpoint_id: int | None, verify: bool) -> None:
    """Show a job's last checkpoints, newest first, or one of them with its tasks; or verify those that are stored.

    JOB is an id, the beginning of one, or a name. DURATION is the time to the last acknowledgement, or to the failure.
    For a task, WAIT is the time until its snapshot could be taken: it waits for the micro-batch in progress and for the
    alignment of its inputs (ALIGNED). SYNC is the time to take the snapshot, ASYNC the time to upload it.

    With --verify the daemon reads all that the job's checkpoints refer to, also if the job has ended. The exit code is
    0 if all are whole, 2 if one is damaged, and 3 if the storage did not let that be found out.

    \b
    Examples:
      minflinkd checkpoints carrier-delays
      minflinkd checkpoints carrier-delays --id 7
      minflinkd checkpoints carrier-delays --id 7 --json | jq .tasks
      minflinkd checkpoints carrier-delays --verify
      minflinkd checkpoints carrier-delays --json | jq .latest.completed.external_path
    """

    if verify and checkpoint_id is not None:
        raise click.UsageError("--verify reads all checkpoints: leave --id out")

    async def show(client: Client) -> None:
        import msgspec

        from minflinkd.rest.schemas import Checkpoint

        job_id = await find_job(client, job)
        if verify:
            _print_verified(await client.verify_checkpoints(job_id), as_json=connection.as_json)
            return
        path = f"/jobs/{job_id}/checkpoints"
        if checkpoint_id is not None:
            path = f"{path}/details/{checkpoint_id}"
        if connection.as_json:
            print_json(await client.get(path, msgspec.Raw))
        elif checkpoint_id is not None:
            _print_one(await client.get(path, Checkpoint))
        else:
            await _print(client, job_id)

    connection.run(show)


async def _print(client: Client, job_id: str) -> None:
    statistics = await client.checkpoints(job_id)
    counts = statistics.counts
    click.echo(f"{counts.completed} completed, {counts.failed} failed, {counts.in_progress} in progress", nl=False)
    row = statistics.minflinkd.consecutive_failures
    click.echo(f"; the last {row} failed" if row > 1 else "")
    if statistics.minflinkd.failed_by_cause:
        causes = [f"{count} {cause}" for cause, count in sorted(statistics.minflinkd.failed_by_cause.items())]
        click.echo(f"Failed by cause: {', '.join(causes)}")
    if counts.completed:
        took = statistics.summary.end_to_end_duration
        quantiles = f"p95 {duration(took.p95)}, p99 {duration(took.p99)}, at most {duration(took.max)}"
        click.echo(f"Durations: median {duration(took.p50)}, {quantiles}")
    if statistics.latest.restored is not None:
        restored = statistics.latest.restored
        click.echo(f"Restored from checkpoint {restored.id} at {moment(restored.restore_timestamp)}")
    for damaged in statistics.minflinkd.damaged:
        told = "" if damaged.given_up_for is None else f", given up for checkpoint {damaged.given_up_for}"
        where = "; ".join(f"{one.file}: {one.why}" for one in damaged.files)
        click.secho(f"Checkpoint {damaged.id} is damaged{told}: {where}", fg="red")
    files = statistics.minflinkd.files
    if files.physical:
        stored, referenced = size(files.bytes_stored), size(files.bytes_referenced)
        click.echo(f"Files: {files.physical} of {files.logical} segments; {stored} for {referenced} of state", nl=False)
        click.echo(f" ({files.amplification:.2f} times)" + (f"; {files.deleting} to delete" if files.deleting else ""))
    columns = [
        *(">ID", "STATE", "KIND", "TRIGGERED", ">DURATION", ">ALIGNED"),
        *(">TASKS", ">STATE SIZE", ">UPLOADED", "PATH OR FAILURE"),
    ]
    print_table(columns, map(_row, statistics.history), empty="No checkpoint yet.")
    slow = next((c for c in statistics.history if c.minflinkd.warning), None)
    if slow is not None:
        click.secho(f"Checkpoint {slow.id} is slow: {slow.minflinkd.warning}.", fg="yellow")


def _print_one(checkpoint: Checkpoint) -> None:
    own = checkpoint.minflinkd
    click.echo(f"Checkpoint {checkpoint.id} ({own.kind}): ", nl=False)
    click.secho(checkpoint.status, bold=True, nl=False)
    click.echo(f", triggered {moment(checkpoint.trigger_timestamp)}, {duration(checkpoint.end_to_end_duration)}")
    if checkpoint.failure_message:
        click.echo(f"Failure: {checkpoint.failure_message}")
    if checkpoint.external_path:
        published = f"published after {duration(own.notify)}" if own.notify >= 0 else "not published by all tasks yet"
        what = "Savepoint" if own.savepoint else "Metadata"
        click.echo(f"{what}: {checkpoint.external_path}, written in {duration(own.metadata)}; {published}")
    if own.warning:
        click.secho(f"Slow: {own.warning}.", fg="yellow")
    columns = [
        *("TASK", ">ACKNOWLEDGED", ">WAIT", ">ALIGNED", ">HELD", ">SYNC", ">ASYNC"),
        *(">STATE SIZE", ">UPLOADED", ">FILES", ">NEW"),
    ]
    print_table(columns, map(_task_row, checkpoint.tasks.values()), empty="No task was asked yet.")


def _print_verified(found: tuple[VerifiedCheckpoint, ...], *, as_json: bool) -> None:
    if as_json:
        print_json(found)
    else:
        rows = [
            [one.id, _verdict(one), moment(one.trigger_timestamp), one.files, size(one.state_size)] for one in found
        ]
        print_table([">ID", "VERDICT", "TRIGGERED", ">FILES", ">STATE SIZE"], rows, empty="No checkpoint is stored.")
        for one in found:
            for damage in one.damaged_files:
                click.secho(f"Checkpoint {one.id}: {damage.file}: {damage.why}", fg="red")
    if not all(one.whole for one in found):
        raise SystemExit(ExitCode.REFUSED)


def _verdict(one: VerifiedCheckpoint) -> str:
    verdict = "whole" if one.whole else "DAMAGED"
    return f"{verdict}, given up" if one.given_up else verdict


def _task_row(task: TaskCheckpoint) -> list[object]:
    own = task.minflinkd
    if not task.num_acknowledged_subtasks:
        return [own.task_id, *["-"] * 10]
    return [
        own.task_id,
        duration(task.end_to_end_duration),
        duration(own.wait),
        f"{duration(own.alignment)}{', unaligned' if own.unaligned else ''}",
        size(task.alignment_buffered),
        duration(own.sync),
        duration(own.async_),
        size(task.state_size),
        size(task.checkpointed_size),
        own.files,
        own.files_uploaded,
    ]


def _row(checkpoint: Checkpoint) -> list[object]:
    return [
        checkpoint.id,
        state(checkpoint.status),
        checkpoint.minflinkd.kind or "-",
        moment(checkpoint.trigger_timestamp),
        duration(checkpoint.end_to_end_duration) + (" !" if checkpoint.minflinkd.warning else ""),
        duration(checkpoint.minflinkd.alignment),
        f"{checkpoint.num_acknowledged_subtasks}/{checkpoint.num_subtasks}",
        size(checkpoint.state_size),
        size(checkpoint.checkpointed_size),
        checkpoint.external_path or checkpoint.failure_message or "",
    ]
