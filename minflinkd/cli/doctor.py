"""`minflinkd doctor`: what limits or ails a job, the cluster, or this machine (E19a)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from minflinkd.cli.check_config import parse_overrides
from minflinkd.cli.completing import jobs
from minflinkd.cli.connection import Connection, connection_options
from minflinkd.cli.exits import ExitCode
from minflinkd.cli.find import find_job
from minflinkd.cli.output import print_json
from minflinkd.cli.text import moment
from minflinkd.rest.schemas.diagnosis import Diagnosis, Finding

if TYPE_CHECKING:
    from minflinkd.cli.client import Client  # it imports aiohttp: only commands that need a daemon pay for that
    from minflinkd.cli.machine import Check

_COLOURS = {"critical": "red", "failed": "red", "warning": "yellow", "info": "blue", "ok": "green"}


@click.command()
@click.argument("job", required=False, shell_complete=jobs)
@click.option("-c", "--config", "file", type=click.Path(dir_okay=False, path_type=Path), help="For the machine.")
@click.option("-D", "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override an option.")
@click.option("--machine", "only_machine", is_flag=True, help="Check this machine alone; ask no daemon.")
@connection_options
def doctor(
    connection: Connection, job: str | None, file: Path | None, overrides: tuple[str, ...], *, only_machine: bool
) -> None:
    """Say what limits or ails JOB; without JOB, this machine, the cluster and all its jobs.

    Each finding is a sentence with the measured figure and what to do. What hurts most comes first. The machine is
    checked with the configuration that `minflinkd serve` would read: Java, memory, disk, ports, clock, permissions,
    and a round trip to each storage. That works before the first start, without a daemon.

    \b
    Exit codes: 0; 2 the daemon would not start, or no job would run on this machine; 4 there is no such job.
    \b
    Examples:
      minflinkd doctor
      minflinkd doctor clicks
      minflinkd doctor --machine --config new.yaml
      minflinkd doctor clicks --json | jq -r '.findings[].sentence'
    """
    if job is not None:
        if only_machine or file is not None or overrides:
            raise click.UsageError("--machine, --config and --set are about this machine: leave JOB out")
        connection.run(lambda client: _job(client, job, connection))
    elif only_machine:
        raise SystemExit(_machine_alone(file, parse_overrides(overrides), as_json=connection.as_json))
    else:
        connection.run(lambda client: _everything(client, file, parse_overrides(overrides), connection))


async def _job(client: Client, text: str, connection: Connection) -> ExitCode:
    found = await client.get(f"/jobs/{await find_job(client, text)}/diagnosis", Diagnosis)
    if connection.as_json:
        print_json(found)
    else:
        _print_diagnosis(found)
    return ExitCode.OK


async def _everything(client: Client, file: Path | None, overrides: dict[str, str], connection: Connection) -> ExitCode:
    """Show the machine's checks, and what the daemon finds, if one answers."""
    from minflinkd.cli.endpoint import DaemonUnreachable

    diagnosis, problem = None, ""
    try:
        diagnosis = await client.get("/diagnosis", Diagnosis)
    except DaemonUnreachable as error:
        problem = error.message
    found = await _machine(file, overrides, daemon_runs=diagnosis is not None)
    if connection.as_json:
        print_json({"machine": found, "daemon": problem, "diagnosis": diagnosis})
    else:
        click.secho("This machine", bold=True)
        _print_checks(found)
        click.echo()
        click.secho("The cluster", bold=True)
        if diagnosis is None:
            click.echo(f"  {problem}\n  Once it runs, `minflinkd doctor` tells more.")
        else:
            _print_diagnosis(diagnosis)
    return _outcome(found)


def _machine_alone(file: Path | None, overrides: dict[str, str], *, as_json: bool) -> ExitCode:
    import asyncio

    found = asyncio.run(_machine(file, overrides, daemon_runs=False))
    if as_json:
        print_json({"machine": found})
    else:
        _print_checks(found)
    return _outcome(found)


async def _machine(file: Path | None, overrides: dict[str, str], *, daemon_runs: bool) -> list[Check]:
    from minflinkd.cli.machine import Check, Outcome, checks
    from minflinkd.config import ConfigError, load_config
    from minflinkd.config.load import configuration_file
    from minflinkd.runtime.log import warnings_only

    file = file or configuration_file(os.environ)
    try:
        config = load_config(file, os.environ, overrides)
    except ConfigError as error:
        do = "`minflinkd check-config` names every fault; the other checks need a right configuration"
        return [Check(name="configuration", outcome=Outcome.FAILED, sentence=str(error), do=do)]
    told = f"{file or 'the defaults'}: no faults"
    first = Check(name="configuration", outcome=Outcome.OK, sentence=told)
    with warnings_only():
        return [first, *[found async for found in checks(config, os.environ, daemon_runs=daemon_runs)]]


def _outcome(found: Sequence[Check]) -> ExitCode:
    return ExitCode.REFUSED if any(each.outcome == "failed" for each in found) else ExitCode.OK


def _print_checks(found: Sequence[Check]) -> None:
    for each in found:
        click.echo(f"  {_mark(each.outcome)} {each.name}: {each.sentence}")
        if each.do:
            click.echo(f"            {each.do}")


def _print_diagnosis(found: Diagnosis) -> None:
    click.echo(f"  {found.summary}")
    for each in found.findings:
        click.echo()
        _print_finding(each)
    if found.jobs_left_out:
        click.echo(f"\n  {found.jobs_left_out} more running jobs were not looked at.")


def _print_finding(finding: Finding) -> None:
    click.echo(f"  {_mark(finding.severity)} {finding.title}{_about(finding)}")
    click.echo(f"            {finding.sentence}.")
    if finding.since >= 0:
        click.echo(f"            Since {moment(finding.since)}.")
    if finding.do:
        click.echo(f"            What to do: {finding.do}.")
    if finding.where:
        click.echo(f"            More: {finding.where}")


def _about(finding: Finding) -> str:
    name = finding.job_name or finding.job
    return f" (job {name})" if name else ""


def _mark(word: str) -> str:
    return click.style(f"{word:<9}", fg=_COLOURS.get(word))
