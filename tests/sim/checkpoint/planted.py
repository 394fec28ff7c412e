"""The real code, broken on purpose. The simulation of merged files must find each of these faults."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from msgspec.structs import replace as copy

from minflinkd.checkpoint import layout
from minflinkd.checkpoint import orphan_sweeper as sweeping
from minflinkd.checkpoint.machine import aborting, completing, doomed
from minflinkd.checkpoint.machine import events as e
from minflinkd.checkpoint.machine.pending import Phase
from minflinkd.checkpoint.machine.registry import Registry
from minflinkd.checkpoint.store import CheckpointStore, read_checkpoint
from minflinkd.checkpoint.turn import StorageTurn
from minflinkd.storage.interface import ObjectNotFound, StorageCorrupt
from tests.sim.checkpoint.history import run
from tests.sim.planting import Planted, patched


def _deleted(step: Any, files: frozenset[str]) -> None:
    step.set(deleting=(*step.state.deleting, files))
    step.commands.append(e.DeleteFiles(files))


def _with_pending(kept: Callable[[Mapping[int, Any]], Mapping[int, Any]]) -> Any:
    """Decide what to delete as if these were the checkpoints in flight."""

    def made(decide: Any) -> Any:
        def careless(step: Any) -> None:
            pending = step.state.pending
            step.set(pending=kept(pending))
            decide(step)
            step.set(pending=pending)

        return careless

    return patched(doomed, "delete", made)


def _pending_checkpoints_take_nothing_for_granted() -> Any:
    """Pending checkpoints protect only what they refer to after their acknowledgements."""
    return _with_pending(lambda pending: {number + 1_000_000: checkpoint for number, checkpoint in pending.items()})


def _what_is_acknowledged_refers_to_nothing() -> Any:
    return _with_pending(
        lambda pending: {number: replace(checkpoint, snapshots={}) for number, checkpoint in pending.items()}
    )


@contextmanager
def _the_sweep_believes_what_it_has_listed() -> Iterator[None]:
    """The sweep deletes what no listed metadata names, whatever the coordinator knows by then."""

    def made(_: Any) -> Any:
        async def listed(store: CheckpointStore) -> dict[str, tuple[int, int]]:
            names = [store.location.relative(entry.path) async for entry in store.location.list()]
            named = set[str]()
            for name in names:
                with suppress(ObjectNotFound):
                    if layout.parse_metadata_file(name) is not None:
                        named |= (await read_checkpoint(store.location.child(name))).physical_files()
            found = {name for name in names if layout.is_physical_file(name)}
            return {name: layout.parse_physical_file(name) for name in found - named}

        return listed

    everything = patched(sweeping, "orphans", lambda _: lambda _, found: frozenset(found))
    with patched(CheckpointStore, "physical_files", made), everything:
        yield


def _all_files_of_a_complete_checkpoint_go() -> Any:
    def made(complete: Any) -> Any:
        def careless(step: Any, checkpoint: Any) -> None:
            complete(step, checkpoint)
            _deleted(step, checkpoint.written_files())

        return careless

    return patched(completing, "complete", made)


def _a_file_goes_with_the_first_copy_that_is_dropped() -> Any:
    """The decision is too early: another segment of the same file may be needed (F5)."""

    def made(acknowledged: Any) -> Any:
        def careless(step: Any, snapshot: Any) -> None:
            before = step.state.pending.get(snapshot.checkpoint_id)
            acknowledged(step, snapshot)
            after = step.state.pending.get(snapshot.checkpoint_id)
            if before is None or after is None:
                return
            told = {**before.snapshots, snapshot.task_id: snapshot}
            kept = {file.handle for one in after.snapshots.values() for file in one.files}
            dropped = {file.handle.file for one in told.values() for file in one.files if file.handle not in kept}
            if gone := after.written_files() & dropped:
                _deleted(step, gone)

        return careless

    return patched(completing, "acknowledged", made)


def _files_go_before_the_metadata_that_names_them() -> Any:
    def made(subsume: Any) -> Any:
        def careless(step: Any) -> None:
            before = step.state.discarding.keys()
            subsume(step)
            for number in step.state.discarding.keys() - before:
                files = step.state.discarding[number] - frozenset().union(
                    *(checkpoint.physical_files() for checkpoint in step.state.completed),
                    *(checkpoint.referenced_files() for checkpoint in step.state.pending.values()),
                )
                _deleted(step, files)

        return careless

    return patched(completing, "subsume", made)


def _a_checkpoint_goes_before_the_tasks_know_a_later_one() -> Any:
    def made(subsume: Any) -> Any:
        def careless(step: Any) -> None:
            unconfirmed = step.state.unconfirmed
            step.set(unconfirmed={})
            subsume(step)
            kept = {checkpoint.checkpoint_id for checkpoint in step.state.completed}
            step.set(unconfirmed={number: waiting for number, waiting in unconfirmed.items() if number in kept})

        return careless

    return patched(completing, "subsume", made)


def _an_aborted_checkpoint_takes_with_it_what_it_reused() -> Any:
    def made(abort: Any) -> Any:
        def careless(step: Any, checkpoint: Any, *rest: Any) -> None:
            abort(step, checkpoint, *rest)
            if files := checkpoint.referenced_files():
                _deleted(step, files)

        return careless

    return patched(aborting, "abort", made)


def _files_of_a_failed_write_do_not_wait_for_its_metadata() -> Any:
    """The write may have succeeded all the same."""

    def made(abort: Any) -> Any:
        def careless(step: Any, checkpoint: Any, *rest: Any) -> None:
            abort(step, checkpoint, *rest)
            if checkpoint.phase is Phase.FINALIZING and (files := checkpoint.written_files()):
                _deleted(step, files)

        return careless

    return patched(aborting, "abort", made)


def _the_sweep_takes_what_tasks_are_writing() -> Any:
    def made(orphans: Any) -> Any:
        return lambda state, found: orphans(replace(state, pending={}), found)

    return patched(sweeping, "orphans", made)


def _a_segment_of_two_checkpoints_is_counted_once() -> Any:
    def made(without: Any) -> Any:
        def careless(registry: Registry, checkpoint: Any) -> Registry:
            return without(replace(registry, live=dict.fromkeys(registry.live, 1)), _each_once(checkpoint))

        return careless

    return patched(Registry, "without", made)


def _each_once(checkpoint: Any) -> Any:
    tasks = []
    for task in checkpoint.tasks:
        files = {file.handle: file for file in task.files}
        tasks.append(copy(task, files=tuple(files.values())))
    return copy(checkpoint, tasks=tuple(tasks))


def _a_new_coordinator_does_not_wait_for_the_last_one() -> Any:
    return patched(StorageTurn, "wait", lambda _: lambda _: asyncio.sleep(0))


def _what_cannot_be_deleted_is_forgotten() -> Any:
    return patched(sweeping, "orphans", lambda _: lambda _state, _found: frozenset())


def _the_copies_that_tasks_name_are_not_found() -> Any:
    return patched(Registry, "located", lambda _: lambda _, snapshot, _available: snapshot)


FAULTS: Mapping[str, Planted] = {
    "checkpoints in flight take nothing for granted": _pending_checkpoints_take_nothing_for_granted,
    "what is acknowledged refers to nothing": _what_is_acknowledged_refers_to_nothing,
    "the sweep believes what it has listed": _the_sweep_believes_what_it_has_listed,
    "all files of a complete checkpoint go": _all_files_of_a_complete_checkpoint_go,
    "a file goes with the first copy that is dropped": _a_file_goes_with_the_first_copy_that_is_dropped,
    "files go before the metadata that names them": _files_go_before_the_metadata_that_names_them,
    "a checkpoint goes before the tasks know a later one": _a_checkpoint_goes_before_the_tasks_know_a_later_one,
    "an aborted checkpoint takes with it what it reused": _an_aborted_checkpoint_takes_with_it_what_it_reused,
    "files of a failed write do not wait for its metadata": _files_of_a_failed_write_do_not_wait_for_its_metadata,
    "the sweep takes what tasks are writing": _the_sweep_takes_what_tasks_are_writing,
    "a segment of two checkpoints is counted once": _a_segment_of_two_checkpoints_is_counted_once,
    "a new coordinator does not wait for the last one": _a_new_coordinator_does_not_wait_for_the_last_one,
    "what cannot be deleted is forgotten": _what_cannot_be_deleted_is_forgotten,
    "the copies that tasks name are not found": _the_copies_that_tasks_name_are_not_found,
}


async def find(fault: str, *, within: int) -> str | None:
    """Return what the first seed that finds the fault reports. Virtual time is required."""
    for seed in range(within):
        with FAULTS[fault]():
            try:
                await run(seed)
            except (AssertionError, StorageCorrupt) as error:
                return f"seed {seed}: {error}"
    return None
