"""The durable record of the versions of one job. A decision is stepped, checked, written and published, in this order.

So nothing follows from a decision before it is durable, and a decision with a bug (an illegal move, a violated
invariant) is not written at all: the versions stay what they were, on disk and here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

import structlog

from minflinkd.dispatcher import versions as v
from minflinkd.dispatcher.job_results import until_done
from minflinkd.dispatcher.job_store import JobStore
from minflinkd.runtime.clock import Clock
from minflinkd.runtime.component import Crashed
from minflinkd.runtime.errors import Conflict, MinflinkError
from minflinkd.runtime.ids import JobId
from minflinkd.runtime.machine import Machine

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Decision:
    """What one event has changed. It is durable."""

    before: v.Versions
    after: v.Versions
    commands: tuple[v.Command, ...] = ()


class VersionRecord:
    """`publish` is called after each write and before the next decision.

    `fall` is told of a bug, and returns the error that the caller gets.
    """

    def __init__(
        self,
        job_id: JobId,
        versions: v.Versions,
        *,
        store: JobStore,
        clock: Clock,
        publish: Callable[[v.Versions], Awaitable[None]],
        fall: Callable[[Exception], Crashed],
    ) -> None:
        self._job_id = job_id
        self._store = store
        self._clock = clock
        self._publish = publish
        self._fall = fall
        self._machine: Machine[v.Versions, v.Event, v.Command] = Machine(
            versions, v.step, v.check_invariants, name=f"versions of {job_id}"
        )
        self._turn = asyncio.Lock()
        self._written: int | None = None  # number of the last record begun; None: not looked up yet

    @property
    def versions(self) -> v.Versions:
        """Return the versions that were stored last."""
        return self._machine.state

    async def request(self, event: v.Requested) -> Decision:
        """Accept a request. Raises Conflict (H9), StorageError, Crashed: then it was not accepted."""
        async with self._turn:
            return await self._apply(event, self._write)

    async def apply(self, number: int, event: v.Event) -> Decision | None:
        """Apply an event of restart `number`. None, without any change, unless it is under way. Raises Crashed.

        A write that fails is repeated until it succeeds.
        """

        async def insist(state: v.Versions) -> None:
            what = f"hot restart {number} of {self._job_id}"
            await until_done(self._clock, what, partial(self._write, state))

        async with self._turn:
            restart = self.versions.restart
            if restart is None or restart.number != number:
                return None
            decision = await self._apply(event, insist)
        self._tell(decision)
        return decision

    def end(self, *, finished: bool) -> None:
        """The job is cancelled or has ended. That is stored elsewhere, so this is not. Raises Crashed.

        It does not wait for a write that is under way, whose decision still counts after this one. A job that was
        cancelled in such a moment comes here again when it ends.
        """
        self._machine.state, _ = self._decide(v.Ended(finished))

    async def settled(self) -> None:
        """Return when every decision is stored. Until then it is open which version is current."""
        async with self._turn:
            pass

    async def tidy(self) -> None:
        """Delete the records that do not count any more."""
        try:
            if self._written is not None:
                await self._store.drop_versions(self._job_id, self._written)
        except MinflinkError as error:  # the next restart drops them, or the job's end
            log.info("records of versions are left", job=self._job_id, error=str(error))

    async def _apply(self, event: v.Event, write: Callable[[v.Versions], Awaitable[None]]) -> Decision:
        before = self.versions
        state, commands = self._decide(event)
        if v.durable(state) != v.durable(before):
            await write(state)
        if state is not before:
            self._machine.state = state
            try:
                await self._publish(state)
            except Exception as error:  # otherwise nobody would carry out the commands
                raise self._fall(error) from error
        return Decision(before, state, commands)

    def _decide(self, event: v.Event) -> tuple[v.Versions, tuple[v.Command, ...]]:
        try:
            return self._machine.decide(event, self._clock.epoch_ms() / 1000)
        except Conflict:
            raise
        except Exception as error:
            raise self._fall(error) from error

    def _tell(self, decision: Decision) -> None:
        if decision.after is decision.before:
            return
        if (restart := decision.after.restart) is not None:
            log.info("hot restart", job=self._job_id, number=restart.number, phase=restart.phase.value)
        else:
            ended = decision.after.past[-1]
            error = "" if ended.error is None else ended.error.message
            log.info("hot restart ended", job=self._job_id, number=ended.number, state=ended.state.value, error=error)

    async def _write(self, state: v.Versions) -> None:
        """Write under a new number. An earlier write with an unknown outcome no longer counts after that."""
        if self._written is None:
            self._written = await self._store.last_version_number(self._job_id)
        self._written += 1
        await self._store.put_versions(self._job_id, self._written, state)
