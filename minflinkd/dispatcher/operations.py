"""Long operations triggered over HTTP: under way, done, or failed, by the id that the trigger was given."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import structlog

from minflinkd.rpc.jobs import OperationStatus
from minflinkd.runtime.errors import MinflinkError, NotFound, error_info
from minflinkd.runtime.supervision import TaskOwner

log = structlog.get_logger(__name__)

KEPT = 256  # operations; when there are more, the oldest ended ones are dropped

Key = tuple[str, str]  # subject (a job's id, or a kind of operation), trigger id


class Operations:
    """The known operations. They end with the daemon. `JobOperations` makes them known to the next daemon."""

    def __init__(self, tasks: TaskOwner) -> None:
        self._tasks = tasks
        self._known: dict[Key, OperationStatus] = {}

    def begin(self, key: Key, work: Callable[[], Awaitable[str]]) -> None:
        """Begin an operation. `work` returns the location of its result. A repeated trigger begins nothing."""
        if key in self._known:
            return
        self._known[key] = OperationStatus(done=False)
        self._forget_oldest()
        self._tasks.job(f"operation {key[1]}", self._run(key, work))

    def get(self, key: Key) -> OperationStatus | None:
        return self._known.get(key)

    def status(self, key: Key) -> OperationStatus:
        """Raises NotFound."""
        found = self.get(key)
        if found is None:
            raise NotFound(f"there is no operation {key[1][:80]!r}", hint="it ended long ago, or under another daemon")
        return found

    async def _run(self, key: Key, work: Callable[[], Awaitable[str]]) -> None:
        try:
            location = await work()
        except MinflinkError as error:
            log.warning("an operation failed", of=key[0], operation=key[1], error=str(error))
            self._known[key] = OperationStatus(done=True, error=error_info(error))
        except BaseException as error:
            self._known[key] = OperationStatus(done=True, error=error_info(error))
            raise
        else:
            self._known[key] = OperationStatus(done=True, location=location)

    def _forget_oldest(self) -> None:
        ended = [key for key, status in self._known.items() if status.done]
        for key in ended[: max(0, len(self._known) - KEPT)]:
            del self._known[key]
