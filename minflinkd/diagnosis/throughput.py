"""Where the time of slow micro-batches goes: source, state commits, Python workers, garbage, one partition of many."""

from __future__ import annotations

from collections.abc import Iterator

from minflinkd.diagnosis.facts import JobFacts
from minflinkd.diagnosis.findings import Finding, Severity
from minflinkd.diagnosis.words import MINUTE, SECOND, number, share, size, span
from minflinkd.rpc.jobs import TaskDetails
from minflinkd.rpc.messages import TaskMetrics

SLOW = 1 * SECOND  # a micro-batch below it is quick enough: what takes half of it limits nobody
SOURCE_SHARE = 0.5  # of a micro-batch: then more than on all of the job's own work
COMMIT_SHARE = 0.4  # a commit ends each micro-batch, so a tenth to a fifth is normal
PYTHON_SHARE = 0.5  # of the time of all partitions
SKEW = 3.0  # times the mean of the other partitions; hashing alone stays below 2 with some hundred keys
SKEW_SHARE = 0.3  # of the micro-batch that an even distribution would save
GARBAGE_SHARE = 0.1  # of the time: a heap that is large enough needs a few percent
STUCK = 1 * MINUTE  # long for a micro-batch
_LOOKING = ("latestOffset", "getBatch")  # Spark's names of what it does before it processes rows
STUCK_FACTOR = 5.0  # times the one before: a job whose micro-batches always take minutes is not stuck


def _slow(facts: JobFacts) -> Iterator[TaskDetails]:
    """Yield the tasks with a slow micro-batch. In real-time mode, a batch mostly waits for rows."""
    slow = (task for task in facts.running_tasks() if task.metrics.batch_ms >= SLOW)
    return (task for task in slow if task.metrics.real_time is None)


def source_slow(facts: JobFacts) -> Iterator[Finding]:
    """Finding out what is new in the sources takes most of each micro-batch."""
    for task in _slow(facts):
        metrics = task.metrics
        spent = sum(metrics.batch_phases.get(phase, 0.0) for phase in _LOOKING)
        if spent >= SOURCE_SHARE * metrics.batch_ms:
            yield _of(
                task,
                code="bounded-by-source",
                title="Bounded by the source",
                sentence=f"Task {task.task.name} spends {span(spent)} of each {span(metrics.batch_ms)} "
                f"finding out what is new in {_sources(task)}, before it processes anything",
                figure=share(spent, metrics.batch_ms),
                do="a directory with very many files is slow to list: move old files away (cleanSource), or use larger "
                "files; for a broker, look at its load and at the network",
                weight=spent / metrics.batch_ms,
            )


def state_commits(facts: JobFacts) -> Iterator[Finding]:
    """Each partition waits for its state to be written at the end of a micro-batch."""
    for task in _slow(facts):
        metrics = task.metrics
        if metrics.commit_ms >= COMMIT_SHARE * metrics.batch_ms:
            yield _of(
                task,
                code="bounded-by-state-commits",
                title="Bounded by state commits",
                sentence=f"Task {task.task.name} spends {span(metrics.commit_ms)} of each {span(metrics.batch_ms)} "
                f"writing its state of {number(metrics.state_rows)} rows",
                figure=share(metrics.commit_ms, metrics.batch_ms),
                do="put the TaskManagers' directories on a faster local disk, let a micro-batch read more "
                "(maxFilesPerTrigger, maxOffsetsPerTrigger) so that there are fewer commits, or keep less state",
                weight=metrics.commit_ms / metrics.batch_ms,
            )


def python_workers(facts: JobFacts) -> Iterator[Finding]:
    """Most of the processor time goes into Python functions."""
    for task in _slow(facts):
        work = task.metrics.work
        if work is None or not work.task_ms or work.python_ms < PYTHON_SHARE * work.task_ms:
            continue
        yield _of(
            task,
            code="bounded-by-python",
            title="Bounded by Python workers",
            sentence=f"Python functions take {span(work.python_ms)} of the {span(work.task_ms)} that the partitions of "
            f"task {task.task.name} computed in a micro-batch",
            figure=share(work.python_ms, work.task_ms),
            do="write the function as SQL or as a pandas UDF that handles many rows at once, or give the vertex more "
            "parallelism (minflinkd rescale)",
            weight=work.python_ms / work.task_ms,
        )


