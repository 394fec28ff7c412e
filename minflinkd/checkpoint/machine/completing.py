"""How a checkpoint is completed (C21, C22): acknowledged by all tasks, written, published, and later subsumed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from dataclasses import replace

from minflinkd.checkpoint.causes import CheckpointKind, FailureCause
from minflinkd.checkpoint.machine import aborting, doomed
from minflinkd.checkpoint.machine import events as e
from minflinkd.checkpoint.machine.pending import PendingCheckpoint, Phase
from minflinkd.checkpoint.machine.state import available_files, oldest_retained, whole
from minflinkd.checkpoint.machine.step import Step
from minflinkd.checkpoint.metadata import CompletedCheckpoint
from minflinkd.checkpoint.statistics import CheckpointStatus
from minflinkd.rpc.snapshot import TaskSnapshot
from minflinkd.runtime.errors import ErrorInfo
from minflinkd.runtime.ids import TaskId


def acknowledged(step: Step, snapshot: TaskSnapshot) -> None:
    checkpoint = step.state.pending.get(snapshot.checkpoint_id)
    if checkpoint is None or not checkpoint.waits_for(snapshot):
        doomed.doom(step, frozenset(snapshot.physical_files))  # late or repeated: only unreferenced files are deleted
        return
    available = available_files(step.state)
    snapshot = step.state.registry.located(snapshot, available)
    wanted = {file.handle.file for file in snapshot.files} - set(snapshot.physical_files)
    if lost := wanted - available:
        doomed.doom(step, frozenset(snapshot.physical_files))
        aborting.abort(step, checkpoint, FailureCause.DECLINED, _lost(snapshot, lost), snapshot.task_id)
        return
    step.set(sizes=_with_sizes(step.state.sizes, snapshot))
    checkpoint = checkpoint.acknowledge(snapshot, step.now)
    if checkpoint.acknowledged_by_all:
        checkpoint = replace(checkpoint.move(Phase.FINALIZING), finalizing_at=step.now)
        checkpoint = checkpoint.registered(step.state.registry, step.state.sizes)
        step.commands.append(e.WriteMetadata(_finished(step, checkpoint)))
    step.put(checkpoint)
    step.commands.append(e.Report(checkpoint.record()))


def _finished(step: Step, checkpoint: PendingCheckpoint) -> CompletedCheckpoint:
    return checkpoint.complete(step.state.job_id, step.state.options.epoch)


def complete(step: Step, checkpoint: PendingCheckpoint) -> None:
    checkpoint = checkpoint.move(Phase.COMPLETED)
    state, number, completed = step.state, checkpoint.checkpoint_id, _finished(step, checkpoint)
    step.drop(number)
    step.set(
        completed=tuple(sorted([*state.completed, completed], key=lambda c: c.checkpoint_id)),
        unconfirmed={**state.unconfirmed, number: frozenset(checkpoint.tasks)},
        registry=state.registry.with_(completed),
        failures=0,
        last_ended=step.now,
    )
    if checkpoint.kind is CheckpointKind.SAVEPOINT:
        step.set(pinned=step.state.pinned | {number})
    metadata_ms = (step.now - checkpoint.finalizing_at) * 1000
    step.commands.append(e.Report(checkpoint.record(CheckpointStatus.COMPLETED, metadata_ms=metadata_ms)))
    for older in [c for c in step.state.pending.values() if c.checkpoint_id < number]:
        if older.phase is Phase.PENDING:
            aborting.abort(step, older, FailureCause.SUBSUMED)
    subsume(step)
    doomed.doom(step, checkpoint.written_files() - completed.physical_files())  # they held only copies
    current = set(step.state.attempts.values())
    step.commands += [e.NotifyComplete(a, number) for a in checkpoint.tasks.values() if a in current]
    final = step.state.final
    if final is not None and final.request == checkpoint.request:
        step.set(final=replace(final, checkpoint_id=number))
    step.answer(e.Complete(checkpoint.request, completed))


def confirm(step: Step, checkpoints: Collection[int], tasks: Set[TaskId]) -> None:
    left = {n: w - tasks if n in checkpoints else w for n, w in step.state.unconfirmed.items()}
    step.set(unconfirmed={number: waiting for number, waiting in left.items() if waiting})
    step.commands += [e.ReportPublished(number) for number, waiting in left.items() if not waiting]


def subsume(step: Step) -> None:
    """Drop published checkpoints beyond the retained ones.

    Until a checkpoint is published, its metadata is the only proof of what is owed. It also stays until a later one is
    confirmed: until tasks know of a later one, they rely on the files of this one.
    """
    state = step.state
    oldest = oldest_retained(state)
    beyond = [c for c in state.completed if c.checkpoint_id < oldest]
    confirmed = [c.checkpoint_id for c in whole(state) if c.checkpoint_id not in state.unconfirmed]
    known = max(confirmed, default=0)
    held = state.unconfirmed.keys() | state.pinned | state.read.keys()
    for checkpoint in [c for c in beyond if c.checkpoint_id < known and c.checkpoint_id not in held]:
        number = checkpoint.checkpoint_id
        step.set(
            completed=tuple(c for c in step.state.completed if c.checkpoint_id != number),
            discarding={**step.state.discarding, number: checkpoint.physical_files()},
        )
        if number in state.skipped:  # it is not in the registry
            step.set(skipped=step.state.skipped - {number})
        else:
            step.set(leaving={**step.state.leaving, number: checkpoint})
        step.commands.append(e.DiscardMetadata(number))


def read_begun(step: Step, number: int) -> None:
    """A checkpoint that is not there any more cannot be kept: its reader finds out."""
    if any(checkpoint.checkpoint_id == number for checkpoint in step.state.completed):
        step.set(read={**step.state.read, number: step.state.read.get(number, 0) + 1})


def read_ended(step: Step, number: int) -> None:
    left = step.state.read.get(number, 0) - 1
    others = {each: readers for each, readers in step.state.read.items() if each != number}
    step.set(read={**others, number: left} if left > 0 else others)


def _with_sizes(sizes: Mapping[str, int], snapshot: TaskSnapshot) -> Mapping[str, int]:
    """Add the sizes of the files written for this snapshot: as reported, or at least the end of the last segment."""
    written = dict.fromkeys(snapshot.physical_files, 0)
    for handle in (file.handle for file in snapshot.files):
        if handle.file in written:
            written[handle.file] = max(written[handle.file], handle.offset + handle.length)
    told = {name: max(sizes.get(name, 0), size, snapshot.file_sizes.get(name, 0)) for name, size in written.items()}
    return {**sizes, **told}


def _lost(snapshot: TaskSnapshot, files: set[str]) -> ErrorInfo:
    return ErrorInfo(
        code="checkpoint-file-not-retained",
        message=f"task {snapshot.task_id} refers to {', '.join(sorted(files)[:3])}, which no retained checkpoint has",
        hint="the task must upload again what it cannot find in a checkpoint that was confirmed to it",
    )
