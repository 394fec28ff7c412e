"""Requests are counted by what became of them, and what has no answer yet is seen (E17, E30)."""

from __future__ import annotations

from contextlib import ExitStack

from minflinkd.metrics.registry import Metrics
from minflinkd.metrics.rpc import Pending, RpcFigures


class Time:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def test_lately_is_the_last_minute() -> None:
    """A failure of an hour ago says nothing of how RPC is now."""
    now = Time()
    figures = RpcFigures(now)
    figures.ended("Ping", "rpc-timeout", 10.0, answered=False)
    now.seconds += 50
    figures.ended("Ping", "ok", 0.1)
    found = figures.lately()["Ping"]
    assert (found.count, found.unanswered, found.slowest) == (2, 1, 10.0)
    now.seconds += 15
    found = figures.lately()["Ping"]
    assert (found.count, found.unanswered, found.slowest, found.seconds) == (1, 0, 0.1, 0.1)
    now.seconds += 60
    assert figures.lately() == {}
    assert figures.outcomes == {("Ping", "rpc-timeout"): 1, ("Ping", "ok"): 1}


def test_a_sample_has_what_ended_since_the_one_before() -> None:
    now = Time()
    figures = RpcFigures(now)
    now.seconds += 5
    figures.ended("Ping", "ok", 0.5)
    figures.ended("GetJob", "unreachable", 0.1, answered=False)
    assert figures.since_last_sample() == (0.4, 0.2, 0.5)
    now.seconds += 5
    assert figures.since_last_sample() == (0.0, 0.0, None)


def test_the_oldest_of_what_waits_is_named() -> None:
    """Whatever ends in between: the one that has been there for the longest time is what an operator looks for."""
    now = Time()
    pending = Pending(now)
    assert pending.oldest() == ("", 0.0)
    with pending.during("Submit"):
        now.seconds += 2
        with pending.during("GetJob"):
            now.seconds += 1
            assert (len(pending), pending.oldest()) == (2, ("Submit", 3.0))
        assert (len(pending), pending.oldest()) == (1, ("Submit", 3.0))
    assert len(pending) == 0


def test_the_labels_of_mailboxes_are_kinds_of_parties() -> None:
    """A thousand JobMasters are one series (E30)."""
    now = Time()
    figures = RpcFigures(now)
    with ExitStack() as stack:
        for number in range(3):
            pending = figures.mailboxes[f"jobmaster/{number}"] = Pending(now)
            stack.enter_context(pending.during("OfferSlots"))
            now.seconds += 1
        registry = Metrics(version="1", rpc=figures).registry
        assert registry.get_sample_value("minflinkd_mailbox_waiting", {"party": "jobmaster"}) == 3
        assert registry.get_sample_value("minflinkd_mailbox_oldest_seconds", {"party": "jobmaster"}) == 3
