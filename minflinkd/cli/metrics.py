"""`minflinkd metrics`: how fast a job's tasks are, and what holds them back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from minflinkd.cli.completing import jobs
from minflinkd.cli.connection import Connection, connection_options
from minflinkd.cli.find import find_job
from minflinkd.cli.output import print_json
from minflinkd.cli.text import duration, print_table, short, size

if TYPE_CHECKING:
    from minflinkd.cli.client import Client  # it imports aiohttp: only commands that need a daemon pay for that
    from minflinkd.rest.schemas import Checkpoints, JobInfo, JobVertex


@click.command()
@click.argument("job", shell_complete=jobs)
@connection_options
def metrics(connection: Connection, job: str) -> None:
    """Show what each task of a job does now: rows per second, micro-batches, state, watermark, backpressure.

    JOB is an id, the beginning of one, or a name. ROWS/S is the rate of the last micro-batch. MEMORY is what
    Spark's state stores take. LAG is how far the watermark is behind the clock. PENDING is how many records of Kafka
    wait for the task. BACKLOG is what readers of the task's output have yet to read. A dash: not known, or the task has
    none. For all metrics over time see `GET /metrics` (Prometheus), and `minflinkd watch`.

    \b
    Examples:
      minflinkd metrics clicks
      minflinkd metrics clicks --json | jq '.tasks[] | {id, "rows-per-second"}'
    """

    async def show(client: Client) -> None:
        job_id = await find_job(client, job)
        found, checkpoints = await client.job(job_id), await client.checkpoints(job_id)
        if connection.as_json:
            print_json(figures(found, checkpoints))
        else:
            _print(found, checkpoints)

    connection.run(show)


def figures(job: JobInfo, checkpoints: Checkpoints) -> dict[str, object]:
    """Return the metrics as one document. Times are in milliseconds, null is what is not known. Pure."""
    last = checkpoints.latest.completed
    return {
        "jid": job.jid,
        "name": job.name,
        "state": job.state,
        "source-records": job.minflinkd.source_records,
        "source-records-per-second": job.minflinkd.source_records_per_second,
        "pending-records": job.minflinkd.pending_records,
        "sink-records": job.minflinkd.sink_records,
        "restarts": job.minflinkd.restarts,
        "checkpoints": {
            "completed": checkpoints.counts.completed,
            "failed": checkpoints.counts.failed,
            "duration": last.end_to_end_duration if last else None,
            "state-size": last.state_size if last else None,
        },
        "tasks": [
            {
                "id": vertex.minflinkd.task_id,
                "name": vertex.name,
                "status": vertex.status,
                "read-records": vertex.metrics.read_records,
                "write-records": vertex.metrics.write_records,
                "rows-per-second": _of_batches(vertex, vertex.minflinkd.rows_per_second),
                "batches": vertex.minflinkd.batches,
                "batch-duration": _of_batches(vertex, vertex.minflinkd.batch_duration),
                "state-rows": vertex.minflinkd.state_rows,
                "state-bytes": vertex.minflinkd.state_bytes,
                "watermark": vertex.minflinkd.watermark,
                "watermark-lag": watermark_lag(vertex, job.now),
                "pending-records": pending_records(vertex),
                "backpressured": vertex.minflinkd.backpressured,
                "backpressured-time": vertex.metrics.accumulated_backpressured_time,
                "output-backlog": vertex.minflinkd.output_backlog,
            }
            for vertex in job.vertices
        ],
    }


def _of_batches(vertex: JobVertex, value: float) -> float | None:
    return value if vertex.minflinkd.batches else None


def watermark_lag(vertex: JobVertex, now: int) -> int | None:
    """Return how many milliseconds the task's watermark is behind the daemon's clock. Pure."""
    watermark = vertex.minflinkd.watermark
    return None if not watermark or watermark <= 0 else now - watermark


def pending_records(vertex: JobVertex) -> int | None:
    """Return how many records of Kafka wait for the task. None: not known, or none of its sources is Kafka. Pure."""
    told = vertex.minflinkd.pending.values()
    return sum(source.records for source in told) if told else None


def _print(job: JobInfo, checkpoints: Checkpoints) -> None:
    own = job.minflinkd
    rate = f"{own.source_records_per_second:,.0f} rows/s from its sources"
    click.echo(f"{job.name} is {job.state}: {rate}; {own.source_records:,} rows in, {own.sink_records:,} out")
    if (last := checkpoints.latest.completed) is not None:
        took = f"{duration(last.end_to_end_duration)}, {size(last.state_size)}"
        click.echo(f"Last checkpoint: {last.id}, {took}; {checkpoints.counts.failed} have failed")
    columns = ["TASK", ">ROWS/S", ">BATCH", ">STATE ROWS", ">MEMORY", ">LAG", ">PENDING"]
    columns += ["HELD BACK", ">BACKLOG", ">IN", ">OUT"]
    print_table(columns, [_row(vertex, job.now) for vertex in job.vertices], empty="No task was planned yet.")


def _row(vertex: JobVertex, now: int) -> list[object]:
    task = vertex.minflinkd
    lag, pending = watermark_lag(vertex, now), pending_records(vertex)
    return [
        vertex.name,
        f"{task.rows_per_second:,.0f}" if task.batches else "-",
        duration(task.batch_duration) if task.batches else "-",
        f"{task.state_rows:,}" if task.state_rows else "-",
        size(task.state_bytes) if task.state_bytes else "-",
        "-" if lag is None else duration(max(lag, 0)),
        "-" if pending is None else short(pending),
        "by its readers" if task.backpressured else "no",
        size(task.output_backlog) if task.output_backlog else "-",
        short(vertex.metrics.read_records),
        short(vertex.metrics.write_records),
    ]
