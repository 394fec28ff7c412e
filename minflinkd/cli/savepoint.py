"""`minflinkd savepoint`: take, inspect or delete a savepoint."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from minflinkd.cli.check_config import parse_overrides
from minflinkd.cli.completing import live_jobs
from minflinkd.cli.connection import Connection, connection_options
from minflinkd.cli.exits import ExitCode, Failure, failure_of
from minflinkd.cli.find import find_job
from minflinkd.cli.output import output_options, print_json
from minflinkd.cli.text import moment, print_table, size

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from minflinkd.checkpoint.external import External
    from minflinkd.cli.client import Client  # it imports aiohttp: only commands that need a daemon pay for that

_TAKE = "take"


class _OrTake(click.Group):
    """`savepoint JOB` is short for `savepoint take JOB`."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self.commands:
            args = [_TAKE, *args]
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        found = super().shell_complete(ctx, incomplete)
        if incomplete.startswith("-"):
            return found
        take = self.commands[_TAKE]
        with take.make_context(_TAKE, [], parent=ctx, resilient_parsing=True) as of_take:
            return found + live_jobs(of_take, take.params[0], incomplete)


@click.group(cls=_OrTake, subcommand_metavar="JOB [DIRECTORY] | COMMAND [ARGS]...")
def savepoint() -> None:
    """Take a savepoint of a job: `minflinkd savepoint JOB [DIRECTORY]`; inspect or dispose of one.

    A savepoint is a directory that needs no other files. No job deletes it, except one that was started from it with
    --claim.

    \b
    Examples:
      minflinkd savepoint carrier-delays /data/savepoints
      minflinkd savepoint inspect /data/savepoints/savepoint-3fa9c2-0d41ffac9e12 --verify --json
      minflinkd savepoint dispose /data/savepoints/savepoint-3fa9c2-0d41ffac9e12
    """


@savepoint.command(_TAKE)
@click.argument("job", shell_complete=live_jobs)
@click.argument("directory", required=False)
@connection_options
def take(connection: Connection, job: str, directory: str | None) -> None:
    """Take a savepoint of JOB, which keeps running. Prints the savepoint's path.

    JOB is an id, the beginning of one, or a name. DIRECTORY is a URI, or a path on the daemon's machine.
    The default is execution.checkpointing.savepoint-dir. If that is not set either, savepoints are written to
    `savepoints` next to the checkpoints.

    \b
    Examples:
      minflinkd savepoint take carrier-delays
      minflinkd savepoint take carrier-delays s3://bucket/savepoints
    """

    async def taken(client: Client) -> None:
        job_id = await find_job(client, job)
        connection.tell("Taking a savepoint")
        path = await client.savepoint(job_id, directory)
        if connection.as_json:
            print_json({"jobid": job_id, "savepoint": path})
        else:
            click.echo(path)

    connection.run(taken)


@savepoint.command()
@click.argument("path")
@connection_options
def dispose(connection: Connection, path: str) -> None:
    """Delete the savepoint at PATH, or a retained checkpoint. The daemon does it, with its access to the storage.

    A checkpoint of a job that runs is refused (exit code 2).

    \b
    Examples:
      minflinkd savepoint dispose /data/savepoints/savepoint-3fa9c2-0d41ffac9e12
    """

    async def gone(client: Client) -> None:
        await client.dispose_savepoint(path)
        if connection.as_json:
            print_json({"savepoint": path, "disposed": True})
        else:
            click.echo(f"{path} is deleted.")

    connection.run(gone)


