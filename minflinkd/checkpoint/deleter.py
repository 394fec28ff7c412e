"""Carries out what the queue of `deletions` decides, for one coordinator."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import structlog

from minflinkd.checkpoint import deletion_queue
from minflinkd.runtime.clock import Clock
from minflinkd.runtime.machine import Machine
from minflinkd.runtime.supervision import TaskOwner
from minflinkd.runtime.timer import Timer

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
        self._clock = clock
        self._tasks = tasks
        self._machine = Machine(
            deletion_queue.Queue(limits=limits or deletion_queue.Limits()),
            deletion_queue.step,
            deletion_queue.check_invariants,
            name=f"deletions of {name}",
        )
        self._numbers = itertools.count(1)
        self._ends: dict[int, Callable[[], None]] = {}
        self._stepped_at = 0.0  # monotonic seconds
        self._timer = Timer(
            clock,
            due=lambda: deletion_queue.next_wakeup(self._machine.state, self._stepped_at),
            tick=lambda now: self._feed(deletion_queue.Tick(), now=now),
        )
        self.files_deleted = 0

    def want(self, names: Iterable[str], *, then: Callable[[], None], insists: bool = False) -> None:
        """Delete objects in due course. `then` is called when nothing more is done about them.

        `insists`: for metadata. It is deleted at once, and retried until that succeeds.
        """
        number, objects = next(self._numbers), tuple(sorted(names))
        self._ends[number] = then
        self._feed(deletion_queue.Wanted(number, objects, insists))

    @contextmanager
    def held_back(self) -> Iterator[None]:
        """Hold back the deletion of files while a checkpoint writes its metadata."""
        self._feed(deletion_queue.WriteBegun())
        try:
            yield
        finally:
            self._feed(deletion_queue.WriteEnded())

    async def run(self) -> None:
        await self._timer.run()

    def _feed(self, event: deletion_queue.Event, *, now: float | None = None) -> None:
        if self._tasks.closed:
            return  # the next coordinator finds what is left
        self._stepped_at = self._clock.monotonic() if now is None else now
        for command in self._machine.feed(event, self._stepped_at):
            match command:
                case deletion_queue.Delete(request, names, insists):
                    self._tasks.job(f"deletion request {request}", self._request(request, names, insists))
                case deletion_queue.Ended(deletion, complete):
                    if not complete:
                        log.warning("given up", component=self._name, what="deletion of unreferenced files")
                    self._ends.pop(deletion)()
        self._timer.changed()

    async def _request(self, request: int, names: Sequence[str], insists: bool) -> None:
        try:
            await (self._delete_metadata if insists else self._delete_files)(names)
        except Exception as error:
            log.info("deletions fail", component=self._name, objects=len(names), error=str(error))
            self._feed(deletion_queue.Failed(request))
        else:
            self.files_deleted += 0 if insists else len(names)
            self._feed(deletion_queue.Done(request))
