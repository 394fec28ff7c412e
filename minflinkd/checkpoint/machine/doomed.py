"""Physical files that lost their last reference, until they are deleted (F5)."""

from __future__ import annotations

from dataclasses import replace

from minflinkd.checkpoint.machine import events as e
from minflinkd.checkpoint.machine.state import Doomed, retained_files
from minflinkd.checkpoint.machine.step import Step, without
from minflinkd.checkpoint.metadata import CompletedCheckpoint


def doom(
    step: Step, files: frozenset[str], *, referenced: bool = False, checkpoint: CompletedCheckpoint | None = None
) -> None:
    if files:
        doomed = Doomed(files, step.state.last_id, referenced, checkpoint)
        step.set(doomed=(*step.state.doomed, doomed))


def delete(step: Step) -> None:
    """Delete the files that no checkpoint refers to and that none in flight may still rely on.

    Never while a checkpoint is being processed: a step settles only after it has handled its event (F5).
    """
    if not step.state.doomed:
        return
    state = step.state
    oldest = min(state.pending, default=None)
    settled = [d for d in state.doomed if oldest is None or oldest > d.horizon]
    registry = state.registry
    for entry in settled:
        if entry.checkpoint is not None:
            registry = registry.without(entry.checkpoint)
    kept = retained_files(state).union(*state.discarding.values())  # doomed again with their last referrer
    in_flight = frozenset[str]().union(*(c.referenced_files() for c in state.pending.values()))
    waiting, deletable = [], frozenset[str]()
    for entry in state.doomed:
        files = held = entry.files - kept
        if entry in settled:
            files = files - registry.files.keys()
            held = files & in_flight
            entry = replace(entry, checkpoint=None)
        deletable |= files - held
        if held or entry.checkpoint is not None:  # references still to be released
            waiting.append(replace(entry, files=held))
    deletable -= frozenset().union(*(entry.files for entry in waiting))
    step.set(doomed=tuple(waiting), registry=registry)
    if deletable:
        step.set(deleting=(*step.state.deleting, deletable))
        step.commands.append(e.DeleteFiles(deletable))


def metadata_discarded(step: Step, checkpoint_id: int) -> None:
    """The checkpoint's metadata is gone: nothing names its files any more."""
    files = step.state.discarding.get(checkpoint_id, frozenset())
    checkpoint = step.state.leaving.get(checkpoint_id)
    step.set(
        discarding=without(step.state.discarding, checkpoint_id),
        leaving=without(step.state.leaving, checkpoint_id),
    )
    doom(step, files, referenced=True, checkpoint=checkpoint)


def deleted(step: Step, files: frozenset[str]) -> None:
    left = list(step.state.deleting)
    if files in left:
        left.remove(files)
    sizes = {name: size for name, size in step.state.sizes.items() if name not in files}
    step.set(deleting=tuple(left), sizes=sizes)
