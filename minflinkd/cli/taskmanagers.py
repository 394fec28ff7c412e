"""`minflinkd taskmanagers`: the registered TaskManagers, and who holds their slots."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import click

from minflinkd.cli.completing import task_managers
from minflinkd.cli.connection import Connection, connection_options
from minflinkd.cli.find import find_task_manager
from minflinkd.cli.output import print_json
from minflinkd.cli.text import duration, moment, print_table, size, state

if TYPE_CHECKING:
    from minflinkd.cli.client import Client  # it imports aiohttp: only commands that need a daemon pay for that
    from minflinkd.rest.schemas import StartingInfo, TaskManager, TaskManagerDetails


@click.command()
@click.argument("taskmanager", required=False, shell_complete=task_managers)
@connection_options
def taskmanagers(connection: Connection, taskmanager: str | None) -> None:
    """List the TaskManagers; with TASKMANAGER (or the beginning of its id), show one with its slots.

    \b
    Examples:
      minflinkd taskmanagers
      minflinkd taskmanagers tm-3f --json | jq .allocatedSlots
    """

    async def show(client: Client) -> None:
        if taskmanager is not None:
            details = await client.task_manager(await find_task_manager(client, taskmanager))
            if connection.as_json:
                print_json(details)
            else:
                _print_one(details)
            return
        known = await client.task_managers()
        if connection.as_json:
            print_json(known)
            return
        columns = [
            "TASKMANAGER",
            "SESSION",
            ">FREE",
            ">SLOTS",
            ">PID",
            "VERSION",
            ">HEARTBEAT",
            "REGISTERED",
            "EACH SLOT",
        ]
        now = time.time() * 1000
        print_table(columns, [_row(info, now) for info in known.taskmanagers], empty="No TaskManager is registered.")
        for line in (*warnings(known.taskmanagers), *waiting((await client.overview()).minflinkd.starting)):
            click.secho(line, fg="yellow")

    connection.run(show)


def waiting(starting: Iterable[StartingInfo]) -> list[str]:
    """Return a line for each TaskManager whose process does not run yet, with the reason."""
    return [f"Warning: {each.id} does not run yet: {each.waiting}" for each in starting if each.waiting]


def warnings(known: Iterable[TaskManager]) -> list[str]:
    """Return a line for each TaskManager whose session starts slowly or not at all."""
    said = ((info.id, info.minflinkd.session_slow or info.minflinkd.session_error) for info in known)
    return [f"Warning: {name}: {why}" for name, why in said if why]


def _row(info: TaskManager, now: float) -> list[object]:
    extras = info.minflinkd
    age = f"{duration(max(0.0, now - info.time_since_last_heartbeat))} ago"
    return [
        info.id,
        "draining" if extras.draining else state(extras.session),
        info.free_slots,
        info.slots_number,
        extras.pid,
        extras.version,
        age,
        moment(extras.registered),
        _amounts({name: amount for name, amount in extras.each_slot.items() if name not in ("off-heap", "disk")}),
    ]


def _amounts(each_slot: Mapping[str, float]) -> str:
    from minflinkd.runtime.resource_profile import written  # it imports msgspec

    return ", ".join(f"{written(name, amount)} {name}" for name, amount in each_slot.items())


def _print_one(info: TaskManagerDetails) -> None:
    extras = info.minflinkd
    memory = size(info.hardware.physical_memory)
    version = f"minflinkd {extras.version}, " if extras.version else ""
    click.echo(f"{info.id}, {version}pid {extras.pid}, {info.hardware.cpu_cores} cores, {memory}")
    if extras.each_slot:
        click.echo(f"Each slot: {_amounts(extras.each_slot)}")
    click.echo(f"Session: {extras.session}, number {extras.session_generation} of this TaskManager")
    if extras.draining:
        click.echo("Draining: it gives out no slots, and ends when all its slots are free")
        for job, why in extras.held_by.items():
            click.echo(f"  job {job} {f'is still there: {why}' if why else 'is moving'}")
    for line in warnings([info]):
        click.secho(line, fg="yellow")
    if extras.start_phases:
        click.echo("Start: " + ", ".join(f"{name} {seconds:.2f} s" for name, seconds in extras.start_phases.items()))
    rows = ([slot.index, slot.job_id or "free", slot.allocation_id or ""] for slot in extras.slots)
    print_table([">SLOT", "JOB", "ALLOCATION"], rows, empty="It has no slots.")
    if extras.metrics:
        click.echo("Metrics:")
    for name, value in sorted(extras.metrics.items()):
        click.echo(f"  {name} = {value:g}")
