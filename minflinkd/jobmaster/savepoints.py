"""Savepoints of one job, and its end with one (C24)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from minflinkd.checkpoint.causes import CheckpointKind
from minflinkd.checkpoint.driver import CheckpointCoordinator
from minflinkd.checkpoint.metadata import CompletedCheckpoint
from minflinkd.checkpoint.savepoints import SavepointNotWritten, write_savepoint
from minflinkd.runtime.errors import Consequence, MinflinkError
from minflinkd.storage.location import Location

TRIES = 3  # of a copy that ends a drained job: there is no second final checkpoint


class StopFailed(MinflinkError):
    """The job was not stopped, and goes on from its last checkpoint. A savepoint that it names can be used."""

    code = "stop-failed"
    consequence = Consequence.RETRYABLE


@dataclass
class Drain:
    """A job that runs to its end; `savepoint` is to be made of its final checkpoint."""

    directory: Location
    savepoint: asyncio.Future[str] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def failed(self, error: MinflinkError) -> None:
        if not self.savepoint.done():
            self.savepoint.set_exception(error)
            self.savepoint.exception()  # seen, also where nobody waits any more


@dataclass(frozen=True)
class Savepoints:
    """`root`: of the job's checkpoints."""

    coordinator: CheckpointCoordinator
    root: Location

    async def take(self, directory: Location, *, stop: bool = False) -> str:
        """Its URI. With `stop` the tasks stand still behind the cut until they end.

        Raises CheckpointRefused and CheckpointFailed (then they go on), SavepointNotWritten.
        """
        checkpoint = await self.coordinator.trigger(CheckpointKind.SAVEPOINT, forced=True, stop=stop)
        try:
            return await self._write(checkpoint, directory)
        finally:
            self.coordinator.unpin(checkpoint.checkpoint_id)

    async def of_final(self, directory: Location) -> str:
        """Of the final checkpoint, which is the latest, and published. Raises SavepointNotWritten."""
        checkpoint = self.coordinator.latest()
        assert checkpoint is not None
        for trial in range(1, TRIES + 1):
            try:
                return await self._write(checkpoint, directory)
            except SavepointNotWritten:
                if trial == TRIES:
                    raise
        raise AssertionError("unreachable")

    async def _write(self, checkpoint: CompletedCheckpoint, directory: Location) -> str:
        try:
            await self.coordinator.published(checkpoint.checkpoint_id)
            return (await write_savepoint(self.root, checkpoint, directory)).uri
        except MinflinkError as error:
            raise SavepointNotWritten(
                f"checkpoint {checkpoint.checkpoint_id} is complete, and no savepoint could be made of it: {error}",
                hint=error.hint,
            ) from error
