"""`minflinkd hot-restart` and `minflinkd rescale`: another version of a running job (H1)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from minflinkd.cli.completing import live_jobs
from minflinkd.cli.connection import Connection, connection_options
from minflinkd.cli.exits import ExitCode, Failure
from minflinkd.cli.find import find_job
from minflinkd.cli.job_files import JobFile, job_file_argument, script_arguments
from minflinkd.cli.output import print_json
from minflinkd.cli.run import params_of, refusal
from minflinkd.cli.text import ON_TRIAL

if TYPE_CHECKING:
    from minflinkd.cli.client import Client  # it imports aiohttp: only commands that need a daemon pay for that
    from minflinkd.rest.schemas import HotRestartInfo, SettingDiff, VersionDiff

_ON_TRIAL = "on-trial"
_GRACE = 5.0  # seconds to follow a version without input: a job with little input may get some by then
_PAUSE = 0.05  # seconds between two queries
_SIGNS = {"added": "+", "removed": "-", "changed": "~"}
_ENDED = frozenset({"CANCELED", "FAILED", "FINISHED"})
_wait_trial = click.option(
    "--wait-trial", is_flag=True, help="If the job has no input, wait until it has some and the new version is proven."
)


@click.command("hot-restart")
@click.argument("job", shell_complete=live_jobs)
@job_file_argument
@script_arguments
@click.option("-p", "--param", "params", multiple=True, metavar="KEY=VALUE", help="Set or replace one of the params.")
@click.option("--dry-run", is_flag=True, help="Only check the new version, and show what changes.")
@click.option("--yes", is_flag=True, help="Do not ask whether to go on.")
@click.option(
    "--checkpoint",
    type=click.Choice(["final", "latest"]),
    default="final",
    show_default=True,
    help="Start the new version from a checkpoint that is taken now, or from the last completed one.",
)
@click.option("--allow-non-restored-state", is_flag=True, help="Drop the state that the new version has no place for.")
@click.option("--allow-changed-state", is_flag=True, help="Keep state although it means something else now.")
@click.option("--replace", is_flag=True, help="Replace a hot restart that is under way.")
@_wait_trial
@click.option("--detach", is_flag=True, help="Return when the new version is accepted.")
@connection_options
def hot_restart(
    connection: Connection,
    job: str,
    file: JobFile,
    args: tuple[str, ...],
    params: tuple[str, ...],
    dry_run: bool,
    yes: bool,
    checkpoint: str,
    allow_non_restored_state: bool,
    allow_changed_state: bool,
    replace: bool,
    wait_trial: bool,
    detach: bool,
) -> None:
    """Replace the running JOB with the version in FILE. It continues from the job's state, in the same warm sessions.

    FILE is a path or a URL, or a script with its ARGS, as for `minflinkd run`.

    The new version is checked before anything stops. If it does not come up, the old version runs again from the
    checkpoint that it stopped with. If the job has no input, the new version is on trial until it has some; the command
    waits for that only with --wait-trial.

    \b
    Exit codes: 0 the new version runs, and has completed a checkpoint, or is on trial; 1 the old version runs again,
    or the job has ended; 2 refused with its faults; 3 no daemon answers; 5 a hot restart is under way.

    \b
    Examples:
      minflinkd hot-restart carrier-delays job.yaml
      minflinkd hot-restart carrier-delays https://host/releases/7/job.yaml
      minflinkd hot-restart carrier-delays job.yaml --yes -p minutes=30
      minflinkd hot-restart carrier-delays job.yaml --dry-run --json | jq .changes
      minflinkd hot-restart carrier-delays job.yaml --yes --wait-trial
    """
    import asyncio

    from minflinkd.cli.submission import RefusedJob, restart

    values, tell = params_of(params), _quiet if connection.as_json else _tell
    options = {"checkpoint": checkpoint}
    flags = {
        "allow-non-restored-state": allow_non_restored_state,
        "allow-changed-state": allow_changed_state,
        "replace": replace,
    }
    options |= {name: "true" for name, given in flags.items() if given}

    async def restarted(client: Client) -> ExitCode | None:
        job_id = await find_job(client, job)
        try:
            if dry_run or not (yes or connection.as_json):
                looked = {**options, "dry-run": "true"}
                checked = await restart(client, job_id, file, args=args, params=values, options=looked, tell=tell)
                if connection.as_json:
                    print_json(checked)
                else:
                    _print_changes(checked.changes)
                if dry_run:
                    return None
                if not await asyncio.to_thread(click.confirm, "Restart the job with these changes?", err=True):
                    tell("The job goes on as it is.")
                    return ExitCode.OK
            accepted = await restart(client, job_id, file, args=args, params=values, options=options, tell=_quiet)
        except RefusedJob as error:
            raise refusal(connection, error) from error
        if not connection.as_json and yes:  # otherwise the prompt has shown them
            _print_changes(accepted.changes)
        if detach:
            if connection.as_json:
                print_json(accepted)
            return None
        return await _follow(connection, client, job_id, accepted.number, wait_trial=wait_trial)

    connection.run(restarted)


@click.command()
@click.argument("job", shell_complete=live_jobs)
@click.option("--parallelism", type=click.IntRange(1), required=True, help="For all tasks of the job.")
@click.option("--least", type=click.IntRange(1), help="The least number of slots a task starts with.")
@_wait_trial
@click.option("--detach", is_flag=True, help="Return when it has begun.")
@connection_options
def rescale(
    connection: Connection, job: str, parallelism: int, least: int | None, wait_trial: bool, detach: bool
) -> None:
    """Change the parallelism of the running JOB.

    Nothing stops if its TaskManagers have the slots and its state has at least so many partitions. Otherwise it is a
    hot restart of the same version; state with fewer partitions is repartitioned first, which takes longer. A
    parallelism above the job's max-parallelism is refused. A job with an `autoscaler` changes it again, not before its
    cool-down has passed.

    \b
    Exit codes: as for `minflinkd hot-restart`.

    \b
    Examples:
      minflinkd rescale carrier-delays --parallelism 4
    """

    async def rescaled(client: Client) -> ExitCode | None:
        job_id = await find_job(client, job)
        before = await client.job(job_id)
        bounds = {"upperBound": parallelism} | ({} if least is None else {"lowerBound": least})
        await client.rescale(job_id, {vertex.id: bounds for vertex in before.vertices})
        if detach:
            return None
        last = max((r.number for r in before.minflinkd.hot_restarts), default=0)
        return await _follow(connection, client, job_id, last + 1, wait_trial=wait_trial)

    connection.run(rescaled)


async def _follow(connection: Connection, client: Client, job_id: str, number: int, *, wait_trial: bool) -> ExitCode:
    """Report each phase as it ends, until the restart is over or waits for input."""
    import asyncio

    told = set[str]()
    waits_since: float | None = None
    while True:
        job = await client.job(job_id)
        found = next((r for r in job.minflinkd.hot_restarts if r.number == number), None)
        if found is None and job.state in _ENDED:
            raise Failure(f"{job_id} is {job.state}.", ExitCode.JOB_ENDED_BADLY)
        if found is not None:
            if not connection.as_json:
                for phase, seconds in sorted(found.phases.items(), key=lambda part: part[1]):
                    if phase not in told:
                        told.add(phase)
                        _tell(f"{seconds:8.3f} s  {phase.replace('_', ' ')}")
            if found.state == _ON_TRIAL and waits_since is None:
                waits_since = time.monotonic()
            waited = waits_since is not None and time.monotonic() - waits_since >= _GRACE
            if found.over or (found.state == _ON_TRIAL and waited and not wait_trial):
                return _end(connection, found)
        await asyncio.sleep(_PAUSE)


def _end(connection: Connection, restart: HotRestartInfo) -> ExitCode:
    if connection.as_json:
        print_json(restart)
    elif restart.state == "completed":
        click.echo("The new version runs" + (", with the tasks that ran." if "handed_over" in restart.phases else "."))
    elif restart.state == _ON_TRIAL:
        click.echo(f"The new version runs, and is {ON_TRIAL}. If it fails on its first rows, the old one comes back.")
    else:
        error = restart.error
        why = "" if error is None else f": {error.message}" + (f"\n{error.hint}" if error.hint else "")
        told = "The job goes on as it was" if restart.state in ("failed", "rolled-back") else "It was given up"
        click.echo(f"{told} ({restart.state}){why}", err=True)
    return ExitCode.OK if restart.state in ("completed", _ON_TRIAL) else ExitCode.JOB_ENDED_BADLY


def _print_changes(changes: VersionDiff) -> None:
    for vertex in changes.vertices:
        fields = f": {', '.join(vertex.fields)}" if vertex.fields else ""
        click.echo(f"{_SIGNS[vertex.change]} vertex {vertex.vertex}{fields}")
    for setting in changes.settings:
        click.echo(_setting(setting))
    for state in changes.state:
        reason = f": {state.reason}" if state.reason else ""
        click.echo(f"  state of {state.vertex} ({state.kind}) is {state.fate}{reason}")
    if not (changes.vertices or changes.settings):
        click.echo("Nothing changes.")


def _setting(setting: SettingDiff) -> str:
    """Describe a changed setting. For an artifact, whose values are hashes, only the kind of change is named."""
    kind, _, name = setting.path.partition(".")
    if kind != "artifacts":
        return f"~ {setting.path}: {setting.before or 'not set'} -> {setting.after or 'not set'}"
    if setting.before and setting.after:
        return f"~ {name}: content changed"
    return f"+ {name}" if setting.after else f"- {name}"


def _tell(text: str) -> None:
    click.echo(text, err=True)


def _quiet(_: str) -> None:
    pass
