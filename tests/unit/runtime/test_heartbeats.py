"""Who was last heard of, and when."""

from __future__ import annotations

from minflinkd.runtime.heartbeats import Heartbeats


def silent(beats: Heartbeats[str], now: float) -> list[tuple[str, float]]:
    return list(beats.take_silent(now))


def test_one_that_is_not_heard_of_for_the_timeout_is_silent_once() -> None:
    """R10."""
    beats = Heartbeats[str](5.0)
    beats.heard("a", 0.0)
    beats.heard("b", 3.0)
    assert silent(beats, 4.9) == []
    assert silent(beats, 5.0) == [("a", 5.0)]
    assert silent(beats, 7.9) == []
    assert "a" not in beats
    assert beats.next_due() == 8.0


def test_a_suspected_one_is_silent_sooner_unless_it_is_heard_of() -> None:
    """A party is suspected when its connection has failed (R10)."""
    beats = Heartbeats[str](5.0)
    for name in ("a", "b"):
        beats.heard(name, 0.0)
        beats.suspect(name, 2.0)
    beats.suspect("unknown", 1.0)
    beats.heard("b", 1.0)
    assert silent(beats, 2.0) == [("a", 2.0)]
    assert silent(beats, 5.9) == []


def test_whoever_was_held_up_itself_gives_the_others_as_much_longer() -> None:
    """An event loop that was blocked for ten seconds has heard nobody, and nobody is lost because of that (A4, R10)."""
    beats = Heartbeats[str](5.0)
    beats.heard("a", 0.0)
    beats.postpone(10.0)
    assert silent(beats, 14.9) == []
    assert silent(beats, 15.0) == [("a", 15.0)]
