"""`minflinkd state`: what a job keeps in its state, from a checkpoint or savepoint."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click
import msgspec

from minflinkd.cli.connection import Connection, connection_options
from minflinkd.cli.exits import ExitCode, Failure
from minflinkd.cli.find import find_job
from minflinkd.cli.text import duration, moment, print_table, size
from minflinkd.rest.schemas import state as s

if TYPE_CHECKING:
    from minflinkd.cli.client import Client  # it imports aiohttp: only commands that need a daemon pay for that

_AROUND = 120.0  # seconds for what surrounds the reading
_WIDEST = 120  # characters of a key or value in a table


@click.command()
@click.argument("job")
@click.argument("vertex", required=False)
@click.option("--checkpoint", metavar="N|PATH", help="A checkpoint's number, or the path of a savepoint or checkpoint.")
@click.option("--store", metavar="STORE", help="One store: its id, the name of a state variable, or a vertex.")
@click.option(
    "--key", "keys", multiple=True, metavar="[FIELD=]TEXT", help="Only keys with this text, or in this field."
)
@click.option("--sql", metavar="SELECT", help="A SELECT over the view `state`: partition_id, key, value, bytes.")
@click.option("--since", metavar="N|PATH", help="What grew since this checkpoint or savepoint.")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(0, 1000), metavar="N", help="Rows.")
@click.option("--largest", default=5, show_default=True, type=click.IntRange(0, 100), metavar="N", help="Keys.")
@click.option("--rows-only", is_flag=True, help="Leave out totals and largest keys: they need all rows.")
@click.option(
    "--time",
    "seconds",
    default=60,
    show_default=True,
    type=click.IntRange(1, 300),
    metavar="SECONDS",
    help="How long the reading may take.",
)
@connection_options
def state(
    connection: Connection,
    job: str,
    vertex: str | None,
    checkpoint: str | None,
    store: str | None,
    keys: tuple[str, ...],
    sql: str | None,
    since: str | None,
    limit: int,
    largest: int,
    rows_only: bool,
    seconds: int,
) -> None:
    """Show the state of a task in the job's latest checkpoint: stores, totals, the largest keys, rows.

    JOB is an id, the beginning of one, or a name. VERTEX is a task, or one of its vertices; without it, the only task
    with state, or a list of them. The running job is not touched: a TaskManager lays out the checkpoint's files once
    more and reads the copy. Needs the role `operate`. SIZES are bytes of the rows that Spark keeps.

    \b
    Examples:
      minflinkd state carrier-delays                            what is kept, and which keys are large
      minflinkd state carrier-delays totals --key AA            one key
      minflinkd state carrier-delays --key window.start='2024-01-01 10:00:00'
      minflinkd state carrier-delays --sql 'SELECT key.carrier, value.count FROM state ORDER BY 2 DESC'
      minflinkd state carrier-delays --checkpoint 7 --json | jq '.stores[0].totals.skew'
      minflinkd state carrier-delays --since /data/savepoints/savepoint-3f2a1c-0123456789ab
    """

    async def show(client: Client) -> None:
        job_id = await find_job(client, job)
        name = vertex
        if name is None:
            query = _given(checkpoint=checkpoint)
            found = await client.get(f"/jobs/{job_id}/state", s.JobState, query=query, timeout=_AROUND)
            if len(found.tasks) != 1:
                _several(found, as_json=connection.as_json)
                return
            name = found.tasks[0].task_id
        path, wait = f"/jobs/{job_id}/vertices/{quote(name, safe='')}/state", seconds + _AROUND
        common = {"store": store, "largest": largest, "timeout": seconds}
        kind: type[s.VertexState | s.VertexStateGrowth] = s.VertexState
        if since is not None:
            path, kind = f"{path}/growth", s.VertexStateGrowth
            query = _given(**common, to=checkpoint) | {"from": since}
        else:
            query = _given(**common, checkpoint=checkpoint, key=key_of(keys), sql=sql, limit=limit)
            if rows_only or sql:
                query["no-totals"] = "true"
        if connection.as_json:
            click.echo(bytes(await client.get(path, msgspec.Raw, query=query, timeout=wait)))
            return
        answer = await client.get(path, kind, query=query, timeout=wait)
        if isinstance(answer, s.VertexState):
            _print_state(answer)
        else:
            _print_growth(answer)

    if since is not None and (keys or sql):
        raise click.UsageError("--since compares all keys: leave --key and --sql out")
    connection.run(show)


def _given(**query: object) -> dict[str, str]:
    return {name: str(value) for name, value in query.items() if value is not None}


def key_of(keys: tuple[str, ...]) -> str | None:
    """Return what the endpoint takes: one text, or a JSON object of the fields. Raises UsageError."""
    if not keys:
        return None
    if len(keys) == 1 and "=" not in keys[0]:
        return keys[0]
    fields = {}
    for each in keys:
        name, found, value = each.partition("=")
        if not found:
            raise click.UsageError("--key: of several, each needs its field, such as carrier=AA")
        fields[name] = value
    return json.dumps(fields)


def _several(found: s.JobState, *, as_json: bool) -> None:
    if as_json:
        click.echo(msgspec.json.encode(found))
        return
    if not found.tasks:
        raise Failure("No task of the job keeps state in this checkpoint.", ExitCode.NOT_FOUND)
    _print_checkpoint(found.checkpoint, "")
    rows = [
        [task.task_id, size(task.state_size), ", ".join(_operator(each) for each in task.operators) or "-"]
        for task in found.tasks
    ]
    print_table(["TASK", ">FILES", "OPERATORS"], rows, empty="")
    click.echo("Name one of the tasks to see its state.")


def _operator(operator: s.StatefulOperator) -> str:
    return f"{operator.kind} ({operator.vertex})" if operator.vertex else operator.kind


def _print_checkpoint(checkpoint: s.ReadCheckpoint, more: str) -> None:
    what = "Savepoint" if checkpoint.is_savepoint else "Checkpoint"
    click.echo(f"{what} {checkpoint.id} of {moment(checkpoint.trigger_timestamp)}{more}")


def _print_state(found: s.VertexState) -> None:
    _print_checkpoint(found.checkpoint, f", task {found.task_id}, read in {duration(found.duration)}")
    _print_stores(found.stores)
    if found.result is not None:
        values = [[_text(value) for value in json.loads(bytes(row))] for row in found.result.rows]
        print_table(list(found.result.columns), values, empty="No rows.")
    elif found.store is not None:
        click.echo(f"\nRows of {found.store}:" if found.rows else f"\nNo rows of {found.store}.")
        if found.rows:
            rows = [[row.partition, _raw(row.key), _raw(row.value), size(row.bytes)] for row in found.rows]
            print_table([">PARTITION", "KEY", "VALUE", ">SIZE"], rows, empty="")
    if found.truncated:
        click.secho("There are more rows: --limit, --key, --sql.", dim=True)


def _print_stores(stores: tuple[s.StateStore, ...]) -> None:
    rows = []
    for store in stores:
        totals = store.totals
        shown = ["-"] * 4 if totals is None else [totals.rows, totals.keys, size(totals.bytes), _skew(totals)]
        rows.append([store.id, _kind(store), store.vertex or "-", *shown, store.unreadable or ""])
    columns = ["STORE", "KIND", "VERTEX", ">ROWS", ">KEYS", ">SIZE", ">SKEW"]
    if any(store.unreadable for store in stores):
        columns.append("NOT READABLE")
    print_table(columns, [row[: len(columns)] for row in rows], empty="The task keeps no state in this checkpoint.")
    for store in stores:
        if store.totals is not None and store.totals.largest_keys:
            click.echo(f"\nLargest keys of {store.id}:")
            keys = [[_raw(key.key), key.rows, size(key.bytes), key.partition] for key in store.totals.largest_keys]
            print_table(["KEY", ">ROWS", ">SIZE", ">PARTITION"], keys, empty="")


def _kind(store: s.StateStore) -> str:
    return f"{store.kind}, {store.form}" if store.form else store.kind


def _skew(totals: s.StateTotals) -> str:
    return "-" if totals.skew is None else f"{totals.skew:g}"


def _print_growth(found: s.VertexStateGrowth) -> None:
    _print_checkpoint(found.before, "")
    _print_checkpoint(found.after, f", task {found.task_id}, read in {duration(found.duration)}")
    rows = []
    for growth in found.stores:
        before, after = growth.before, growth.after
        rows.append(
            [
                growth.store.id,
                _kind(growth.store),
                *(_change(before, after, "rows"), _change(before, after, "bytes")),
                *(_count(growth.keys_added), _count(growth.keys_removed), _count(growth.keys_changed)),
            ]
        )
    columns = ["STORE", "KIND", ">ROWS", ">SIZE", ">KEYS ADDED", ">REMOVED", ">CHANGED"]
    print_table(columns, rows, empty="The task keeps no state in these checkpoints.")
    for growth in found.stores:
        if growth.grown_keys:
            click.echo(f"\nKeys of {growth.store.id} that grew most:")
            keys = [
                [
                    _raw(key.key),
                    f"{key.rows_before} -> {key.rows_after}",
                    f"{size(key.bytes_before)} -> {size(key.bytes_after)}",
                ]
                for key in growth.grown_keys
            ]
            print_table(["KEY", ">ROWS", ">SIZE"], keys, empty="")


def _change(before: s.StateTotals | None, after: s.StateTotals | None, what: str) -> str:
    shown = size if what == "bytes" else str
    values = ["-" if totals is None else shown(getattr(totals, what)) for totals in (before, after)]
    return " -> ".join(values)


def _count(number: int | None) -> str:
    return "-" if number is None else str(number)


def _raw(value: msgspec.Raw) -> str:
    return _text(json.loads(bytes(value)))


def _text(value: Any) -> str:
    """One line for a table: a text as it is, an object with one field as its value, everything else as JSON."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = " ".join(text.splitlines())
    return text if len(text) <= _WIDEST else text[: _WIDEST - 3] + "..."
