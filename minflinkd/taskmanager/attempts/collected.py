"""The rows of collect sinks that this TaskManager can show: of running attempts, and of recently ended ones."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from minflinkd.rpc.messages import Collected
from minflinkd.runtime.errors import MinflinkError
from minflinkd.runtime.ids import AttemptId, VertexId
from minflinkd.taskmanager.attempts.attempt import Attempt
from minflinkd.taskmanager.child.process import SessionProcess
from minflinkd.taskmanager.child.protocol import TellCollected

log = structlog.get_logger(__name__)

_KEPT = 8  # ended attempts
_PATIENCE = 5.0  # seconds for the session child's answer
_LAST_PATIENCE = 1.0  # seconds, when the attempt ends


class CollectedRows:
    def __init__(self, session: Callable[[], SessionProcess]) -> None:
        self._session = session
        self._ended: dict[AttemptId, dict[VertexId, Collected]] = {}  # oldest first

    async def read(
        self, attempt_id: AttemptId, vertex_id: VertexId, *, runs: Callable[[AttemptId], object]
    ) -> Collected:
        """Return the rows of a collect sink. `runs` raises if the attempt does not run. Raises MinflinkError."""
        kept = self._ended.get(attempt_id)
        if kept is not None:
            return kept.get(vertex_id, Collected())
        runs(attempt_id)
        return await self._session().ask(TellCollected(attempt_id=attempt_id, vertex_id=vertex_id), _PATIENCE)

    async def keep(self, attempt: Attempt) -> None:
        """Keep the rows of an attempt before it is stopped: a bounded job may end before anybody has looked."""
        attempt_id = attempt.deployment.attempt_id
        found: dict[VertexId, Collected] = {}
        for vertex in attempt.deployment.task.sinks:
            if vertex.sink is not None and vertex.sink.format == "collect":
                ask = TellCollected(attempt_id=attempt_id, vertex_id=vertex.id)
                try:
                    found[vertex.id] = await self._session().ask(ask, _LAST_PATIENCE)
                except MinflinkError as error:
                    log.debug("collected rows are lost", attempt=attempt_id, error=str(error))
        if found:
            self._ended[attempt_id] = found
            while len(self._ended) > _KEPT:
                del self._ended[next(iter(self._ended))]
