"""`minflinkd info`: one job, or the whole cluster."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from minflinkd.cli.completing import jobs
from minflinkd.cli.connection import Connection, connection_options
from minflinkd.cli.find import find_job
from minflinkd.cli.output import print_json
from minflinkd.cli.taskmanagers import warnings
from minflinkd.cli.text import ON_TRIAL, duration, moment, print_table, size, state

if TYPE_CHECKING:
    from minflinkd.cli.client import Client  # it imports aiohttp: only commands that need a daemon pay for that
    from minflinkd.rest.schemas import (
        AutoscalerInfo,
        Checkpoints,
        ClusterOverview,
        HotRestartInfo,
        JobExceptions,
        JobInfo,
        JobVertex,
        PendingInfo,
        RealTimeInfo,
        RepeatedRestarts,
        SinkInfo,
        TaskManager,
    )

MOST_PARTITIONS = 5  # of a source of Kafka that are named


@click.command()
@click.argument("job", required=False, shell_complete=jobs)
@connection_options
def info(connection: Connection, job: str | None) -> None:
    """Show a job with its tasks, checkpoints and last failure; without JOB, the cluster.

    JOB is an id, the beginning of one, or a name.

    \b
    Examples:
      minflinkd info
      minflinkd info carrier-delays
      minflinkd info 3fa9 --json | jq .state
    """

    async def show(client: Client) -> None:
        if job is None:
            overview = await client.overview()
            if connection.as_json:
                print_json(overview)
            else:
                known = (await client.task_managers()).taskmanagers
                _print_cluster(overview, client.url, known)
                for line in warnings(known):
                    click.secho(line, fg="yellow")
            return
        job_id = await find_job(client, job)
        details = await client.job(job_id)
        if connection.as_json:
            print_json(details)
            return
        _print_job(details, await client.checkpoints(job_id), await client.exceptions(job_id))

    connection.run(show)


def _print_cluster(overview: ClusterOverview, url: str, known: Iterable[TaskManager]) -> None:
    extras = overview.minflinkd
    click.echo(f"minflinkd {extras.version} at {url}")
    if (leader := extras.leader) is not None and leader.since > 0:
        click.echo(f"Leader: {leader.name} since {moment(leader.since)} (epoch {leader.epoch})")
    for standby in extras.standbys:
        click.echo(f"Standby: {standby.name} at {standby.url}")
    if extras.trouble:
        click.secho(f"Trouble: {extras.trouble}", fg="yellow")
    click.echo(
        f"Jobs: {overview.jobs_running} running, {overview.jobs_finished} finished, "
        f"{overview.jobs_cancelled} canceled, {overview.jobs_failed} failed"
    )
    starting = f", {len(extras.starting)} starting" if extras.starting else ""
    click.echo(f"TaskManagers: {overview.taskmanagers}{starting}")
    waiting = sum(tm.free_slots for tm in known if tm.minflinkd.session != "ready")
    unready = f", {waiting} of them on a TaskManager whose session is not ready yet" if waiting else ""
    click.echo(f"Slots: {overview.slots_available} of {overview.slots_total} free{unready}")


def _published(sink: SinkInfo) -> str:
    told = "" if sink.published is None else f", checkpoint {sink.published} is published"
    later = "later ones" if told else "checkpoints"
    return told + (f", {sink.unpublished} {later} wait" if sink.unpublished > 1 else "")


def _compacted(sink: SinkInfo, now: int) -> str:
    if (told := sink.compactions) is None:
        return ""
    if told.failure is not None:
        return f"; the last compaction, {duration(now - told.last)} ago, failed: {told.failure}"
    deleted = f", {told.deleted:,} old ones deleted" if told.deleted else ""
    overtaken = f", {told.overtaken:,} commits overtaken by others" if told.overtaken else ""
    joined = f"{told.files:,} files into {told.into:,}"
    return f"; compacted {duration(now - told.last)} ago, {joined}{deleted}{overtaken} in all"


def _real_time(told: RealTimeInfo) -> str:
    latency, pause = "", ""
    if told.latency_p50 is not None:
        latency = (
            f"; latency {told.latency_p50:,} ms (99 %: {told.latency_p99:,} ms, longest {told.latency_longest:,} ms)"
        )
    if told.cut_pause is not None:
        pause = f"; the last pause was {told.cut_pause:,.0f} ms"
    return f"{told.rows_per_second:,.0f} rows/s{latency}{pause}"


def _pending(told: PendingInfo) -> str:
    """Say how many records wait, and where most of them are."""
    parts = sorted(((part, count) for part, count in told.parts.items() if count), key=lambda one: (-one[1], one[0]))
    named = [f"{part} {count:,}" for part, count in parts[:MOST_PARTITIONS]]
    where = ", ".join([*named, "..."] if len(parts) > MOST_PARTITIONS else named)
    what = "1 record waits" if told.records == 1 else f"{told.records:,} records wait"
    return f"{what} in Kafka" + (f" ({where})" if where else "")


def _autoscaler(told: AutoscalerInfo) -> str:
    if not told.enabled:
        return "off"
    bounds = f"{told.min} to {told.max} slots, target {told.target_utilization:.0%}"
    return f"{bounds}; {told.verdict}: {told.why}" if told.verdict else f"{bounds}; it has not looked at the job yet"


def _print_job(job: JobInfo, checkpoints: Checkpoints, exceptions: JobExceptions) -> None:
    from minflinkd.runtime.errors import in_a_line

    click.echo(f"{job.name} ({job.jid})")
    click.echo("State: ", nl=False)
    click.secho(job.state, bold=True, nl=False)
    ended = f", ended {moment(job.end_time)}" if job.end_time > 0 else ""
    click.echo(f", started {moment(job.start_time)}{ended}, {duration(job.duration)}")
    if job.minflinkd.owner:
        click.echo(f"Submitted by: {job.minflinkd.owner}")
    if job.minflinkd.restarting_repeatedly is not None:
        _print_repeated(job.minflinkd.restarting_repeatedly, job.jid)
    if job.minflinkd.next_restart is not None:
        click.echo(f"Next restart: in {duration(max(0, job.minflinkd.next_restart - job.now))}")
    counts, last = checkpoints.counts, checkpoints.latest.completed
    click.echo(f"Checkpoints: {counts.completed} completed, {counts.failed} failed", nl=False)
    click.echo(f", the last took {duration(last.end_to_end_duration)}, {size(last.state_size)}" if last else "")
    for sink in job.minflinkd.sinks:
        click.echo(f"Sink {sink.vertex}: {sink.format}, {sink.delivery}{_published(sink)}{_compacted(sink, job.now)}")
    for task in job.vertices:
        if (figures := task.minflinkd.real_time) is not None:
            click.echo(f"Real-time: {task.name}: {_real_time(figures)}")
        for source, pending in sorted(task.minflinkd.pending.items()):
            click.echo(f"Pending: {source}: {_pending(pending)}")
    if job.minflinkd.bad_records:
        counts_of = (f"{count:,} of {vertex}" for vertex, count in sorted(job.minflinkd.bad_records.items()))
        click.echo(f"Bad records: {', '.join(counts_of)}")
    if (scaler := job.minflinkd.autoscaler) is not None:
        click.echo(f"Autoscaler: {_autoscaler(scaler)}")
    if (standby := job.minflinkd.hot_standby) is not None:
        where = standby.taskmanager_id or "none"
        click.echo(
            f"Hot standby: {where}, ready" if standby.ready else f"Hot standby: {where}, not ready: {standby.why}"
        )
    for why in job.minflinkd.waiting:
        click.echo(f"Waiting for slots: {why}")
    if job.minflinkd.restarts:
        click.echo(f"Restarts: {job.minflinkd.restarts}")
        for recovery in reversed(job.minflinkd.recoveries[-3:]):
            phases = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in recovery.phases.items())
            source = f" from checkpoint {recovery.checkpoint_id}" if recovery.checkpoint_id is not None else ""
            part = f", only {', '.join(recovery.tasks)}" if recovery.tasks else ""
            when, why = moment(recovery.failed), in_a_line(recovery.cause)
            click.echo(f"  {when}: {why}{source}{part}; {phases or 'under way'}")
    for restart in job.minflinkd.hot_restarts[:3]:
        phases = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in restart.phases.items())
        why = f", for the autoscaler: {in_a_line(restart.reason)}" if restart.reason else ""
        why += f": {in_a_line(restart.error.message)}" if restart.error is not None else ""
        told = ON_TRIAL if restart.state == "on-trial" else restart.state
        click.echo(f"Hot restart {restart.number}, {moment(restart.requested)}: {told}{why}; {phases}")
    click.echo()
    columns = ["TASK", "STATE", ">P", ">ATTEMPT", "TASKMANAGER", ">ROWS IN", ">ROWS OUT", ">BATCH", ">STATE ROWS"]
    print_table(columns, map(_row, job.vertices), empty="No task was planned yet.")
    if exceptions.root_exception:
        _print_failure(exceptions, _version_since(job.minflinkd.hot_restarts, exceptions.timestamp or 0))


def _print_failure(exceptions: JobExceptions, later: HotRestartInfo | None) -> None:
    """Print a failure. `later` is the hot restart that led to the running version, if another version failed."""
    from minflinkd.runtime.errors import in_a_line

    text, when = (exceptions.root_exception or "").rstrip(), moment(exceptions.timestamp or 0)
    if later is None:
        click.echo(f"\nLast failure, {when}:\n{text}")
        return
    newest = exceptions.history.entries[0].minflinkd if exceptions.history.entries else None
    told = f"{newest.code}: {newest.message}" if newest is not None else text
    click.echo(f"\nNo failure since hot restart {later.number}. The last one of an earlier version, {when}:")
    click.echo(f"  {in_a_line(told)}")


def _version_since(restarts: Iterable[HotRestartInfo], failed: int) -> HotRestartInfo | None:
    """Return the newest hot restart that led to another version, if this failure is older than that version.

    A failure before the tasks have stopped belongs to the previous version.
    """
    led = next((restart for restart in restarts if restart.state in ("completed", "on-trial")), None)
    if led is None:
        return None
    return led if failed <= led.requested + round(1000 * led.phases.get("stopped", 0.0)) else None


def _print_repeated(found: RepeatedRestarts, job_id: str) -> None:
    from minflinkd.runtime.errors import in_a_line

    where = f" in task {found.task_name}" if found.task_name else ""
    where += f" on {found.taskmanager_id}" if found.taskmanager_id else ""
    click.secho(f"Restarting repeatedly: {found.failures} failures in a row since {moment(found.since)}", fg="red")
    click.echo(f"  the last at {moment(found.timestamp)}{where}: {found.code}: {in_a_line(found.message)}")
    log = f"minflinkd logs {found.taskmanager_id}" if found.taskmanager_id else f"minflinkd info {job_id} --json"
    click.echo(f"  see below, and `{log}`; fix the job with a hot restart, or cancel it")


def _row(vertex: JobVertex) -> list[object]:
    task = vertex.minflinkd
    return [
        vertex.name,
        state(vertex.status),
        vertex.parallelism,
        task.attempt_number,
        task.taskmanager_id or "-",
        vertex.metrics.read_records,
        vertex.metrics.write_records,
        duration(task.batch_duration) if task.batches else "-",
        task.state_rows,
    ]
