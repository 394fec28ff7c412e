"""What becomes of the requests of the parties here, and what waits in their mailboxes."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

WINDOW: Final = 60.0  # seconds: what is "lately"
_PART: Final = 5.0  # seconds; the window moves by so much
BUCKETS: Final = (0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0)  # seconds


class Pending:
    """What has begun and not ended."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._since: dict[int, tuple[str, float]] = {}  # the oldest first
        self._number = 0

    def __len__(self) -> int:
        return len(self._since)

    @contextmanager
    def during(self, message: str) -> Iterator[None]:
        self._number += 1
        number = self._number
        self._since[number] = (message, self._now())
        try:
            yield
        finally:
            del self._since[number]

    def oldest(self) -> tuple[str, float]:
        """Return the message that has been here for the longest time, and for how many seconds; "" if none is here."""
        for message, since in self._since.values():
            return message, max(0.0, self._now() - since)
        return "", 0.0


@dataclass
class Ended:
    """Requests of one type that have ended."""

    outcomes: Counter[str] = field(default_factory=Counter)
    unanswered: int = 0
    seconds: float = 0.0
    slowest: float = 0.0

    @property
    def count(self) -> int:
        return self.outcomes.total()

    def add(self, outcome: str, seconds: float, *, answered: bool) -> None:
        self.outcomes[outcome] += 1
        self.unanswered += not answered
        self.seconds += seconds
        self.slowest = max(self.slowest, seconds)

    def __iadd__(self, other: Ended) -> Ended:
        self.outcomes += other.outcomes
        self.unanswered += other.unanswered
        self.seconds += other.seconds
        self.slowest = max(self.slowest, other.slowest)
        return self


class Slice(NamedTuple):
    """All requests between two samples."""

    per_second: float
    unanswered_per_second: float
    slowest: float | None  # seconds; None: none has ended


class RpcFigures:
    """The network counts here, and the metrics and the page read it.

    `outcomes` counts the requests of parties here by message and outcome. `fenced` counts by message those, from
    anywhere, that parties here refused because of their token (R1). `unreadable` counts by message the incoming notices
    that were dropped because this version cannot read them (A15a). `durations` has, by message, how many requests ended
    within each of BUCKETS, and the rest. `mailboxes` has what each mailbox here has taken and not yet answered.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self.fenced: Counter[str] = Counter()
        self.unreadable: Counter[str] = Counter()
        self.durations: dict[str, list[int]] = defaultdict(lambda: [0] * (len(BUCKETS) + 1))
        self.seconds: dict[str, float] = defaultdict(float)
        self.in_flight: dict[str, Pending] = {}
        self.mailboxes: dict[str, Pending] = {}
        self._parts: deque[tuple[int, dict[str, Ended]]] = deque(maxlen=round(WINDOW / _PART))
        self._sampled_at = now()
        self._since_sample = Ended()

    def asking(self, message: str) -> Pending:
        """Return the requests of this type that are under way."""
        return self.in_flight.setdefault(message, Pending(self._now))

    def ended(self, message: str, outcome: str, seconds: float, *, answered: bool = True) -> None:
        """Count a request. `answered`: a refusal is an answer; otherwise nobody knows whether it was carried out."""
        self.outcomes[message, outcome] += 1
        self.durations[message][bisect_left(BUCKETS, seconds)] += 1
        self.seconds[message] += seconds
        self._since_sample.add(outcome, seconds, answered=answered)
        part = int(self._now() // _PART)
        if not self._parts or self._parts[-1][0] != part:
            self._parts.append((part, defaultdict(Ended)))
        self._parts[-1][1][message].add(outcome, seconds, answered=answered)

    def lately(self) -> Mapping[str, Ended]:
        """Return the requests that ended in the last minute, by message."""
        oldest = int((self._now() - WINDOW) // _PART)
        found: dict[str, Ended] = defaultdict(Ended)
        for part, messages in self._parts:
            if part > oldest:
                for message, ended in messages.items():
                    found[message] += ended
        return found

    def since_last_sample(self) -> Slice:
        """Return what has ended since the last call."""
        ended, self._since_sample = self._since_sample, Ended()
        now = self._now()
        passed, self._sampled_at = max(now - self._sampled_at, 0.001), now
        return Slice(ended.count / passed, ended.unanswered / passed, ended.slowest if ended.count else None)


class RpcCollector(Collector):
    """Parties are labelled by their kind: there may be many JobMasters."""

    def __init__(self, figures: RpcFigures) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        figures = self._figures
        requests = CounterMetricFamily(
            "minflinkd_rpc_requests",
            "Requests between components, by message and outcome.",
            labels=["message", "outcome"],
        )
        for (message, outcome), count in sorted(figures.outcomes.items()):
            requests.add_metric([message, outcome], count)
        durations = HistogramMetricFamily(
            "minflinkd_rpc_duration_seconds", "How long requests between components take.", labels=["message"]
        )
        for message, counts in sorted(figures.durations.items()):
            bounds = (*(str(bound) for bound in BUCKETS), "+Inf")
            durations.add_metric(
                [message], list(zip(bounds, accumulate(counts), strict=True)), sum_value=figures.seconds[message]
            )
        in_flight = GaugeMetricFamily(
            "minflinkd_rpc_in_flight", "Requests between components that have no answer yet.", labels=["message"]
        )
        for message, pending in sorted(figures.in_flight.items()):
            in_flight.add_metric([message], len(pending))
        fenced = _by_message(
            "minflinkd_rpc_fenced",
            "Messages that components of this daemon refused because they lack the current leader's token.",
            figures.fenced,
        )
        unreadable = _by_message(
            "minflinkd_rpc_unreadable",
            "Notices that were dropped because another version sent them in a form that this daemon cannot read.",
            figures.unreadable,
        )
        yield from (requests, durations, in_flight, fenced, unreadable, *self._mailboxes())

    def _mailboxes(self) -> Iterator[Metric]:
        waiting = GaugeMetricFamily(
            "minflinkd_mailbox_waiting",
            "Messages that components of this daemon have taken and not answered yet.",
            labels=["party"],
        )
        oldest = GaugeMetricFamily(
            "minflinkd_mailbox_oldest_seconds", "How long the oldest of them has been there.", labels=["party"]
        )
        parties: dict[str, tuple[int, float]] = {}
        for address, pending in self._figures.mailboxes.items():
            count, longest = parties.get(kind := address.partition("/")[0], (0, 0.0))
            parties[kind] = (count + len(pending), max(longest, pending.oldest()[1]))
        for party, (count, longest) in sorted(parties.items()):
            waiting.add_metric([party], count)
            oldest.add_metric([party], longest)
        yield from (waiting, oldest)


def _by_message(name: str, text: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=["message"])
    for message, count in sorted(counts.items()):
        family.add_metric([message], count)
    return family
