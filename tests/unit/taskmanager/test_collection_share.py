"""For which share of the time a JVM stands still to collect garbage (E17)."""

from __future__ import annotations

from minflinkd.taskmanager.child.garbage import CollectionShare, stopped_ms


def collected(milliseconds: float) -> dict[str, float]:
    return {"heap.used_bytes": 7.0, "gc.G1_Young_Generation.count": 3.0, "gc.G1_Young_Generation.time_ms": milliseconds}


def test_the_share_is_of_the_last_minute() -> None:
    """A pause of an hour ago says nothing of how the JVM is now."""
    share = CollectionShare()
    for second in range(301):
        found = share.add(float(second), collected(min(second, 120) * 500.0))
        if second == 120:
            assert found["gc_share"] == 0.5
        if second == 150:
            assert found["gc_share"] == 0.25
    assert found["gc_share"] == 0.0
    assert found["heap.used_bytes"] == 7.0


def test_nothing_is_said_of_a_few_seconds() -> None:
    """One collection just after the start would be half of the time."""
    share = CollectionShare()
    assert "gc_share" not in share.add(0.0, collected(0))
    assert "gc_share" not in share.add(9.0, collected(5000))
    assert share.add(20.0, collected(5000))["gc_share"] == 0.25


def test_a_jvm_that_was_not_heard_for_long_is_measured_over_that_time() -> None:
    """User code may hold the child's interpreter for minutes."""
    share = CollectionShare()
    share.add(0.0, collected(0))
    assert share.add(300.0, collected(30_000))["gc_share"] == 0.1


def test_a_jvm_that_says_nothing_of_its_collectors_has_no_share() -> None:
    share = CollectionShare()
    assert share.add(0.0, {}) == share.add(60.0, {}) == {}


def test_only_what_stops_the_program_counts() -> None:
    """ZGC and Shenandoah collect beside the program, and count that apart from its pauses."""
    zgc = {
        "gc.ZGC_Major_Cycles.time_ms": 9000.0,
        "gc.ZGC_Major_Pauses.time_ms": 2.0,
        "gc.ZGC_Minor_Pauses.time_ms": 1.0,
    }
    assert stopped_ms(zgc) == 3.0
    assert stopped_ms({"gc.PS_Scavenge.time_ms": 5.0, "gc.PS_MarkSweep.time_ms": 7.0}) == 12.0
    assert stopped_ms({"gc.PS_Scavenge.count": 5.0}) is None