@savepoint.command()
@click.argument("path")
@click.option("--verify", is_flag=True, help="Read all of it, and compare the checksums.")
@click.option("--config", "file", type=click.Path(dir_okay=False, path_type=Path), help="For the options storage.*.")
@click.option("-D", "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override an option.")
@output_options
def inspect(path: str, verify: bool, file: Path | None, overrides: tuple[str, ...], as_json: bool) -> None:
    """Show what is in the savepoint or checkpoint at PATH: tasks, vertices, state, offsets. Needs no daemon.

    \b
    Exit codes: 0; 2 it cannot be read, or with --verify something of it is missing or damaged; 3 the storage does not
    answer; 4 there is none.
    \b
    Examples:
      minflinkd savepoint inspect /data/savepoints/savepoint-3fa9c2-0d41ffac9e12
      minflinkd savepoint inspect s3://bucket/checkpoints/0f3a.../chk-12 --verify --json | jq .tasks
    """
    import asyncio

    from minflinkd.config import ConfigError, load_config
    from minflinkd.config.load import configuration_file
    from minflinkd.runtime.errors import MinflinkError
    from minflinkd.runtime.log import warnings_only

    try:
        config = load_config(file or configuration_file(os.environ), os.environ, parse_overrides(overrides))
        absolute = path if "://" in path else str(Path(path).absolute())
        with warnings_only():
            found, verified = asyncio.run(_read(absolute, dict(config.storage.options), verify=verify))
    except ConfigError as error:
        raise Failure(str(error), ExitCode.REFUSED) from error
    except MinflinkError as error:
        raise failure_of(error) from error
    if as_json:
        print_json(_shown(found, verified))
    else:
        _print(found, verified)


async def _read(path: str, options: dict[str, str], *, verify: bool) -> tuple[External, int | None]:
    from minflinkd.checkpoint.external import read_external
    from minflinkd.checkpoint.savepoints import verify as verify_files
    from minflinkd.storage.registry import Storages

    storages = Storages(options)
    try:
        found = await read_external(storages, path)
        return found, await verify_files(found.root, found.checkpoint) if verify else None
    finally:
        await storages.aclose()


def _shown(found: External, verified: int | None) -> dict[str, Any]:
    checkpoint = found.checkpoint
    return {
        "path": found.directory.uri,
        "job-id": checkpoint.job_id,
        "checkpoint-id": checkpoint.checkpoint_id,
        "kind": checkpoint.kind.value,
        "self-contained": checkpoint.self_contained,
        "triggered": checkpoint.triggered_ms,
        "completed": checkpoint.completed_ms,
        "verified-bytes": verified,
        "physical-files": sorted(checkpoint.physical_files()),
        "tasks": [
            {
                "task-id": task.task_id,
                "parallelism": task.parallelism,
                "partitions": task.partitions,
                "batch-id": task.batch_id,
                "input-ended": task.input_ended,
                "files": len(task.files),
                "bytes": sum(item.handle.length for item in task.files),
                "offsets": task.source_offsets,
                "operators": [
                    {
                        "vertex": node.vertex,
                        "kind": node.kind,
                        "stateful": node.stateful,
                        "number": node.number,
                        "fingerprint": node.fingerprint,
                        "bytes": _bytes(task.files, node.number) if node.stateful else 0,
                    }
                    for node in task.operators
                ],
            }
            for task in checkpoint.tasks
        ],
    }


def _bytes(files: Any, operator: int) -> int:
    return sum(item.handle.length for item in files if item.path.startswith(f"state/{operator}/"))


def _print(found: External, verified: int | None) -> None:
    shown, checkpoint = _shown(found, verified), found.checkpoint
    what = "savepoint" if checkpoint.self_contained else "checkpoint"
    click.echo(f"{what} {checkpoint.checkpoint_id} of job {checkpoint.job_id}, {moment(checkpoint.completed_ms)}")
    rows: list[list[object]] = []
    for task in shown["tasks"]:
        offsets = task["offsets"]
        rows += [
            [
                task["task-id"],
                task["parallelism"],
                node["vertex"] or "?",
                node["kind"],
                size(node["bytes"]) if node["stateful"] else "",
                "" if node["stateful"] else offsets.get(node["vertex"], ""),
            ]
            for node in task["operators"]
        ]
    print_table(["TASK", ">PARALLELISM", "VERTEX", "KIND", ">STATE", "OFFSET"], rows, empty="No state.")
    total = sum(task["bytes"] for task in shown["tasks"])
    click.echo(f"{size(total)} in {len(shown['physical-files'])} files")
    if verified is not None:
        click.echo(f"{size(verified)} read, all checksums are right")
