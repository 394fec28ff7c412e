"""`minflinkd explain`: what a job file becomes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from minflinkd.cli.connection import Connection, connection_options
from minflinkd.cli.job_files import JobFile, job_file_argument
from minflinkd.cli.output import print_json

if TYPE_CHECKING:
    from minflinkd.cli.client import Client  # it imports aiohttp: only commands that need a daemon pay for that
    from minflinkd.jobgraph.document import JobDocument
    from minflinkd.jobgraph.model import JobGraph, Task, Vertex
    from minflinkd.rest.schemas import TaskExplanation


@click.command()
@job_file_argument
@click.option("-p", "--param", "params", multiple=True, metavar="KEY=VALUE", help="Set or replace one of the params.")
@click.option("--plan/--no-plan", default=True, show_default=True, help="Ask the daemon for Spark's plan, and show it.")
@connection_options
def explain(connection: Connection, file: JobFile, params: tuple[str, ...], plan: bool) -> None:
    """Show what the job in FILE becomes: its tasks, why it is cut where it is, slots, state, and Spark's plan.

    FILE is a path or a URL, as for `minflinkd run`. A task is one Spark query. Between two tasks is an exchange: an
    ordered log of rows. State and Spark's physical plan come from a session of the daemon, as in `run --dry-run`;
    nothing is started. Without a daemon, the rest is shown, and what is missing is said.

    \b
    Exit codes: 0; 2 the job has faults, each with its line, or FILE cannot be read.

    \b
    Examples:
      minflinkd explain job.yaml
      minflinkd explain job.yaml --no-plan
      minflinkd explain job.yaml -p minutes=30 --json | jq '.tasks[] | {id, slots, state}'
    """
    from minflinkd.cli.run import params_of, refusal

    values = params_of(params)

    async def show(client: Client) -> None:
        from minflinkd.cli.endpoint import DaemonUnreachable
        from minflinkd.cli.job_files import read_job, with_artifacts
        from minflinkd.cli.scripts import UnusableScript
        from minflinkd.cli.submission import RefusedJob
        from minflinkd.jobgraph.faults import InvalidJobGraph

        try:
            document = (await read_job(file)).with_params(values)
            if document.made:
                hint = "look at a script with `minflinkd run FILE --dry-run`"
                raise UnusableScript("explain shows job files, and no scripts", hint=hint)
            async with with_artifacts(document, connection.tell) as complete:
                graph = complete.job()
                missing = "" if plan else "they were not asked for (--no-plan)"
                told: dict[str, TaskExplanation] = {}
                notes: tuple[str, ...] = ()
                if plan:
                    try:
                        told, notes = await _asked(client, complete)
                    except DaemonUnreachable as error:
                        missing = error.message
        except InvalidJobGraph as error:
            raise refusal(connection, RefusedJob(file, error.faults)) from error
        for text in notes:
            click.secho(f"Note: {text}.", fg="yellow", err=True)
        found = explanation(graph, told, missing)
        if connection.as_json:
            print_json(found)
        else:
            click.echo("\n".join(lines(found)))

    connection.run(show)


async def _asked(client: Client, document: JobDocument) -> tuple[dict[str, TaskExplanation], tuple[str, ...]]:
    """Return what Spark says of each task, and notes.

    Raises InvalidJobGraph with what Spark finds, DaemonUnreachable, Refused.
    """
    from minflinkd.cli.submission import submit_document

    accepted = await submit_document(client, document, dry_run=True, explain=True, tell=lambda _: None)
    return {task.id: task for task in accepted.tasks}, tuple(accepted.warnings)


def explanation(graph: JobGraph, told: Mapping[str, TaskExplanation], missing: str) -> dict[str, Any]:
    """Return all that is known, as one document. `missing`: why Spark has said nothing. Pure."""
    from minflinkd.jobgraph.chaining import chain, cut_reasons, slots_wanted

    tasks = chain(graph)
    wanted = slots_wanted(tasks)
    owner = {vertex.id: task.id for task in tasks for vertex in task.vertices}
    exchanges = [
        {"from": upstream, "to": downstream, "task": owner[upstream], "reader": owner[downstream], "why": why}
        for (upstream, downstream), why in cut_reasons(graph).items()
    ]
    return {
        "name": graph.name,
        "slots": sum(wanted.values()),
        "slot-sharing-groups": wanted,
        "tasks": [_task(task, told.get(task.id)) for task in tasks],
        "exchanges": exchanges,
        "spark": {"asked": not missing, "why-not": missing or None},
    }


def _task(task: Task, told: TaskExplanation | None) -> dict[str, Any]:
    return {
        "id": task.id,
        "name": task.name,
        "slots": task.parallelism,
        "slot-sharing-group": task.slot_sharing_group,
        "vertices": [{"id": vertex.id, "does": _does(vertex)} for vertex in task.vertices],
        "state": None
        if told is None
        else [{"vertex": node.vertex, "kind": node.kind} for node in told.operators if node.stateful],
        "plan": None if told is None else told.plan,
    }


def _does(vertex: Vertex) -> str:
    does = _computes(vertex)
    if vertex.on_bad_record is None:
        return does
    from minflinkd.jobgraph.bad_records import bad_record_sink
    from minflinkd.jobgraph.model import OnBadRecord

    if (sink := bad_record_sink(vertex)) is not None:
        return f"{does}, sends bad records to {sink}"
    return f"{does}, {'fails on' if vertex.on_bad_record is OnBadRecord.FAIL else 'drops'} bad records"


def _computes(vertex: Vertex) -> str:
    if vertex.source is not None:
        return f"reads {'by ' + vertex.source.python if vertex.source.python else vertex.source.format}"
    if vertex.sink is not None:
        return f"writes {'by ' + vertex.sink.python if vertex.sink.python else vertex.sink.format}"
    reads = ", ".join(edge.id for edge in vertex.inputs)
    return f"{'SQL' if vertex.sql is not None else vertex.python} over {reads}"


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the explanation for people. Pure."""
    tasks, groups = found["tasks"], found["slot-sharing-groups"]
    several = "" if len(groups) < 2 else ": " + ", ".join(f"{count} in group {name}" for name, count in groups.items())
    yield f"{found['name']}: {_counted(len(tasks), 'task')}, {_counted(found['slots'], 'slot')}{several}"
    for task in tasks:
        yield ""
        yield f"Task {task['id']}: {_counted(task['slots'], 'slot')} in group {task['slot-sharing-group']}"
        width = max(len(vertex["id"]) for vertex in task["vertices"])
        for vertex in task["vertices"]:
            yield f"  {vertex['id']:<{width}}  {vertex['does']}"
        for each in found["exchanges"]:
            if each["reader"] == task["id"]:
                yield f"  begins here, as {each['from']} -> {each['to']} is an exchange: {each['why']}"
        if task["state"] is not None:
            counts = Counter(f"{node['kind']} of {node['vertex'] or 'no vertex'}" for node in task["state"])
            kept = ", ".join(f"{what} ({count} times)" if count > 1 else what for what, count in counts.items())
            yield f"  state: {kept or 'none'}"
    if why := found["spark"]["why-not"]:
        yield ""
        yield f"State and Spark's plan are not shown: {why}."
    for task in tasks:
        if task["plan"]:
            yield ""
            yield f"Spark's plan of task {task['id']}:"
            yield from (f"  {line}" for line in task["plan"].splitlines())


def _counted(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"
