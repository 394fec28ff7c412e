"""What `minflinkd watch` prints without a terminal: a line for each change. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from minflinkd.cli.live_state import ClusterState, JobState
from minflinkd.cli.text import duration, size
from minflinkd.rest.schemas import Checkpoint, JobSummary

_ENDED_CHECKPOINTS = ("COMPLETED", "FAILED")


def of_cluster(before: ClusterState, after: ClusterState) -> Iterator[str]:
    """Yield what has changed between two states."""
    for jid, job in after.jobs.items():
        if (told := _standing(job)) != (_standing(before.jobs[jid]) if jid in before.jobs else ""):
            yield f"{job.name} ({jid[:8]}): {told}"
    for jid in before.jobs.keys() - after.jobs.keys():
        if after.jobs or after.overview is not None:  # otherwise the complete state is on its way
            yield f"{before.jobs[jid].name} ({jid[:8]}): forgotten"
    had = {one.id: one.minflinkd.session for one in before.task_managers}
    have = {one.id: one.minflinkd.session for one in after.task_managers}
    for name, session in have.items():
        if had.get(name) != session:
            yield f"TaskManager {name}: {'registered, ' if name not in had else ''}session {session}"
    for name in had.keys() - have.keys():
        if after.overview is not None:
            yield f"TaskManager {name}: gone"
    trouble = after.overview.minflinkd.trouble if after.overview else ""
    if trouble and trouble != (before.overview.minflinkd.trouble if before.overview else ""):
        yield f"trouble: {trouble}"


def _standing(job: JobSummary) -> str:
    tasks = f"tasks {job.tasks.running + job.tasks.finished}/{job.tasks.total}"
    restarts = f", restarts {job.minflinkd.restarts}" if job.minflinkd.restarts else ""
    found = job.minflinkd.restarting_repeatedly
    why = f", restarting repeatedly: {found.code}: {found.message}" if found is not None else ""
    return f"{job.state}, {tasks}{restarts}{why}"


def of_job(before: JobState, after: JobState) -> Iterator[str]:
    """Yield what has changed between two states."""
    if (told := _of_tasks(after)) and told != _of_tasks(before):
        yield told
    known = {} if before.checkpoints is None else {one.id: one.status for one in before.checkpoints.history}
    for one in reversed(() if after.checkpoints is None else after.checkpoints.history):
        if one.status in _ENDED_CHECKPOINTS and known.get(one.id) != one.status:
            yield _of_checkpoint(one)
    seen = set() if before.exceptions is None else {one.timestamp for one in before.exceptions.history.entries}
    for entry in reversed(() if after.exceptions is None else after.exceptions.history.entries):
        if entry.timestamp not in seen:
            where = f" in task {entry.task_name}" if entry.task_name else ""
            yield f"failure{where}: {entry.minflinkd.code}: {entry.minflinkd.message.partition(chr(10))[0]}"


def _of_tasks(state: JobState) -> str:
    job = state.job
    if job is None:
        return ""
    counts = job.status_counts
    waiting = f"; waiting: {job.minflinkd.waiting[0]}" if job.minflinkd.waiting else ""
    restarts = f", restarts {job.minflinkd.restarts}" if job.minflinkd.restarts else ""
    return f"{job.name}: {job.state}, tasks {counts.running + counts.finished}/{len(job.vertices)}{restarts}{waiting}"


def _of_checkpoint(one: Checkpoint) -> str:
    if one.status == "FAILED":
        return f"checkpoint {one.id}: failed: {one.failure_message or 'no cause is known'}"
    return f"checkpoint {one.id}: completed in {duration(one.end_to_end_duration)}, {size(one.state_size)}"
