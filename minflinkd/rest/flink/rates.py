"""How much of the time a task was busy, and backpressured, lately: from its totals at each look at it.

Flink's metrics are rates, and tasks report totals. As in Flink, they are measured while somebody looks.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from minflinkd.rpc.jobs import TaskDetails
from minflinkd.runtime.ids import AttemptId

WINDOW = 60.0  # seconds that a rate is about, at most
LEAST = 5.0  # seconds; a rate over less time is noise
ATTEMPTS = 10_000  # that are remembered
EACH = 32  # looks at one attempt


@dataclass
class _Seen:
    looks: deque[tuple[float, float, float]] = field(default_factory=lambda: deque(maxlen=EACH))


class Rates:
    """`now` is in seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._seen: OrderedDict[AttemptId, _Seen] = OrderedDict()

    def of(self, task: TaskDetails, now: float, epoch_ms: int) -> Mapping[str, float]:
        """Return milliseconds per second that are `busy` and `backpressured`; nothing for a task without an attempt.

        The first look, and looks soon after it, tell the rates since the attempt began.
        """
        if task.attempt_id is None or task.start_ms < 0 or task.end_ms >= 0:
            return {}
        seen = self._seen.setdefault(task.attempt_id, _Seen())
        self._seen.move_to_end(task.attempt_id)
        while len(self._seen) > ATTEMPTS:
            self._seen.popitem(last=False)
        metrics = task.metrics
        while seen.looks and now - seen.looks[0][0] > WINDOW:
            seen.looks.popleft()
        if seen.looks and now - seen.looks[0][0] >= LEAST:
            at, busy, held = seen.looks[0]
            seconds = now - at
        else:
            busy = held = 0.0
            seconds = max((epoch_ms - task.start_ms) / 1000, 0.001)
        if not seen.looks or now - seen.looks[-1][0] >= WINDOW / EACH:
            seen.looks.append((now, metrics.busy_ms, metrics.backpressured_ms))
        return {
            "busy": _bounded((metrics.busy_ms - busy) / seconds),
            "backpressured": _bounded((metrics.backpressured_ms - held) / seconds),
        }


def _bounded(rate: float) -> float:
    """Return at most a whole second per second: a long micro-batch is reported when it ends."""
    return min(1000.0, max(0.0, rate))
