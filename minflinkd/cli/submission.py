"""From a job file to an accepted job: read, fetch, check, upload artifacts, submit.

A refused job leaves nothing behind.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import msgspec

from minflinkd.blob.client import BlobClient
from minflinkd.cli.client import Client
from minflinkd.cli.endpoint import Refused
from minflinkd.cli.job_files import JobFile, read_job, with_artifacts
from minflinkd.cli.progress import upload_bars
from minflinkd.cli.scripts import UnusableScript
from minflinkd.jobgraph.document import JobDocument
from minflinkd.jobgraph.faults import GraphFault, InvalidJobGraph
from minflinkd.jobgraph.model import Artifact, JobGraph, encode
from minflinkd.rest.schemas import RestartAccepted, Submitted
from minflinkd.runtime.errors import Kind, MinflinkError
from minflinkd.runtime.ids import IdSource, JobId


class RefusedJob(MinflinkError):
    """The job has faults, each with its place in the job file."""

    code = InvalidJobGraph.code
    consequence = InvalidJobGraph.consequence

    def __init__(self, file: JobFile | str, faults: Iterable[GraphFault], outcome: str = "nothing was started") -> None:
        self.file = file
        self.faults = tuple(faults)
        count = "1 fault" if len(self.faults) == 1 else f"{len(self.faults)} faults"
        super().__init__(f"{file} has {count}; {outcome}")

    def lines(self) -> list[str]:
        return fault_lines(self.file, self.faults)


def fault_lines(file: JobFile | str, faults: Iterable[GraphFault]) -> list[str]:
    """Format faults, with their tracebacks.

    E.g. `job.yaml:12: vertices.out.inputs[0]: there is no vertex delay (did you mean delays?)`.
    """
    found = []
    for fault in faults:
        place = f"{file}:{fault.line}" if fault.line else str(file)
        hint = f" ({fault.hint})" if fault.hint else ""
        code = f" [{fault.code}]" if fault.code else ""
        first, *others = f"{fault.path}: {fault.problem}{hint}{code}".splitlines()
        found.append(f"{place}: {first}")
        found += [f"    {line}" for line in (*others, *fault.traceback.rstrip().splitlines())]
    return found


def in_options(error: RefusedJob) -> RefusedJob:
    """Reword faults of the savepoint for the options of `minflinkd run`, since the file does not mention it."""

    def said(fault: GraphFault) -> GraphFault:
        if fault.path.partition(".")[0] != "restore":
            return fault
        hint = re.sub(r"restore: \{(allow-[a-z-]+): true\}", r"--\1", fault.hint)
        return msgspec.structs.replace(fault, path="--from-savepoint", hint=hint, line=None)

    return RefusedJob(error.file, map(said, error.faults))


def refused_by_daemon(job: str, error: Refused) -> RefusedJob:
    """Return the refusal of a job that was made of another one, `job`, and has no file."""
    return RefusedJob(f"the backfill of {job}", _graph_faults(error))


async def submit(
    client: Client,
    file: JobFile,
    *,
    params: Mapping[str, Any],
    name: str | None = None,
    args: Sequence[str] = (),
    restore: Mapping[str, Any] | None = None,
    dry_run: bool = False,
    tell: Callable[[str], None] = click.echo,
) -> Submitted:
    """Submit a job file, or a script with `args`. Returns when the job is accepted and stored.

    `tell` is told about the progress.

    Raises RefusedJob, Refused, DaemonUnreachable, the BlobClient's errors, and those of `fetching.fetch` for the job
    file itself. After all of them except DaemonUnreachable nothing of the job is left on the server. The job's id is
    new, so nobody else's blobs are deleted.
    """
    try:
        document = _with_params(await read_job(file, args), params).with_restore(restore)
        return await submit_document(client, document, name=name, dry_run=dry_run, tell=tell)
    except InvalidJobGraph as error:
        raise RefusedJob(file, error.faults) from error


async def submit_document(
    client: Client,
    document: JobDocument,
    *,
    name: str | None = None,
    dry_run: bool = False,
    explain: bool = False,
    tell: Callable[[str], None] = click.echo,
) -> Submitted:
    """Like `submit`, but the job need not be a file. Raises InvalidJobGraph with all faults instead of RefusedJob."""
    job_id = IdSource().job()
    async with with_artifacts(document, tell) as complete:
        try:
            graph = complete.job()
        except InvalidJobGraph as error:
            raise InvalidJobGraph((*error.faults, *await _more_faults(client, job_id, document, error))) from error
        graph = graph if name is None else msgspec.structs.replace(graph, name=name)
        files = _files(complete, graph)
        async with await client.blob_server() as blobs:
            try:
                graph = await _uploaded_or_deleted(blobs, job_id, graph, files, tell)
                tell("Checking the job with Spark")
                return await client.submit(job_id, encode(graph), dry_run=dry_run, explain=explain)
            except Refused as error:
                if error.answer.kind is not Kind.STOPPING:  # otherwise the daemon deletes them, and may not answer
                    await _delete(blobs, job_id, files)
                if error.answer.faults:
                    raise InvalidJobGraph(document.locate(_graph_faults(error))) from error
                raise
            finally:
                if dry_run:
                    await _delete(blobs, job_id, files)


async def _more_faults(
    client: Client, job_id: JobId, document: JobDocument, known: InvalidJobGraph
) -> tuple[GraphFault, ...]:
    """Return what Spark finds in the valid part of a faulty job (J4: all faults at once); nothing without a daemon."""
    try:
        await client.submit(job_id, msgspec.json.encode(document.shown()), dry_run=True)
    except Refused as error:
        paths = {fault.path for fault in known.faults}
        found = document.locate(_graph_faults(error))
        return tuple(f for f in found if f.path not in paths and not f.path.startswith("artifacts"))
    except (MinflinkError, TypeError):  # no daemon, or the document cannot be encoded
        pass
    return ()


async def restart(
    client: Client,
    job_id: str,
    file: JobFile,
    *,
    params: Mapping[str, Any],
    options: Mapping[str, str],
    args: Sequence[str] = (),
    tell: Callable[[str], None] = click.echo,
) -> RestartAccepted:
    """Submit a new version of a running job. Returns when it is checked and stored.

    `options` are the request's. Artifacts that the server already has are not sent again. The artifacts of a refused
    version are left to the server's cleanup, since they are stored among the job's own. Raises what `submit` raises.
    """
    try:
        document = _with_params(await read_job(file, args), params)
        if document.made:  # a script has no name of its own: the job keeps the one that it was given
            document = replace(document, value={**document.value, "name": (await client.job(job_id)).name})
        async with with_artifacts(document, tell) as complete:
            graph = complete.job()
            async with await client.blob_server() as blobs:
                graph = await with_uploads(blobs, JobId(job_id), graph, _files(complete, graph), tell)
    except InvalidJobGraph as error:
        raise RefusedJob(file, error.faults) from error
    try:
        return await client.hot_restart(job_id, encode(graph), options)
    except Refused as error:
        if error.answer.faults:
            raise RefusedJob(file, document.locate(_graph_faults(error)), outcome="the job goes on as it is") from error
        raise


def _with_params(document: JobDocument, params: Mapping[str, Any]) -> JobDocument:
    if document.made and params:
        raise UnusableScript("a script takes no params", hint="give it arguments, after the name of its file")
    return document.with_params(params)


async def _uploaded_or_deleted(
    blobs: BlobClient,
    job_id: JobId,
    graph: JobGraph,
    files: Mapping[str, Path],
    tell: Callable[[str], None],
) -> JobGraph:
    try:
        return await with_uploads(blobs, job_id, graph, files, tell)
    except MinflinkError:
        await _delete(blobs, job_id, files)
        raise


async def with_uploads(
    blobs: BlobClient, job_id: JobId, graph: JobGraph, files: Mapping[str, Path], tell: Callable[[str], None]
) -> JobGraph:
    """Upload the artifacts, `files` by name, as one set (B6). Returns the graph with their keys."""
    if not files:
        return graph
    tell(f"Uploading {', '.join(files)}")
    with upload_bars(files, tell) as progress:
        stored = {ref.name: ref for ref in await blobs.upload_all(job_id, files, progress=progress)}
    artifacts = tuple(
        Artifact(name=artifact.name, key=stored[artifact.name].key, size=stored[artifact.name].size)
        if artifact.name in stored
        else artifact
        for artifact in graph.artifacts
    )
    return msgspec.structs.replace(graph, artifacts=artifacts)


def _files(document: JobDocument, graph: JobGraph) -> dict[str, Path]:
    """Return the artifacts that are to be uploaded, by name."""
    artifacts = [(artifact.name, artifact.path) for artifact in graph.artifacts if artifact.key is None]
    return {name: document.artifact_file(path) for name, path in artifacts if path is not None}


async def _delete(blobs: BlobClient, job_id: JobId, uploaded: Mapping[str, Path]) -> None:
    """Delete uploaded artifacts. If that fails, the server's cleanup finds that no job refers to them (B16)."""
    if uploaded:
        try:
            await blobs.delete_job(job_id)
        except MinflinkError as error:
            click.echo(f"The uploaded artifacts are left to the server's cleanup: {error}", err=True)


def _graph_faults(error: Refused) -> tuple[GraphFault, ...]:
    return tuple(msgspec.convert(fault, GraphFault, from_attributes=True) for fault in error.answer.faults)
