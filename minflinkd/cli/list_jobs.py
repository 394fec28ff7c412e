"""`minflinkd list`: the jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from minflinkd.cli.connection import Connection, connection_options
from minflinkd.cli.output import print_json
from minflinkd.cli.text import ON_TRIAL, duration, moment, print_line, print_table, state

if TYPE_CHECKING:
    from minflinkd.cli.client import Client  # it imports aiohttp: only commands that need a daemon pay for that
    from minflinkd.rest.schemas import JobSummary, RepeatedRestarts


@click.command("list")
@click.option("-a", "--all", "with_ended", is_flag=True, help="Include jobs that have ended.")
@connection_options
def list_jobs(connection: Connection, with_ended: bool) -> None:
    """List the jobs, newest first.

    \b
    Examples:
      minflinkd list
      minflinkd list --all --json | jq '.jobs[].name'
    """

    async def show(client: Client) -> None:
        from minflinkd.rest.schemas import JobsOverview

        jobs = [job for job in (await client.jobs()).jobs if with_ended or job.end_time < 0]
        jobs.sort(key=lambda job: -job.start_time)
        if connection.as_json:
            print_json(JobsOverview(jobs=tuple(jobs)))
            return
        columns = ["JOB", "NAME", "STATE", ">TASKS", ">RESTARTS", "STARTED", ">DURATION"]
        empty = "No jobs." if with_ended else "No job is running. `minflinkd list --all` also lists those that ended."
        print_table(columns, map(_row, jobs), empty=empty)
        for job in jobs:
            if (found := job.minflinkd.restarting_repeatedly) is not None:
                print_line(_failing(job.name, found), "red")

    connection.run(show)


def _row(job: JobSummary) -> list[object]:
    tasks = f"{job.tasks.running + job.tasks.finished}/{job.tasks.total}"
    shown = state(job.state)
    if job.minflinkd.on_trial:
        shown.append(f", {ON_TRIAL}", "yellow")
    if job.minflinkd.restarting_repeatedly is not None:
        shown.append(", restarting repeatedly", "red")
    return [job.jid, job.name, shown, tasks, job.minflinkd.restarts, moment(job.start_time), duration(job.duration)]


def _failing(name: str, found: RepeatedRestarts) -> str:
    """The table has no room for it. The TaskManager comes first, as the end is cut on a narrow terminal."""
    where = f" on {found.taskmanager_id}" if found.taskmanager_id else ""
    where += f" in task {found.task_name}" if found.task_name else ""
    return f"{name}: {found.failures} failures in a row, the last{where}: {found.code}: {found.message}"
