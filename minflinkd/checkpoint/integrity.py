"""What is known of damage to a job's checkpoints, and the looks at the storage that find it out (C28, C29)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import structlog

from minflinkd.checkpoint.damage import Damage, DamageRecord, listed
from minflinkd.checkpoint.machine.state import State, whole
from minflinkd.checkpoint.metadata import CompletedCheckpoint
from minflinkd.checkpoint.store import CheckpointStore, Recovered, SetAside
from minflinkd.checkpoint.verification import Pace, find_damage
from minflinkd.rpc.snapshot import StateHandle
from minflinkd.runtime.clock import Clock

log = structlog.get_logger(__name__)


class Integrity:
    """Belongs to one coordinator. `state` returns the coordinator's current state."""

    def __init__(self, *, store: CheckpointStore, state: Callable[[], State], clock: Clock, name: str) -> None:
        self._store = store
        self._state = state
        self._clock = clock
        self._name = name
        self._unreadable: dict[int, SetAside] = {}  # metadata that could not be read, and was not given up
        self._set_aside = frozenset[int]()  # metadata that could not be read, given up or not
        self._records: dict[int, DamageRecord] = {}
        self._given_up: frozenset[int] = frozenset()  # for earlier ones; they have a record in the storage
        self.verified_ms = -1  # when all retained checkpoints were last read; -1: not yet

    def begin(self, recovered: Recovered) -> None:
        found = {one.checkpoint_id: one for one in recovered.set_aside}
        self._set_aside = frozenset(found)
        self._unreadable = {number: one for number, one in found.items() if number not in recovered.damaged}
        self._records = {number: one.record() for number, one in found.items()} | dict(recovered.damaged)
        self._given_up = frozenset(recovered.damaged)

    # --- what is known -----------------------------------------------------------------------------------------------

    def restorable(self) -> tuple[CompletedCheckpoint, ...]:
        """Return the checkpoints that the job may be restored from, as far as is known, newest first."""
        return whole(self._state())[::-1]

    def later_than(self, checkpoint_id: int) -> tuple[CompletedCheckpoint, ...]:
        """Return all checkpoints after this one that can be read, damaged or not, in the order of ids."""
        return tuple(c for c in self._state().completed if c.checkpoint_id > checkpoint_id)

    def unreadable(self, after: int | None = None) -> tuple[SetAside, ...]:
        """Return those `after` a checkpoint with metadata that could not be read, newest first.

        None: after all that are restorable.
        """
        last = self._newest() if after is None else after
        return tuple(self._unreadable[number] for number in sorted(self._unreadable, reverse=True) if number > last)

    def given_up(self) -> dict[int, tuple[Damage, ...]]:
        """Return the damage of the checkpoints that are newer than all that are restorable, and were given up."""
        newest = self._newest()
        return {number: self._records[number].damage for number in self._given_up if number > newest}

    def keeps(self, checkpoint_id: int) -> bool:
        """Whether the checkpoint is complete and not to be deleted, so that all its files must be there."""
        return any(checkpoint.checkpoint_id == checkpoint_id for checkpoint in self._state().completed)

    def damaged(self) -> tuple[DamageRecord, ...]:
        """Return the damaged ones of the retained checkpoints, newest first, for display."""
        kept = {checkpoint.checkpoint_id for checkpoint in self._state().completed} | self._set_aside
        return tuple(self._records[number] for number in sorted(self._records, reverse=True) if number in kept)

    # --- looks at the storage ----------------------------------------------------------------------------------------

    async def find_damage(
        self, checkpoint: CompletedCheckpoint, known_whole: set[StateHandle] | None = None
    ) -> tuple[Damage, ...]:
        """Read a checkpoint's files and return the damaged ones. Raises StorageError if that cannot be found out."""
        return await find_damage(self._store.location, checkpoint, whole=known_whole)

    async def examine(
        self, checkpoint: CompletedCheckpoint, known_whole: set[StateHandle], pace: Pace
    ) -> tuple[Damage, ...]:
        """Read a checkpoint with its metadata, at this pace. Raises StorageError, MetadataTooNew, WrongJob."""
        lost = await self._store.damage_of_metadata(checkpoint.checkpoint_id)
        files = await find_damage(self._store.location, checkpoint, pace=pace, whole=known_whole)
        return files if lost is None else (lost, *files)

    # --- what follows ------------------------------------------------------------------------------------------------

    def found(self, checkpoint_id: int, damage: tuple[Damage, ...]) -> None:
        """Remember damage, to be shown. The checkpoint may still be restored: tasks may have whole copies of it."""
        kept = self._set_aside | self._given_up
        self._records = {n: record for n, record in self._records.items() if self.keeps(n) or n in kept}
        now = self._clock.epoch_ms()
        self._records[checkpoint_id] = DamageRecord(checkpoint_id=checkpoint_id, found_ms=now, damage=damage)

    def verified(self, damaged: set[int]) -> None:
        """All retained checkpoints were read just now. What is not among the `damaged` is whole, perhaps again."""
        self.verified_ms = self._clock.epoch_ms()
        whole_again = {c.checkpoint_id for c in self.restorable()} - damaged
        self._records = {number: record for number, record in self._records.items() if number not in whole_again}

    async def give_up(self, damaged: Mapping[int, tuple[Damage, ...]], to: int) -> None:
        """Record that the job goes on from the earlier checkpoint `to`.

        This is in the storage before anything follows from it: whatever happens later, nobody restores these
        checkpoints any more. Raises StorageError.
        """
        for number, damage in sorted(damaged.items()):
            now = self._clock.epoch_ms()
            record = DamageRecord(checkpoint_id=number, found_ms=now, damage=damage, restored=to)
            await self._store.mark_damaged(record)
            self._records[number] = record
            self._given_up |= {number}
            self._unreadable.pop(number, None)
            log.error(
                "a damaged checkpoint is given up",
                component=self._name,
                checkpoint=number,
                damage=listed(damage),
                goes_on_from=to,
            )

    def _newest(self) -> int:
        return max((checkpoint.checkpoint_id for checkpoint in whole(self._state())), default=0)
