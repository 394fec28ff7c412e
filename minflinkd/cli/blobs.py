"""`minflinkd blobs`: the blobs on the BlobServer."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from minflinkd.cli.completing import jobs
from minflinkd.cli.connection import Connection, connection_options
from minflinkd.cli.exits import ExitCode, Failure
from minflinkd.cli.groups import Group

if TYPE_CHECKING:
    from minflinkd.blob.client import BlobClient
    from minflinkd.cli.client import Client  # it imports aiohttp: only commands that need a daemon pay for that
    from minflinkd.rest.schemas import Blob, Blobs, BlobTotals
    from minflinkd.rpc.messages import ArtifactRef
    from minflinkd.runtime.ids import JobId

_SHORT = 14  # characters of a key on a terminal; `delete` accepts the beginning of a key
_SHORTEST = 6


@click.group(cls=Group)
def blobs() -> None:
    """List, upload and delete blobs: artifacts of jobs and other files. Each command has --json.

    \b
    Examples:
      minflinkd blobs list --job carrier-delays
      minflinkd blobs upload rules.zip --transient
      minflinkd blobs delete t-3f9a2c
    """


@blobs.command("list")
@click.option(
    "--job",
    metavar="JOB",
    shell_complete=jobs,
    help="Only of this job: its id, the beginning of one, or its name; or `none`.",
)
@connection_options
def list_blobs(connection: Connection, job: str | None) -> None:
    """List the blobs, in the order of jobs and keys.

    STATE is `receiving` (on its way), `uploaded` (its set is not complete), `referenced` (a job or a message needs it),
    `staged` (it is deleted unless a job uses it), `kept` (its job's record cannot be read), `condemned` (being
    deleted), or `unknown` (left by an earlier daemon; the next cleanup stages it).

    \b
    Examples:
      minflinkd blobs list
      minflinkd blobs list --job none
      minflinkd blobs list --json | jq '.totals'
    """
    from minflinkd.cli.output import print_json

    async def show(client: Client) -> None:
        found = await _all(client, await _owner(client, job))
        if connection.as_json:
            print_json(found)
        else:
            _print(found)

    connection.run(show)


@blobs.command()
@click.argument(
    "files", nargs=-1, required=True, metavar="FILE...", type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option(
    "--job",
    metavar="JOB",
    shell_complete=jobs,
    help="The job that they belong to: its name or id. It may be submitted later.",
)
@click.option("--transient", is_flag=True, help="Not recovered, and yours to delete. Needs no job.")
@connection_options
def upload(connection: Connection, files: tuple[Path, ...], job: str | None, transient: bool) -> None:
    """Upload FILEs and print their keys. Files that the server already has are not sent.

    The files of a job are one set. Files that no job uses are deleted after blob.retention.interval.

    \b
    Examples:
      minflinkd blobs upload rules.zip --transient
      minflinkd blobs upload job.py lib.zip --job 00000000000000000000000000000001
      minflinkd blobs upload rules.zip --transient --json | jq -r '.[].key'
    """
    from minflinkd.blob.keys import NO_JOB
    from minflinkd.cli.output import print_json

    if job in (None, NO_JOB) and not transient:
        raise click.UsageError("A permanent blob belongs to a job: name it with --job, or add --transient.")

    async def send(client: Client) -> None:
        owner = await _owner(client, job)
        async with await client.blob_server() as server:
            stored = await _upload(server, _job_id(owner), dict.fromkeys(files), transient)
        if connection.as_json:
            print_json(stored)
        for blob in () if connection.as_json else stored:
            click.echo(f"{blob.key}  {blob.name}")

    connection.run(send)


@blobs.command()
@click.argument("key")
@connection_options
def delete(connection: Connection, key: str) -> None:
    """Delete the transient blob KEY, named in full or by its beginning. Permanent ones go with their jobs.

    \b
    Examples:
      minflinkd blobs delete t-3f9a2c
    """
    from minflinkd.blob.keys import BlobKey
    from minflinkd.cli.output import print_json

    async def remove(client: Client) -> None:
        blob = _one((await _all(client, None)).blobs, key)
        async with await client.blob_server() as server:
            await server.delete(_job_id(blob.job), BlobKey.parse(blob.key))
        if connection.as_json:
            print_json({"deleted": blob.key})
        else:
            click.echo(f"{blob.key} is deleted.")

    connection.run(remove)


async def _owner(client: Client, job: str | None) -> str | None:
    from minflinkd.blob.keys import NO_JOB
    from minflinkd.cli.find import find_job

    return job if job is None or job == NO_JOB else await find_job(client, job)


def _job_id(owner: str | None) -> JobId | None:
    from minflinkd.blob.keys import parse_owner

    return None if owner is None else parse_owner(owner)


async def _all(client: Client, job: str | None) -> Blobs:
    """Return all pages of the list as one."""
    import msgspec

    found = await client.blobs(job=job)
    while found.truncated:
        more = await client.blobs(job=job, offset=len(found.blobs))
        found = msgspec.structs.replace(more, blobs=found.blobs + more.blobs, offset=0)
    return found


async def _upload(
    server: BlobClient, job_id: JobId | None, files: Iterable[Path], transient: bool
) -> list[ArtifactRef]:
    from minflinkd.blob.keys import BlobKind
    from minflinkd.cli.progress import upload_bars
    from minflinkd.rpc.messages import ArtifactRef

    by_name = {str(path): path for path in files}
    with upload_bars(by_name) as progress:
        if job_id is not None and not transient:
            return list(await server.upload_all(job_id, by_name, progress=progress))
        stored = []
        for name, path in by_name.items():

            def sent(size: int, name: str = name) -> None:
                progress(name, size)

            blob = await server.upload(job_id, path, BlobKind.TRANSIENT, progress=sent)
            stored.append(ArtifactRef(name=name, key=blob.key, size=blob.size))
        return stored


def _one(known: Iterable[Blob], text: str) -> Blob:
    """Return the blob that the user means. Raises Failure."""
    found = [blob for blob in known if blob.key == text]
    if not found and len(text) >= _SHORTEST:
        found = [blob for blob in known if blob.key.startswith(text)]
    if len(found) > 1:
        several = "\n".join(blob.key for blob in found[:5])
        raise Failure(f"{text!r} means {len(found)} blobs; name one in full:\n{several}", ExitCode.REFUSED)
    if not found:
        raise Failure(f"There is no blob {text!r}.\n`minflinkd blobs list` lists them.", ExitCode.NOT_FOUND)
    return found[0]


def _print(found: Blobs) -> None:
    from minflinkd.cli.text import console, moment, print_table, size

    width = _SHORT if console().is_terminal else None
    columns = ["KEY", "JOB", "KIND", ">SIZE", ">REFERENCES", "STATE", "CREATED"]
    rows = [
        [blob.key[:width], blob.job, blob.kind, size(blob.size), blob.references, blob.state, moment(blob.created)]
        for blob in found.blobs
    ]
    print_table(columns, rows, empty="No blobs.")
    if found.blobs:
        click.echo(f"{_counted(found.totals)}, {size(found.totals.size)}")


def _counted(totals: BlobTotals) -> str:
    """Format like `3 blobs (2 referenced, 1 staged)`."""
    states = ", ".join(f"{count} {state}" for state, count in sorted(totals.states.items()))
    return f"{totals.blobs} {'blob' if totals.blobs == 1 else 'blobs'} ({states})"