def garbage_collection(facts: JobFacts) -> Iterator[Finding]:
    """The session's JVM often stands still, and with it all of its tasks."""
    used = {info.resource_id: info.report.metrics for info in facts.task_managers}
    found: set[str] = set()
    for task in facts.running_tasks():
        metrics = used.get(task.resource_id, {}) if task.resource_id else {}
        spent = metrics.get("jvm.gc_share", 0.0)
        if spent < GARBAGE_SHARE or task.resource_id in found:
            continue
        found.add(task.resource_id or "")
        heap, most = metrics.get("jvm.heap.used_bytes", 0.0), metrics.get("jvm.heap.max_bytes", 0.0)
        full = f"; {size(heap)} of its heap of {size(most)} is in use" if most > 0 else ""
        yield _of(
            task,
            code="bounded-by-garbage-collection",
            title="Bounded by garbage collection",
            sentence=f"The JVM of TaskManager {task.resource_id} stood still for {share(spent, 1.0)} of the last "
            f"minute to collect garbage, and with it task {task.task.name}{full}",
            figure=share(spent, 1.0),
            do="give sessions more heap (taskmanager.memory.heap.size) or fewer slots, let a micro-batch read less "
            "(maxFilesPerTrigger, maxOffsetsPerTrigger), or broadcast and collect less",
            weight=spent,
        )


def skewed_partitions(facts: JobFacts) -> Iterator[Finding]:
    """One partition works while the others wait for it."""
    for task in _slow(facts):
        work = task.metrics.work
        if work is None or work.partitions < 2 or work.uneven_ms < SKEW_SHARE * work.batch_ms:
            continue
        if work.longest_ms < SKEW * max(work.others_ms, 1.0):
            continue
        by_rows = work.most_rows >= SKEW * max(work.other_rows, 1.0)
        why = (
            f"it has {number(work.most_rows)} rows, the others {number(work.other_rows)} on average: a few keys have "
            "most of the rows"
            if by_rows
            else "though its rows are not many more than those of the others"
        )
        do = (
            "aggregate in two steps, first by the key and a random part of it; filter the key out or treat it apart; "
            "more parallelism does not help"
            if by_rows
            else "look for rows that are expensive to process, and for another process on that TaskManager's host"
        )
        yield _of(
            task,
            code="skewed-partitions",
            title="Skewed partitions",
            sentence=f"One of the {work.partitions} partitions of task {task.task.name} takes "
            f"{span(work.longest_ms)} in a micro-batch, the others {span(work.others_ms)} on average; {why}",
            figure=f"{work.longest_ms / max(work.others_ms, 1.0):.1f} times",
            do=do,
            weight=work.uneven_ms / work.batch_ms if work.batch_ms else 0.0,
        )


def stuck_micro_batch(facts: JobFacts) -> Iterator[Finding]:
    """A micro-batch runs far longer than those before it: user code blocks, or it has read far more."""
    for task in facts.running_tasks():
        since, metrics = task.metrics.batch_since_ms, task.metrics
        if since is None or metrics.backpressured:
            continue
        lasts = facts.now - since
        if lasts < STUCK or lasts < STUCK_FACTOR * metrics.batch_ms:
            continue
        before = f"the one before took {span(metrics.batch_ms)}" if metrics.batches else "it is the first one"
        finding = _of(
            task,
            code="stuck-micro-batch",
            title="A micro-batch does not end",
            sentence=f"Micro-batch {metrics.batch_id + 1} of task {task.task.name} has run for {span(lasts)}; {before}",
            figure=span(lasts),
            do="look where it stands: `py-spy dump --pid` with session.pid of its TaskManager's metrics; if it has "
            "read too much at once, limit it with maxFilesPerTrigger or maxOffsetsPerTrigger",
            since_ms=since,
        )
        yield finding


def keeps_up(metrics: TaskMetrics) -> bool:
    """Whether the task processes what there is at once."""
    slowest = metrics.batch_ms if metrics.real_time is None else metrics.real_time.p50_ms or 0
    return slowest < SLOW and not metrics.backpressured and metrics.batch_since_ms is None


def _sources(task: TaskDetails) -> str:
    names = [vertex.id for vertex in task.task.vertices if vertex.source is not None]
    return ", ".join(names) or "its inputs"


def _of(
    task: TaskDetails,
    *,
    code: str,
    title: str,
    sentence: str,
    figure: str,
    do: str,
    weight: float = 0.0,
    since_ms: int | None = None,
) -> Finding:
    return Finding(
        code=code,
        severity=Severity.WARNING,
        title=title,
        sentence=sentence,
        figure=figure,
        do=do,
        since_ms=since_ms,
        task=task.task.id,
        task_manager=task.resource_id or "",
        weight=weight,
    )
