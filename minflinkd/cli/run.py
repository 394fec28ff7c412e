"""`minflinkd run`: submit a job file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from minflinkd.cli.connection import Connection, connection_options
from minflinkd.cli.exits import ExitCode, Failure
from minflinkd.cli.job_files import JobFile, job_file_argument, script_arguments

if TYPE_CHECKING:
    from minflinkd.cli.client import Client  # it imports aiohttp: only commands that need a daemon pay for that
    from minflinkd.cli.submission import RefusedJob
    from minflinkd.rest.schemas import JobInfo, Submitted


@click.command()
@job_file_argument
@script_arguments
@click.option("-p", "--param", "params", multiple=True, metavar="KEY=VALUE", help="Set or replace one of the params.")
@click.option("--name", help="The job's name, instead of the one in the file.")
@click.option("--wait/--detach", default=False, help="Show the job until it has ended, or return when it is accepted.")
@click.option("--dry-run", is_flag=True, help="Only check the job: its file, graph, and (with Spark) SQL and schemas.")
@click.option(
    "--from-savepoint",
    metavar="PATH",
    help="Start from this savepoint, or from a checkpoint of any job; a path or a URL.",
)
@click.option(
    "--claim",
    is_flag=True,
    help="The job owns the savepoint, and deletes it after a later checkpoint.",
)
@click.option("--allow-non-restored-state", is_flag=True, help="Drop the state of vertices that the job no longer has.")
@click.option("--allow-changed-state", is_flag=True, help="Keep state although it means something else now.")
@connection_options
def run(
    connection: Connection,
    file: JobFile,
    args: tuple[str, ...],
    params: tuple[str, ...],
    name: str | None,
    wait: bool,
    dry_run: bool,
    from_savepoint: str | None,
    claim: bool,
    allow_non_restored_state: bool,
    allow_changed_state: bool,
) -> None:
    """Check the job in FILE, upload its artifacts and submit it. FILE may also be a PySpark script, with its ARGS.

    FILE is a path, or any URL that fsspec opens, with #sha256=... if its content must have that hash. Artifacts of a
    job file at a URL are relative to that URL. They are fetched by this command, not by the daemon.

    A script is executed on a TaskManager, also with --dry-run: each query that it would start becomes a task of the
    job. What is not taken over is said with its line, see docs/scripts.md. Options for the script come after --.

    Every fault is reported with its line. A refused job leaves nothing behind. If a param's VALUE looks like a number,
    true or false, it is one; everything else is text.

    \b
    Exit codes: 0 accepted (with --wait: FINISHED); 1 the job FAILED or was CANCELED; 2 refused with its faults;
    3 no daemon answers; 130 Ctrl-C, which leaves the job running.

    \b
    Examples:
      minflinkd run job.yaml
      minflinkd run job.yaml --wait -p minutes=30
      minflinkd run views.py 127.0.0.1:9092 /data/views
      minflinkd run views.py --name views -- --broker 127.0.0.1:9092
      minflinkd run job.yaml --dry-run
      minflinkd run job.yaml --json | jq -r .jobid
      minflinkd run s3://releases/clicks/1.4/job.yaml
      minflinkd run https://host/job.yaml#sha256=9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
      minflinkd run zip://job.yaml::https://host/release.zip
      minflinkd run job.yaml --from-savepoint /savepoints/savepoint-3fa9c2-0d41ffac9e12
    """
    from minflinkd.cli.submission import RefusedJob, in_options, submit

    values = params_of(params)
    allowed = {
        "allow-non-restored-state": allow_non_restored_state,
        "allow-changed-state": allow_changed_state,
    }
    restore = restore_of(from_savepoint, claim=claim, allowed=[name for name, given in allowed.items() if given])

    async def submitted(client: Client) -> ExitCode | None:
        tell = _quiet if connection.as_json else _tell
        try:
            accepted = await submit(
                client, file, args=args, params=values, name=name, restore=restore, dry_run=dry_run, tell=tell
            )
        except RefusedJob as error:
            raise refusal(connection, error if restore is None else in_options(error)) from error
        warn(accepted)
        return await accepted_or_ended(connection, client, accepted, wait=wait, dry_run=dry_run)

    connection.run(submitted)


def warn(accepted: Submitted) -> None:
    """Print the warnings about a job on stderr, even with JSON output."""
    for text in accepted.warnings:
        _tell(f"Warning: {text}.")


async def accepted_or_ended(
    connection: Connection, client: Client, accepted: Submitted, *, wait: bool, dry_run: bool
) -> ExitCode | None:
    """Print that a job was accepted; with `wait`, show it until it has ended."""
    if dry_run or not wait:
        _print_accepted(connection, client.url, accepted, dry_run=dry_run)
        return None
    connection.tell(f"Job {accepted.jobid} was accepted.")
    return await _until_ended(connection, client, accepted.jobid)


def restore_of(path: str | None, *, claim: bool, allowed: Sequence[str]) -> dict[str, Any] | None:
    """Return the options as a job file's `restore`, with `allowed` as keys. A path without a scheme is a local one."""
    if path is None:
        given = [*(["--claim"] if claim else []), *(f"--{name}" for name in allowed)]
        if given:
            says = "says" if len(given) == 1 else "say"
            raise click.UsageError(f"{' and '.join(given)} {says} how to use --from-savepoint.")
        return None
    absolute = path if "://" in path else str(Path(path).absolute())
    return {
        "path": absolute,
        "mode": "claim" if claim else "no-claim",
        **dict.fromkeys(allowed, True),
    }


