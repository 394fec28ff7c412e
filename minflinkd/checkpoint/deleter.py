"""Carries out what the queue of `deletions` decides, for one coordinator."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import structlog

from minflinkd.checkpoint import deletion_queue
from minflinkd.runtime.clock import Clock
from minflinkd.runtime.machine import Machine
from minflinkd.runtime.machine_driver import MachineDriver
from minflinkd.runtime.supervision import TaskOwner

log = structlog.get_logger(__name__)

Delete = Callable[[Sequence[str]], Awaitable[None]]


class Deleting:
    """`files` and `metadata` delete objects by name and may be repeated. The owner of `tasks` runs `run` as a loop."""

    def __init__(
        self,
        *,
        files: Delete,
        metadata: Delete,
        name: str,
        clock: Clock,
        tasks: TaskOwner,
        limits: deletion_queue.Limits | None = None,
    ) -> None:
        self._delete_files = files
        self._delete_metadata = metadata
        self._name = name
        self._tasks = tasks
        self._numbers = itertools.count(1)
        self._ends: dict[int, Callable[[], None]] = {}
        self._driver = MachineDriver(
            Machine(
                deletion_queue.Queue(limits=limits or deletion_queue.Limits()),
                deletion_queue.step,
                deletion_queue.check_invariants,
                name=f"deletions of {name}",
            ),
            clock=clock,
            due=deletion_queue.next_wakeup,
            tick=deletion_queue.Tick(),
            carry_out=self._carry_out,
            ended=lambda: tasks.closed,  # the next coordinator finds what is left, or the cleanup after the job's end
        )
        self._feed = self._driver.feed
        self.files_deleted = 0

    def enqueue(self, names: Iterable[str], *, then: Callable[[], None], must_succeed: bool = False) -> None:
        """Delete objects in due course. `then` is called when they are deleted or given up.

        `must_succeed`: for metadata. It is deleted at once, and retried until that succeeds.
        """
        number, objects = next(self._numbers), tuple(sorted(names))
        self._ends[number] = then
        self._feed(deletion_queue.Wanted(number, objects, must_succeed))

    @contextmanager
    def held_back(self) -> Iterator[None]:
        """Hold back the deletion of files while a checkpoint writes its metadata."""
        self._feed(deletion_queue.WriteBegun())
        try:
            yield
        finally:
            self._feed(deletion_queue.WriteEnded())

    async def run(self) -> None:
        await self._driver.run()

    def _carry_out(self, command: deletion_queue.Command) -> None:
        match command:
            case deletion_queue.Delete(request, names, must_succeed):
                self._tasks.job(f"deletion request {request}", self._request(request, names, must_succeed))
            case deletion_queue.Ended(deletion, complete):
                if not complete:
                    log.warning("given up", component=self._name, what="deletion of unreferenced files")
                self._ends.pop(deletion)()

    async def _request(self, request: int, names: Sequence[str], must_succeed: bool) -> None:
        try:
            await (self._delete_metadata if must_succeed else self._delete_files)(names)
        except Exception as error:
            log.info("deletions fail", component=self._name, objects=len(names), error=str(error))
            self._feed(deletion_queue.Failed(request))
        else:
            self.files_deleted += 0 if must_succeed else len(names)
            self._feed(deletion_queue.Done(request))
