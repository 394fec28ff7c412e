"""Whether a query may begin its next batch: there must be room for it, and no stop checkpoint that holds it back."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

import structlog

from minflinkd.taskmanager.exchange.channels import TaskChannels
from minflinkd.taskmanager.session.exchange.backpressure import Backpressure
from minflinkd.taskmanager.session.query.disk_space import DiskSpace
from minflinkd.taskmanager.session.spark.failures import QueryEnded

log = structlog.get_logger(__name__)

_LOOK = 1.0  # seconds between two checks of the disks


@dataclass
class Admission:
    """Of one query. `space`: a batch waits while a disk that it writes to is nearly full (A14).

    `max_backlog`: bytes that readers may be behind in the query's exchange before a batch waits (J10); None: nobody
    reads from it.
    """

    channels: TaskChannels
    space: DiskSpace
    max_backlog: int | None
    backpressure: Backpressure
    stopping: threading.Event

    def wait(self, ended: threading.Event | None = None) -> None:
        """Wait until a batch may begin, and note that it does. Raises QueryEnded, also once `ended` is set."""
        pause = 0.005
        full, look_at = "", 0.0
        while not self.stopping.is_set() and (ended is None or not ended.is_set()):
            if time.monotonic() >= look_at:
                before, full, look_at = full, self.space.lacking(), time.monotonic() + _LOOK
                if full and not before:
                    log.warning("a task waits: a disk is nearly full", space=full)
                    self.channels.drop_consumed()
            if full or (self.max_backlog is not None and self.channels.backlog() > self.max_backlog):
                self.backpressure.hold(full)
            else:
                self.backpressure.let_go()
                if self.channels.begin():
                    return
            self.stopping.wait(pause)
            pause = min(pause * 1.5, 0.05)
        raise QueryEnded("the attempt stopped before this batch")
