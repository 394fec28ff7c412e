"""What the coordinator of one job knows, and the questions that can be answered from this state alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from minflinkd.checkpoint.causes import CheckpointKind, Refusal
from minflinkd.checkpoint.machine.pending import PendingCheckpoint, Phase
from minflinkd.checkpoint.machine.registry import Registry
from minflinkd.checkpoint.metadata import CompletedCheckpoint
from minflinkd.checkpoint.options import CheckpointOptions
from minflinkd.checkpoint.statistics import FileFigures
from minflinkd.rpc.snapshot import TaskSnapshot
from minflinkd.runtime.ids import AttemptId, JobId, TaskId
from minflinkd.runtime.machine import InvariantViolated

MAX_CLEANING = 10  # completed checkpoints beyond the retained ones: not yet published, or not yet deleted


@dataclass(frozen=True)
class Request:
    """Positive numbers belong to the driver, which answers its callers. Negative numbers are the machine's own."""

    number: int
    kind: CheckpointKind
    forced: bool = False
    stop: bool = False
    full: bool = False


@dataclass(frozen=True)
class SettingUp:
    request: Request
    deadline: float


@dataclass(frozen=True)
class Final:
    """The request for a final checkpoint. It lasts until the tasks stop."""

    retry_at: float
    request: int | None = None  # under way, or complete
    checkpoint_id: int | None = None  # complete


@dataclass(frozen=True)
class Doomed:
    """Files that lost their last reference. Checkpoints up to `horizon` may still rely on them (F5)."""

    files: frozenset[str]
    horizon: int
    referenced: bool  # whether a checkpoint ever referred to them; files of a late one may be deleted already
    checkpoint: CompletedCheckpoint | None = None  # its references are released at that time


@dataclass(frozen=True, kw_only=True)
class State:
    job_id: JobId
    options: CheckpointOptions
    attempts: Mapping[TaskId, AttemptId] = field(default_factory=dict)  # empty: not all tasks are running
    survivors: frozenset[AttemptId] = frozenset()  # keep running while other tasks are restarted
    setting_up: SettingUp | None = None
    queued: tuple[Request, ...] = ()  # at most one that is not forced
    pending: Mapping[int, PendingCheckpoint] = field(default_factory=dict)
    completed: tuple[CompletedCheckpoint, ...] = ()  # in the store, by id
    skipped: frozenset[int] = frozenset()  # completed, but damaged: the job went on from an earlier one
    unconfirmed: Mapping[int, frozenset[TaskId]] = field(default_factory=dict)  # completed, unpublished by these tasks
    discarding: Mapping[int, frozenset[str]] = field(default_factory=dict)  # metadata being deleted -> its files
    leaving: Mapping[int, CompletedCheckpoint] = field(default_factory=dict)  # those of `discarding` that were complete
    doomed: tuple[Doomed, ...] = ()
    deleting: tuple[frozenset[str], ...] = ()  # files being deleted
    registry: Registry = field(default_factory=Registry)  # of `whole`, `leaving` and `doomed`
    sizes: Mapping[str, int] = field(default_factory=dict)  # bytes of physical files, as far as known
    restored: int | None = None  # the next attempts start from this checkpoint
    final: Final | None = None
    next_trigger: float | None = None
    last_ended: float | None = None
    last_id: int = 0
    own_requests: int = 0
    failures: int = 0  # counted ones in a row (C23)
    trigger_failures: int = 0  # in a row
    stopped: bool = False
    stopping: int | None = None  # the request with `stop`: the tasks publish no micro-batch after its cut
    draining: bool = False  # until the tasks stop, only the final checkpoint is taken
    pinned: frozenset[int] = frozenset()  # completed, and being copied into a savepoint
    read: Mapping[int, int] = field(default_factory=dict)  # completed -> how many read its state


