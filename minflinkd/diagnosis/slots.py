"""Slots that a job lacks, and TaskManagers that are not heard from."""

from __future__ import annotations

from collections.abc import Iterator

from minflinkd.diagnosis.facts import JobFacts, silence
from minflinkd.diagnosis.findings import Finding, Severity
from minflinkd.diagnosis.words import line, span
from minflinkd.rpc.jobs import JobStatus
from minflinkd.rpc.messages import SessionPhase

_WAITING = frozenset({JobStatus.CREATED, JobStatus.RESTARTING, JobStatus.INITIALIZING, JobStatus.RECONCILING})
_DO = (
    "raise resourcemanager.max-taskmanagers or taskmanager.numberOfTaskSlots, cancel another job, or give this one "
    "less parallelism (minflinkd rescale)"
)


def too_few(facts: JobFacts) -> Iterator[Finding]:
    """Nothing of the job runs, because it does not get its slots."""
    details = facts.details
    if not details.waiting or details.status not in _WAITING:
        return
    slots = facts.resources
    starting = [info for info in facts.task_managers if info.report.session is SessionPhase.STARTING]
    coming = bool(starting) or (slots is not None and bool(slots.starting))
    have = f"; {slots.slots_free} of {slots.slots_total} slots of the cluster are free" if slots is not None else ""
    if coming:  # the cluster counts their slots as free, and nobody can have them yet
        have = ""
    since = details.timestamps.get(details.status.value) or None
    yield Finding(
        code="too-few-slots",
        severity=Severity.WARNING if coming else Severity.CRITICAL,
        title="A TaskManager is not ready yet" if coming else "Too few slots",
        sentence=f"The job is {details.status} and waits for slots: {line('; '.join(details.waiting))}{have}",
        figure="" if slots is None or coming else f"{slots.slots_free} of {slots.slots_total} free",
        since_ms=since,
        do=f"wait for the TaskManager that starts. If that is not enough: {_DO}" if coming else _DO,
        weight=3.0,
        where="minflinkd taskmanagers",
    )


def fewer_than_wanted(facts: JobFacts) -> Iterator[Finding]:
    """The job runs, but with less parallelism than it asks for."""
    wanted = facts.details.graph.parallelism
    for task in facts.running_tasks():
        asked = max((vertex.parallelism or wanted for vertex in task.task.vertices), default=wanted)
        if task.task.parallelism >= asked or not facts.details.waiting:
            continue
        yield Finding(
            code="fewer-slots-than-wanted",
            severity=Severity.WARNING,
            title="Fewer slots than wanted",
            sentence=f"Task {task.task.name} runs with a parallelism of {task.task.parallelism} instead of {asked}: "
            f"{line('; '.join(facts.details.waiting))}",
            figure=f"{task.task.parallelism} of {asked}",
            since_ms=task.start_ms if task.start_ms >= 0 else None,
            do=_DO,
            task=task.task.id,
            weight=0.8,
            where="minflinkd taskmanagers",
        )


def unheard(facts: JobFacts) -> Iterator[Finding]:
    """A TaskManager with tasks of the job is silent; it counts as lost soon."""
    mine = {task.resource_id for task in facts.running_tasks() if task.resource_id is not None}
    for info in facts.task_managers:
        if info.resource_id in mine and (age := silence(facts, info)) is not None:
            yield Finding(
                code="taskmanager-unheard",
                severity=Severity.WARNING,
                title="A TaskManager is not heard from",
                sentence=f"TaskManager {info.resource_id}, which runs tasks of the job, was last heard from "
                f"{span(age)} ago",
                figure=span(age),
                since_ms=info.last_heartbeat_ms,
                do="look at its host and at the network between it and the daemon",
                task_manager=info.resource_id,
                weight=2.0,
                where="minflinkd taskmanagers",
            )
