"""How `minflinkd watch` draws a cluster, and a job. Pure: from a state to what rich prints. Fits into 80 columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from minflinkd.cli.live_state import ClusterState, JobState, Rates
from minflinkd.cli.text import duration, short, size, state
from minflinkd.rest.schemas import Checkpoint, JobSummary, JobVertex

_BARS: Final = "▁▂▃▄▅▆▇█"
_WIDE: Final = 100  # columns from which a chart has room
_CHART: Final = 24  # columns of a chart
_OTHERS: Final = 54  # columns of a table that are not its names
_LEGEND: Final = "q: leave"


def sparkline(rates: Rates, width: int) -> str:
    """Draw the last rates, the largest as a full bar; a space where nothing is known."""
    values = rates.values[-width:]
    most = max((value for value in values if value is not None), default=0.0)
    if most <= 0:
        return "".join(" " if value is None else _BARS[0] for value in values)
    last = len(_BARS) - 1
    return "".join(" " if value is None else _BARS[min(last, round(value / most * last))] for value in values)


def of_cluster(known: ClusterState, *, url: str, width: int, rows: int, note: str = "") -> RenderableType:
    """`rows`: how many lines there are. `note`: for example that the connection is lost."""
    lines: list[RenderableType] = [_head(known, url), Text()]
    worst = [job for job in _sorted(known) if _needs(job)]
    for job in worst[:3]:
        found = job.minflinkd.restarting_repeatedly
        why = job.state if found is None else f"{found.failures} failures in a row: {found.code}: {found.message}"
        lines.append(Text(f"! {job.name}: {why}", style="red", no_wrap=True, overflow="ellipsis"))
    slow = [(one.id, one.minflinkd.session_slow or one.minflinkd.session_error) for one in known.task_managers]
    lines += [Text(f"! {name}: {why}", style="yellow", no_wrap=True, overflow="ellipsis") for name, why in slow if why]
    room = max(1, rows - len(lines) - 4)
    jobs = _sorted(known)
    chart = ["LAST MINUTES"] if width >= _WIDE else []
    table = _table(width, "JOB", "STATE", ">TASKS", ">ROWS/S", *chart, ">CKPT", ">RST")
    for job in jobs[:room]:
        rates = known.rates.get(job.jid, Rates())
        sample = known.latest.get(job.jid, {})
        seconds = sample.get("checkpoint_duration")
        table.add_row(
            Text(job.name),
            state(job.state),
            f"{job.tasks.running + job.tasks.finished}/{job.tasks.total}",
            _rate(rates.last),
            *([sparkline(rates, _CHART)] if chart else []),
            "-" if seconds is None else duration(seconds * 1000),
            str(job.minflinkd.restarts),
        )
    lines.append(table if jobs else Text("No jobs.", style="dim"))
    if len(jobs) > room:
        lines.append(Text(f"... and {len(jobs) - room} more", style="dim"))
    return Group(*lines, Text(), _foot(note))


def _head(known: ClusterState, url: str) -> Text:
    overview = known.overview
    if overview is None:
        return Text(f"{url}: waiting for the daemon", style="bold")
    head = Text(no_wrap=True, overflow="ellipsis")
    head.append(f"minflinkd {overview.minflinkd.version}", style="bold")
    head.append(f"  {overview.jobs_running} running, {overview.jobs_failed} failed")
    head.append(f"  slots {overview.slots_available}/{overview.slots_total} free")
    head.append(f"  TaskManagers {overview.taskmanagers}")
    if overview.minflinkd.trouble:
        head.append(f"  {overview.minflinkd.trouble}", style="red")
    return head.append(f"  {url}", style="dim")


def _needs(job: JobSummary) -> bool:
    """Whether somebody should look at the job: one that has ended needs nothing at night."""
    in_trouble = job.minflinkd.restarting_repeatedly is not None or job.state in ("FAILING", "RESTARTING")
    return in_trouble and job.end_time < 0


def _sorted(known: ClusterState) -> list[JobSummary]:
    """Jobs that need somebody first, then those that run, then those that have ended; within that, newest first."""
    return sorted(
        known.jobs.values(),
        key=lambda job: (job.end_time >= 0, not _needs(job), -job.start_time, job.jid),
    )


def of_job(known: JobState, *, url: str, width: int, rows: int, note: str = "") -> RenderableType:
    job = known.job
    if job is None:
        return Group(Text(f"{url}: waiting for the daemon", style="bold"), Text(), _foot(note))
    own = job.minflinkd
    head = Text(no_wrap=True, overflow="ellipsis")
    head.append(job.name, style="bold")
    head.append("  ").append(state(job.state))
    head.append(f"  {duration(job.duration)}  rows {short(own.source_records)} in, {short(own.sink_records)} out")
    head.append(f"  restarts {own.restarts}" if own.restarts else "")
    head.append(f"  {job.jid}", style="dim")
    lines: list[RenderableType] = [head]
    lines += [Text(f"! waiting for slots: {why}", style="yellow") for why in own.waiting[:2]]
    if (found := own.restarting_repeatedly) is not None:
        lines.append(Text(f"! {found.failures} failures in a row: {found.code}: {found.message}", style="red"))
    lines.append(Text())
    room = max(1, rows - len(lines) - 9)
    chart = ["LAST MINUTES"] if width >= _WIDE else []
    table = _table(width, "TASK", "STATE", ">ROWS/S", *chart, ">BATCH", ">HELD", ">STATE ROWS", ">LAG")
    for vertex in job.vertices[:room]:
        table.add_row(*_task(vertex, known, chart=bool(chart)))
    lines.append(table)
    if len(job.vertices) > room:
        lines.append(Text(f"... and {len(job.vertices) - room} more", style="dim"))
    lines += [Text(), *_checkpoints(known)]
    if known.exceptions is not None and known.exceptions.history.entries:
        entry = known.exceptions.history.entries[0]
        told = f"last failure: {entry.minflinkd.code}: {entry.minflinkd.message}".partition("\n")[0]
        lines.append(Text(told, style="red", no_wrap=True, overflow="ellipsis"))
    return Group(*lines, Text(), _foot(note))


def _task(vertex: JobVertex, known: JobState, *, chart: bool) -> Sequence[RenderableType]:
    task = vertex.minflinkd
    sample, rates = known.latest.get(task.task_id, {}), known.rates.get(task.task_id, Rates())
    held, lag, batch = sample.get("backpressured"), sample.get("watermark_lag"), sample.get("batch_duration")
    return [
        Text(vertex.name),
        state(vertex.status),
        _rate(rates.last),
        *([sparkline(rates, _CHART)] if chart else []),
        "-" if batch is None else duration(batch * 1000),
        "-" if held is None else Text(f"{held:.0%}", style="red" if held >= 0.5 else ""),
        short(task.state_rows) if task.state_rows else "-",
        "-" if lag is None else duration(max(lag, 0) * 1000),
    ]


def _checkpoints(known: JobState) -> list[RenderableType]:
    if known.checkpoints is None:
        return []
    counts = known.checkpoints.counts
    lines = [Text(f"checkpoints: {counts.completed} completed, {counts.failed} failed")]
    return [*lines, *(_checkpoint(one) for one in known.checkpoints.history[:3])]


def _checkpoint(one: Checkpoint) -> Text:
    told = Text(f"  {one.id:>6}  ", no_wrap=True, overflow="ellipsis").append(state(one.status))
    told.append(f"  {duration(one.end_to_end_duration)}, {size(one.state_size)}")
    return told.append(f"  {one.failure_message}" if one.failure_message else "", style="red")


def _rate(value: float | None) -> str:
    return "-" if value is None else short(value)


def _foot(note: str) -> Text:
    foot = Text(_LEGEND, style="dim", no_wrap=True, overflow="ellipsis")
    return foot.append(f"   {note}", style="bold yellow") if note else foot


def _table(width: int, *columns: str) -> Table:
    """The first column, a name, is what gives way on a narrow terminal."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", expand=False)
    for number, column in enumerate(columns):
        right = column.startswith(">")
        table.add_column(
            column.removeprefix(">"),
            justify="right" if right else "left",
            no_wrap=True,
            overflow="ellipsis",
            max_width=max(8, width - (_OTHERS + (_CHART + 2 if width >= _WIDE else 0))) if number == 0 else None,
        )
    return table