def refusal(state: State, request: Request) -> Refusal | None:
    """The checks that no request skips and that waiting does not help (C20)."""
    if state.stopped:
        return Refusal.SHUT_DOWN
    ends = state.final is not None or state.draining or state.stopping is not None
    if request.kind is CheckpointKind.PERIODIC and (state.options.interval <= 0 or ends):
        return Refusal.PERIODIC_OFF
    if state.stopping not in (None, request.number) or (state.draining and request.kind is not CheckpointKind.FINAL):
        return Refusal.JOB_STOPS
    if not state.attempts:
        return Refusal.NOT_ALL_TASKS_RUNNING
    beyond = len(whole(state)) - state.options.num_retained
    if beyond + len(state.discarding) + len(state.deleting) >= MAX_CLEANING:
        return Refusal.TOO_MANY_TO_CLEAN
    return None


def obstacle(state: State, request: Request, now: float) -> Refusal | None:
    """The checks that a request may wait for and that a forced request skips."""
    if request.forced:
        return None
    if len(state.pending) >= state.options.max_concurrent:
        return Refusal.TOO_MANY_IN_FLIGHT
    if now < pause_ends(state):
        return Refusal.TOO_SOON
    return None


def pause_ends(state: State) -> float:
    return 0.0 if state.last_ended is None else state.last_ended + state.options.min_pause


def whole(state: State) -> tuple[CompletedCheckpoint, ...]:
    """Return the checkpoints that the job may be restored from, as far as is known, by id."""
    if not state.skipped:
        return state.completed
    return tuple(c for c in state.completed if c.checkpoint_id not in state.skipped)


def oldest_retained(state: State) -> int:
    """Return the id of the oldest checkpoint to keep. Skipped ones do not count, and go when they are older than it."""
    kept = whole(state)[-state.options.num_retained :]
    return kept[0].checkpoint_id if len(kept) == state.options.num_retained else 0


def retained(state: State) -> tuple[int, ...]:
    """Return the ids of the checkpoints that stay if the job ends now, with everything published."""
    oldest = oldest_retained(state)
    return tuple(c.checkpoint_id for c in state.completed if c.checkpoint_id >= oldest)


def retained_files(state: State) -> frozenset[str]:
    return frozenset().union(*(checkpoint.physical_files() for checkpoint in state.completed))


def available_files(state: State) -> frozenset[str]:
    """Files of earlier checkpoints that an acknowledgement may refer to. None of them is deleted yet."""
    lingering = [*state.discarding.values(), *(doomed.files for doomed in state.doomed if doomed.referenced)]
    return frozenset(state.registry.files).union(*lingering)


def file_figures(state: State) -> FileFigures:
    registry = state.registry
    return FileFigures(
        physical=len(registry.files),
        logical=registry.segments,
        bytes_stored=sum(max(live.bytes, state.sizes.get(name, 0)) for name, live in registry.files.items()),
        bytes_referenced=registry.bytes,
        deleting=sum(map(len, state.deleting)),
    )


def protected_files(state: State) -> frozenset[str]:
    """Files that something refers to: checkpoints retained, pending, or with metadata that still exists."""
    pending = (checkpoint.referenced_files() for checkpoint in state.pending.values())
    skipped = (c.physical_files() for c in state.completed if c.checkpoint_id in state.skipped)
    return frozenset(state.registry.files).union(*state.discarding.values(), *pending, *skipped)


def orphans(state: State, found: Mapping[str, tuple[int, int]]) -> frozenset[str]:
    """Of the physical files `found` (with epoch and checkpoint), return those nothing refers to or will refer to (F7).

    Excludes files of a later leader, and of a checkpoint in flight, because its tasks may be writing them. A late task
    may still write files for a checkpoint that has ended. Its acknowledgement is refused, and the task deletes them
    itself.
    """
    kept = protected_files(state) | available_files(state)
    return frozenset(
        name
        for name, (epoch, checkpoint_id) in found.items()
        if epoch <= state.options.epoch
        and checkpoint_id <= state.last_id
        and checkpoint_id not in state.pending
        and name not in kept
    )


def may_restore(state: State) -> bool:
    """Whether the latest checkpoint is settled: no write in flight, no failed write left half deleted."""
    newest = state.completed[-1].checkpoint_id if state.completed else 0
    finalizing = any(checkpoint.phase is Phase.FINALIZING for checkpoint in state.pending.values())
    return not finalizing and all(checkpoint_id < newest for checkpoint_id in state.discarding)


def all_published(state: State) -> bool:
    """Whether a final checkpoint is complete and everything is published: the job may finish (C4)."""
    return state.final is not None and state.final.checkpoint_id is not None and not state.unconfirmed