def params_of(texts: tuple[str, ...]) -> dict[str, Any]:
    """Parse KEY=VALUE texts. Raises BadParameter."""
    return dict(_param(text) for text in texts)


def _param(text: str) -> tuple[str, Any]:
    import msgspec

    key, equals, value = text.partition("=")
    if not equals or not key:
        raise click.BadParameter(f"{text!r} is not KEY=VALUE", param_hint="--param")
    try:
        plain = msgspec.json.decode(value)
    except msgspec.DecodeError:
        return key, value
    return key, plain if isinstance(plain, int | float) else value


def _tell(text: str) -> None:
    click.echo(text, err=True)


def _quiet(_: str) -> None:
    pass


def refusal(connection: Connection, error: RefusedJob) -> Failure:
    from minflinkd.cli.endpoint import Refused
    from minflinkd.rest.schemas import ErrorAnswer, Fault

    if not connection.as_json:
        return Failure("\n".join([error.message, *error.lines()]), ExitCode.REFUSED)
    faults = tuple(
        Fault(
            path=fault.path,
            problem=fault.problem,
            hint=fault.hint,
            traceback=fault.traceback,
            line=fault.line,
            code=fault.code,
        )
        for fault in error.faults
    )
    answer = ErrorAnswer(
        errors=(error.message, *error.lines()), code=error.code, consequence=error.consequence, faults=faults
    )
    return connection.failure(Refused(400, answer))


def _print_accepted(connection: Connection, url: str, accepted: Submitted, *, dry_run: bool) -> None:
    from minflinkd.cli.output import print_json

    job_id = accepted.jobid
    if connection.as_json:
        told = {"jobid": job_id, "url": f"{url}/jobs/{job_id}", "dry-run": dry_run}
        print_json(told | ({"warnings": accepted.warnings} if accepted.warnings else {}))
    elif dry_run:
        click.echo("The job has no faults. Nothing was started.")
    else:
        click.echo(job_id)
        _tell(f"See it with: minflinkd info {job_id}")


async def _until_ended(connection: Connection, client: Client, job_id: str) -> ExitCode:
    import asyncio

    from minflinkd.cli.output import print_json
    from minflinkd.cli.watch import watch

    try:
        job = await watch(client, job_id)
    except asyncio.CancelledError:  # Ctrl-C
        _tell(f"\nThe job goes on. Cancel it with: minflinkd cancel {job_id}")
        raise
    if connection.as_json:
        print_json(job)
    else:
        await _print_end(client, job)
    return ExitCode.OK if job.state == "FINISHED" else ExitCode.JOB_ENDED_BADLY


async def _print_end(client: Client, job: JobInfo) -> None:
    from minflinkd.cli.text import duration

    click.echo(f"{job.jid} is {job.state} after {duration(job.duration)}.")
    if job.state == "FAILED":
        cause = (await client.exceptions(job.jid)).root_exception
        click.echo((cause or "No cause is known.").rstrip(), err=True)
