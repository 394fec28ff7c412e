"""How the query of an attempt ends: on purpose and perhaps to run again, by a stop, or by a failure.

A query ends on purpose in two cases. After the cut of a stop checkpoint no micro-batch may begin, so the query need not
wait for the stop. And a restored query without new input ends for an empty micro-batch, which only a new query runs.
In both cases it is opened again: if the checkpoint is aborted, or at once.

Several threads take part: the query's own, the one that watches it, the one that runs it to the end of its input, and
those of the supervisor's requests. Each asks for a move, and learns whether it was the one that made it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import Enum, auto

from minflinkd.runtime.machine import move, table


class Phase(Enum):
    RUNNING = auto()  # the query starts or runs
    CLOSING = auto()  # the query ends on purpose after the micro-batch in progress, if there is one
    CLOSED = auto()  # the query has ended on purpose, and may be opened again
    STOPPING = auto()  # the supervisor has asked for the stop: however the query ends, it is no failure
    FAILED = auto()  # the failure is reported


LEGAL = table(
    {
        Phase.RUNNING: {Phase.CLOSING, Phase.STOPPING, Phase.FAILED},
        Phase.CLOSING: {Phase.RUNNING, Phase.CLOSED, Phase.STOPPING, Phase.FAILED},
        Phase.CLOSED: {Phase.RUNNING, Phase.STOPPING, Phase.FAILED},
        Phase.STOPPING: set(),
        Phase.FAILED: {Phase.STOPPING},
    }
)
_ON_PURPOSE = (Phase.CLOSING, Phase.CLOSED)


class Ending:
    """The phase of one attempt's query. Thread-safe.

    `over` is set once a stop was announced or a failure reported. Whoever waits for something in the attempt gives up
    then, and no move is made any more except to STOPPING.
    """

    def __init__(self) -> None:
        self.over = threading.Event()
        self._changed = threading.Condition()
        self._phase = Phase.RUNNING

    @property
    def phase(self) -> Phase:
        return self._phase

    def close(self) -> bool:
        """The query is to end on purpose. Returns whether this call has decided it."""
        return self._move({Phase.RUNNING}, Phase.CLOSING)

    def keep_open(self) -> bool:
        """Take `close` back: the query goes on as if nothing had been asked."""
        return self._move({Phase.CLOSING}, Phase.RUNNING)

    def closed(self) -> bool:
        """The query has ended. Returns whether it did so on purpose."""
        return self._move({Phase.CLOSING}, Phase.CLOSED)

    def reopen(self, start: Callable[[], None]) -> bool:
        """Run `start`, and be RUNNING again. Returns False, and does not run it, if a stop or a failure came first.

        A stop that comes meanwhile waits, so that it finds the new query. If `start` raises, the phase stays CLOSED.
        """
        with self._changed:
            if self._phase is not Phase.CLOSED or self.over.is_set():
                return False
            start()
            self._to(Phase.RUNNING)
            return True

    def announce_stop(self) -> None:
        """Say that `stop` follows. Does not block, so it may be called on an event loop."""
        self.over.set()

    def stop(self) -> None:
        with self._changed:
            self.over.set()
            if self._phase is not Phase.STOPPING:
                self._to(Phase.STOPPING)

    def fail(self) -> bool:
        """Return whether the caller should report its failure: not after a stop, and only the first."""
        with self._changed:
            if not self._move({Phase.RUNNING, Phase.CLOSING, Phase.CLOSED}, Phase.FAILED):
                return False
            self.over.set()
            return True

    def await_reopened(self) -> bool:
        """Wait while the query ends or has ended on purpose. Returns whether it runs then."""
        with self._changed:
            self._changed.wait_for(lambda: self._phase not in _ON_PURPOSE)
            return self._phase is Phase.RUNNING

    def _move(self, sources: set[Phase], target: Phase) -> bool:
        with self._changed:
            if self._phase not in sources or self.over.is_set():
                return False
            self._to(target)
            return True

    def _to(self, target: Phase) -> None:
        self._phase = move(LEGAL, self._phase, target, what="the query of an attempt")
        self._changed.notify_all()