def published_by(state: State) -> dict[TaskId, tuple[int, int]]:
    """Return, by task, the latest complete checkpoint that its sinks have published, and how many later ones wait.

    0 is no checkpoint: nothing is published yet, as far as the checkpoints tell that there are.
    """
    found: dict[TaskId, tuple[int, int]] = {}
    for checkpoint in whole(state):  # what a skipped one has published, nobody knows
        number = checkpoint.checkpoint_id
        waiting = state.unconfirmed.get(number, frozenset())
        for task in checkpoint.tasks:
            latest, left = found.get(task.task_id, (0, 0))
            found[task.task_id] = (latest, left + 1) if task.task_id in waiting else (number, 0)
    return found


def has_confirmed(state: State) -> bool:
    return any(checkpoint.checkpoint_id not in state.unconfirmed for checkpoint in whole(state))


def owed_to(state: State, attempt_id: AttemptId) -> int | None:
    """Return the oldest checkpoint that this attempt has yet to publish."""
    tasks = {task for task, attempt in state.attempts.items() if attempt == attempt_id}
    return min((number for number, waiting in state.unconfirmed.items() if waiting & tasks), default=None)


def holds(state: State, snapshot: TaskSnapshot) -> bool:
    """Whether the coordinator owns what a task acknowledged, also when the task repeats itself (F4)."""
    pending = state.pending.get(snapshot.checkpoint_id)
    if pending is not None:
        taken = pending.snapshots.get(snapshot.task_id)
        if taken is not None and taken.attempt_id == snapshot.attempt_id:
            return True
    completed = any(checkpoint.checkpoint_id == snapshot.checkpoint_id for checkpoint in state.completed)
    return completed or not protected_files(state).isdisjoint(snapshot.physical_files)


def next_wakeup(state: State, now: float) -> float | None:
    """When the next Tick is due; None: not before some other event."""
    times = [c.deadline for c in state.pending.values() if c.phase is Phase.PENDING]
    if state.setting_up is not None:
        times.append(state.setting_up.deadline)
    if state.next_trigger is not None:
        times.append(state.next_trigger)
    if state.final is not None and state.final.request is None:
        times.append(state.final.retry_at)
    if state.queued and state.setting_up is None:
        times.append(pause_ends(state))
    # Every step checks the time. What is still overdue after a step is waiting for an event, not for the clock.
    return min((time for time in times if time > now), default=None)


def check_invariants(state: State) -> None:
    """Raises InvariantViolated."""
    ids = [checkpoint.checkpoint_id for checkpoint in state.completed]
    problems = {
        "completed checkpoints out of order": ids != sorted(set(ids)),
        "an id is both pending and completed": bool(state.pending.keys() & set(ids)),
        "an id is both completed and being deleted": bool(state.discarding.keys() & set(ids)),
        "an id beyond the last one": max([*ids, *state.pending, *state.discarding], default=0) > state.last_id,
        "a checkpoint unconfirmed that is not retained": not state.unconfirmed.keys() <= set(ids),
        "leaving, and its metadata is not being deleted": not state.leaving.keys() <= state.discarding.keys(),
        "skipped and not retained": not state.skipped <= set(ids),
        "unconfirmed although it was skipped": not state.skipped.isdisjoint(state.unconfirmed),
        "pinned and not retained": not state.pinned <= set(ids),
        "read and not retained": not state.read.keys() <= set(ids),
        "read by nobody": min(state.read.values(), default=1) < 1,
        "unconfirmed by nobody": not all(state.unconfirmed.values()),
        "unconfirmed by a task that does not run": bool(state.attempts)
        and any(waiting - state.attempts.keys() for waiting in state.unconfirmed.values()),
        "two requests queued": sum(not request.forced for request in state.queued) > 1,
        "doomed files that are referenced": any(
            checkpoint.physical_files() & doomed.files for doomed in state.doomed for checkpoint in state.completed
        ),
        "a pending checkpoint without attempts": any(not c.tasks for c in state.pending.values()),
    }
    if broken := [name for name, is_broken in problems.items() if is_broken]:
        raise InvariantViolated(f"checkpoint coordinator: {', '.join(broken)}")
