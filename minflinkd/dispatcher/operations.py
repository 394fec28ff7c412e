"""What was triggered over HTTP and takes its time: under way, done, or failed, by the id that its trigger was given."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import structlog

from minflinkd.rpc.jobs import OperationStatus
from minflinkd.runtime.errors import MinflinkError, NotFound, error_info
from minflinkd.runtime.supervision import TaskOwner

log = structlog.get_logger(__name__)

KEPT = 256  # operations; of those that have ended the oldest go first

Key = tuple[str, str]  # of what (a job's id, or a kind of operation), trigger id


class Operations:
    """Each ends with the daemon at the latest: what became of it then is not known."""

    def __init__(self, tasks: TaskOwner) -> None:
        self._tasks = tasks
        self._known: dict[Key, OperationStatus] = {}

    def begin(self, key: Key, work: Callable[[], Awaitable[str]]) -> None:
        """`work` returns where its result lies. A repeated trigger begins nothing."""
        if key in self._known:
            return
        self._known[key] = OperationStatus(done=False)
        self._forget_oldest()
        self._tasks.job(f"operation {key[1]}", self._run(key, work))

    def status(self, key: Key) -> OperationStatus:
        """Raises NotFound."""
        found = self._known.get(key)
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
