"""All rules about the cluster as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from minflinkd.diagnosis.facts import ClusterFacts, Disk, silence
from minflinkd.diagnosis.findings import Finding, Severity, ordered
from minflinkd.diagnosis.words import MINUTE, line, number, share, size, span
from minflinkd.rpc.messages import SessionPhase

Rule = Callable[[ClusterFacts], Iterator[Finding]]

LITTLE = 0.05  # of a file system that is free: time to act
NOTHING = 0.01  # of it: the next checkpoint may fail
ENOUGH = 20 * 2**30  # bytes that are enough, however large the file system is
NEWS = 15 * MINUTE  # a loss that is older has been seen
LONG_START = 2 * MINUTE  # a session starts in some seconds, on a busy machine in a minute
LAG = 0.25  # seconds that timers of the daemon are late; heartbeats and answers are, too
LAG_MS = 5 * MINUTE


def no_task_manager(facts: ClusterFacts) -> Iterator[Finding]:
    """Jobs wait, and no TaskManager is there or coming."""
    resources = facts.resources
    if resources is None or resources.task_managers or resources.starting or not resources.pending_needs:
        return
    yield Finding(
        code="no-taskmanager",
        severity=Severity.CRITICAL,
        title="No TaskManager",
        sentence=f"{resources.pending_needs} needs of jobs wait, and no TaskManager is registered or starting",
        figure=f"{resources.pending_needs} wait",
        do="start one (minflinkd taskmanager), or look into the daemon's log for why none comes up",
        where="minflinkd taskmanagers",
        weight=3.0,
    )


def needs_wait(facts: ClusterFacts) -> Iterator[Finding]:
    """There are fewer slots than jobs ask for."""
    resources = facts.resources
    if resources is None or not resources.pending_needs or not resources.task_managers:
        return
    yield Finding(
        code="too-few-slots",
        severity=Severity.WARNING,
        title="Too few slots",
        sentence=f"Jobs wait for {resources.pending_needs} allocations of slots; {resources.slots_free} of "
        f"{resources.slots_total} slots are free"
        + (f", {len(resources.starting)} TaskManagers are starting" if resources.starting else ""),
        figure=f"{resources.slots_free} of {resources.slots_total} free",
        do="raise resourcemanager.max-taskmanagers or taskmanager.numberOfTaskSlots, or cancel a job",
        where="minflinkd taskmanagers",
        weight=1.5,
    )


def losses(facts: ClusterFacts) -> Iterator[Finding]:
    """TaskManagers were lost lately."""
    if facts.resources is None:
        return
    recent = [loss for loss in facts.resources.losses if facts.now - loss.at_ms <= NEWS]
    if not recent:
        return
    last = max(recent, key=lambda loss: loss.at_ms)
    many = f"{len(recent)} TaskManagers were lost in the last {span(NEWS)}, the last one, " if len(recent) > 1 else ""
    yield Finding(
        code="taskmanager-lost",
        severity=Severity.WARNING,
        title="TaskManagers were lost" if len(recent) > 1 else "A TaskManager was lost",
        sentence=f"{many}{last.resource_id}, {span(facts.now - last.at_ms)} ago: {line(last.reason)}"
        if many
        else f"TaskManager {last.resource_id} was lost {span(facts.now - last.at_ms)} ago: {line(last.reason)}",
        figure=str(len(recent)),
        do="find out who ended it: dmesg (the kernel's OOM killer), its taskmanager.log, the operator of its host",
        since_ms=last.at_ms,
        task_manager=last.resource_id,
        where="minflinkd taskmanagers",
        weight=1.0 + len(recent) / 10,
    )


def unheard(facts: ClusterFacts) -> Iterator[Finding]:
    """A TaskManager is silent."""
    for info in facts.task_managers:
        if (age := silence(facts, info)) is not None:
            yield Finding(
                code="taskmanager-unheard",
                severity=Severity.WARNING,
                title="A TaskManager is not heard from",
                sentence=f"TaskManager {info.resource_id} was last heard from {span(age)} ago",
                figure=span(age),
                do="look at its host and at the network between it and the daemon",
                since_ms=info.last_heartbeat_ms,
                task_manager=info.resource_id,
                where=f"minflinkd taskmanagers {info.resource_id}",
                weight=1.2,
            )


def sessions(facts: ClusterFacts) -> Iterator[Finding]:
    """A session does not start, or takes long to."""
    for info in facts.task_managers:
        report = info.report
        if report.session is SessionPhase.READY or not (report.session_error or report.session_slow):
            continue
        failed = bool(report.session_error)
        yield Finding(
            code="session-does-not-start" if failed else "session-starts-slowly",
            severity=Severity.CRITICAL if failed else Severity.WARNING,
            title="A session does not start" if failed else "A session starts slowly",
            sentence=f"The session of TaskManager {info.resource_id} is {report.session}: "
            f"{line(report.session_error or report.session_slow)}",
            figure=f"start {report.session_generation}",
            do=f"minflinkd logs {info.resource_id} shows session.log; Java, memory and paths are the usual causes",
            task_manager=info.resource_id,
            where=f"minflinkd taskmanagers {info.resource_id}",
            weight=2.0,
        )


def slow_starts(facts: ClusterFacts) -> Iterator[Finding]:
    """A TaskManager was started long ago and has not registered."""
    for starting in facts.resources.starting if facts.resources is not None else ():
        lasts = facts.now - starting.since_ms
        if lasts >= LONG_START:
            yield Finding(
                code="taskmanager-starts-slowly",
                severity=Severity.WARNING,
                title="A TaskManager does not register",
                sentence=f"TaskManager {starting.resource_id} was started {span(lasts)} ago and has not registered"
                + (f": {line(starting.waiting)}" if starting.waiting else ""),
                figure=span(lasts),
                do="look into its taskmanager.log, and whether its host is busy",
                since_ms=starting.since_ms,
                task_manager=starting.resource_id,
                where="minflinkd info",
                weight=1.0,
            )


def drains_held(facts: ClusterFacts) -> Iterator[Finding]:
    """A TaskManager cannot end, since jobs do not leave it."""
    for info in facts.task_managers:
        held = {job: why for job, why in info.held_by.items() if why}
        if info.drained and held:
            job, why = sorted(held.items())[0]
            yield Finding(
                code="drain-held",
                severity=Severity.INFO,
                title="A drain waits",
                sentence=f"TaskManager {info.resource_id} drains, and job {job} is still there: {line(why)}",
                figure=f"{len(held)} jobs",
                do="mend what keeps the job, cancel it, or undo the drain",
                job=job,
                task_manager=info.resource_id,
                where=f"minflinkd taskmanagers {info.resource_id}",
            )


def full_disks(facts: ClusterFacts) -> Iterator[Finding]:
    """The daemon or a TaskManager has little room to write."""
    for disk in facts.disks:
        yield from _of_disk(disk, "the daemon", "")
    for info in facts.task_managers:
        metrics = info.report.metrics
        free, total = metrics.get("disk.free_bytes"), metrics.get("disk.total_bytes")
        if free is not None and total:
            where = f"TaskManager {info.resource_id}"
            yield from _of_disk(Disk("its directory", int(free), int(total)), where, info.resource_id)


def _of_disk(disk: Disk, whose: str, task_manager: str) -> Iterator[Finding]:
    if not disk.total or disk.free >= ENOUGH or disk.free >= LITTLE * disk.total:
        return
    critical = disk.free < NOTHING * disk.total
    yield Finding(
        code="disk-full",
        severity=Severity.CRITICAL if critical else Severity.WARNING,
        title="A disk is nearly full",
        sentence=f"The disk of {whose} ({disk.path}) has {size(disk.free)} free of {size(disk.total)}",
        figure=f"{share(disk.free, disk.total)} free",
        do="free space: old logs, savepoints that nobody needs, files of other programs",
        task_manager=task_manager,
        where="minflinkd orphans",
        weight=2.5 if critical else 1.1,
    )


def busy_daemon(facts: ClusterFacts) -> Iterator[Finding]:
    """The daemon's event loop is late, and everything that it answers."""
    lately = facts.history.known("loop_lag", LAG_MS)
    if len(lately) < 3 or (least := min(lately)) < LAG:
        return
    yield Finding(
        code="daemon-busy",
        severity=Severity.WARNING,
        title="The daemon is busy",
        sentence=f"In each of the last {len(lately)} measurements a timer of the daemon ran at least "
        f"{span(least * 1000)} late: heartbeats and answers are late, too",
        figure=span(least * 1000),
        do="look what else runs on its host, and whether it swaps",
        where="minflinkd info",
        weight=1.3,
    )


RULES: tuple[Rule, ...] = (
    no_task_manager,
    needs_wait,
    losses,
    unheard,
    sessions,
    slow_starts,
    drains_held,
    full_disks,
    busy_daemon,
)


def diagnose(facts: ClusterFacts) -> tuple[Finding, ...]:
    """Return what limits or ails the cluster, what hurts most first."""
    return ordered(finding for rule in RULES for finding in rule(facts))


def about_jobs(facts: ClusterFacts) -> str:
    """Return a sentence on the jobs, for a cluster without findings."""
    running = sum(not job.status.terminal for job in facts.jobs)
    return {0: "No job is running.", 1: "1 job is running."}.get(running, f"{number(running)} jobs are running.")
