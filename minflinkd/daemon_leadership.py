"""One leadership of an elected daemon: the `Daemon` that runs for it, and the records that it may write."""

from __future__ import annotations

import asyncio

from minflinkd.daemon import Daemon
from minflinkd.ha.zookeeper.cluster import LeaderRecords


class Leadership:
    """One leadership, from the election until the last component is closed."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.over = asyncio.Event()
        self.records: LeaderRecords | None = None
        self._daemon: Daemon | None = None
        self._starting: asyncio.Task[None] | None = None

    async def start(self, daemon: Daemon) -> bool:
        """Start the daemon. Return False as soon as the leadership is over. Raises what the daemon raises."""
        self._daemon = daemon
        self._starting = starting = asyncio.create_task(daemon.start(), name=f"start of leadership {self.epoch}")
        over = asyncio.create_task(self.over.wait(), name=f"end of leadership {self.epoch}")
        try:
            await asyncio.wait({starting, over}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            over.cancel()
        if self.over.is_set():
            return False
        starting.result()
        return True

    async def aclose(self, *, hand_over: bool) -> None:
        """Close everything. A `Daemon` that has not finished its start always hands over. Idempotent."""
        daemon, starting = self._daemon, self._starting
        if daemon is not None and starting is not None:
            if hand_over or not starting.done():
                daemon.hand_over()
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)  # the caller of `start` gets the error
            await daemon.aclose()
        if self.records is not None:
            await self.records.aclose()
