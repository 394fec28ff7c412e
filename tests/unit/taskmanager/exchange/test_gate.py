"""The gate, rule by rule: which events let a checkpoint be cut, and which barriers are released."""

from __future__ import annotations

import pytest

from minflinkd.runtime.ids import VertexId
from minflinkd.runtime.machine import InvariantViolated
from minflinkd.taskmanager.exchange.gate import (
    Aborted,
    Advanced,
    Arrived,
    Channel,
    Command,
    Cut,
    Event,
    Gate,
    Release,
    Tick,
    Triggered,
    has_ended,
    next_wakeup,
    step,
)

A, B = VertexId("a"), VertexId("b")


class Told:
    """A gate that receives events at given times."""

    def __init__(self, *channels: VertexId, hold: bool = True, aligned_timeout: float | None = None) -> None:
        self.gate = Gate({name: Channel(0, 0) for name in channels}, hold=hold, aligned_timeout=aligned_timeout)
        self.now = 0.0

    def __call__(self, *events: Event, at: float | None = None) -> list[Command]:
        self.now = self.now if at is None else at
        commands: list[Command] = []
        for event in events:
            self.gate, made = step(self.gate, event, self.now)
            commands += made
        return commands


def data(channel: VertexId, sequence: int, size: int = 10) -> Arrived:
    return Arrived(channel, sequence, size)


def barrier(channel: VertexId, sequence: int, number: int) -> Arrived:
    return Arrived(channel, sequence, 0, number)


def cut(number: int, barriers: dict[VertexId, int], **more: object) -> Cut:
    values = {"unread": {}, "alignment": 0.0, "held": 0, "overtaken": 0} | more
    return Cut(number, barriers, **values)  # type: ignore[arg-type]


def test_without_inputs_a_checkpoint_is_cut_when_it_is_triggered() -> None:
    """Without inputs there are no barriers to wait for (C1)."""
    assert Told()(Triggered(1)) == [cut(1, {}), Release(1)]


def test_nothing_is_cut_before_the_barrier_is_in_all_inputs() -> None:
    """A checkpoint is cut when its barrier has arrived in every input (C2)."""
    gate = Told(A, B)
    assert gate(Triggered(1), barrier(A, 0, 1), data(B, 0), Advanced({A: 0, B: 1})) == []
    assert gate(barrier(B, 1, 1)) == [cut(1, {A: 0, B: 1}), Release(1)]


def test_barriers_may_come_before_the_trigger() -> None:
    """Barriers may come before the trigger; the cut waits for both (C2)."""
    gate = Told(A, B)
    assert gate(barrier(A, 0, 1), barrier(B, 0, 1)) == []
    assert gate(Triggered(1)) == [cut(1, {A: 0, B: 0}), Release(1)]


def test_everything_before_the_barriers_is_processed_first() -> None:
    """The task first processes everything before the barriers (C2)."""
    gate = Told(A)
    assert gate(Triggered(1), data(A, 0), data(A, 1), barrier(A, 2, 1), Advanced({A: 1})) == []
    assert gate(Advanced({A: 2})) == [cut(1, {A: 2}), Release(1)]


def test_only_barriers_between_the_task_and_a_barrier_are_no_obstacle() -> None:
    """Barriers carry no data, so they cost no micro-batch (C2)."""
    gate = Told(A)
    gate(data(A, 0), barrier(A, 1, 1), Triggered(1), Advanced({A: 1}))
    assert gate(barrier(A, 2, 2), Triggered(2)) == [cut(2, {A: 2}), Release(2)]


def test_alignment_is_measured_from_the_first_barrier_with_the_bytes_held_behind_it() -> None:
    """Alignment time counts from the first barrier. Held bytes are those after a barrier that has arrived (C5)."""
    gate = Told(A, B)
    gate(Triggered(1), barrier(A, 0, 1), at=1.0)
    gate(data(A, 1, 70), data(A, 2, 30), at=2.0)
    assert gate(barrier(B, 0, 1), at=3.5) == [cut(1, {A: 0, B: 0}, alignment=2.5, held=100), Release(1)]


def test_at_least_once_cuts_wherever_the_task_stands_beyond_the_barriers() -> None:
    """The cut then contains data of the next epoch (C3)."""
    gate = Told(A, B, hold=False)
    gate(Triggered(1), barrier(A, 0, 1), data(A, 1), data(B, 0), Advanced({A: 2, B: 0}))
    assert gate(barrier(B, 1, 1)) == []
    gate(data(A, 2))
    assert gate(Advanced({A: 2, B: 1})) == [cut(1, {A: 0, B: 1}), Release(1)], "nothing is held"


def test_after_the_timeout_the_unread_entries_become_part_of_the_cut() -> None:
    """The cut then contains the entries before the barriers, once all barriers are written (C5)."""
    gate = Told(A, B, aligned_timeout=1.0)
    gate(Triggered(1), barrier(A, 0, 1), data(A, 1, 5), data(B, 0, 7), data(B, 1, 9), Advanced({A: 0, B: 1}), at=10.0)
    assert gate(Tick(), at=12.0) == [], "the barrier of one input is not there"
    assert gate(barrier(B, 2, 1)) == [
        cut(1, {A: 0, B: 2}, unread={B: 1}, alignment=2.0, held=5, overtaken=9),
        Release(1),
    ]


def test_before_the_timeout_a_checkpoint_aligns() -> None:
    """Before the timeout a checkpoint aligns (C5)."""
    gate = Told(A, aligned_timeout=1.0)
    assert gate(Triggered(1), data(A, 0), barrier(A, 1, 1), at=10.0) == []
    assert next_wakeup(gate.gate) == 11.0
    assert gate(Tick(), at=10.9) == []
    late = Told(A, aligned_timeout=1.0)
    late(Triggered(1), data(A, 0), barrier(A, 1, 1), at=10.0)
    assert late(Tick(), at=11.0) == [cut(1, {A: 1}, unread={A: 0}, alignment=1.0, overtaken=10), Release(1)]
    assert gate(Advanced({A: 1}), at=10.95) == [cut(1, {A: 1}, alignment=pytest.approx(0.95)), Release(1)]


def test_time_alone_wakes_nobody_who_does_not_wait_for_a_barrier() -> None:
    """Time alone causes nothing if no barrier is awaited (C5)."""
    gate = Told(A, aligned_timeout=1.0)
    assert next_wakeup(gate.gate) is None
    gate(Triggered(1))
    assert next_wakeup(gate.gate) is None


def test_at_least_once_never_becomes_unaligned() -> None:
    """At-least-once holds nothing back, so alignment cannot take too long (C3, C5)."""
    gate = Told(A, hold=False, aligned_timeout=1.0)
    assert gate(Triggered(1), data(A, 0), barrier(A, 1, 1), at=1.0) == []
    assert gate(Tick(), at=100.0) == []


def test_an_abort_releases_the_barriers_that_are_there_and_those_to_come() -> None:
    """The release is on disk before a late barrier arrives (C13)."""
    gate = Told(A, B)
    gate(Triggered(1), barrier(A, 0, 1))
    assert gate(Aborted(1)) == [Release(1)]
    assert gate(barrier(B, 0, 1)) == []
    assert has_ended(gate.gate, 1)


def test_an_abort_may_come_before_the_trigger() -> None:
    """C13."""
    gate = Told(A)
    gate(Aborted(1))
    assert gate(Triggered(1), barrier(A, 0, 1)) == []
    assert has_ended(gate.gate, 1)


def test_a_repeated_abort_or_trigger_changes_nothing() -> None:
    """C21."""
    gate = Told(A)
    gate(Triggered(1), Aborted(1), Aborted(1), Triggered(1), barrier(A, 0, 1))
    assert gate(Tick()) == []
    gate(Triggered(2), Triggered(2))
    assert gate(barrier(A, 1, 2)) == [cut(2, {A: 1}), Release(2)]
    assert gate(Triggered(2)) == []


def test_an_aborted_checkpoint_stays_aborted_though_it_is_the_oldest_that_was_pending() -> None:
    """Its trigger may be repeated (C21)."""
    gate = Told(A)
    gate(Triggered(3, oldest=3), Aborted(3), Triggered(3, oldest=3))
    assert gate(barrier(A, 0, 3)) == []
    assert has_ended(gate.gate, 3)


def test_an_abort_that_was_lost_is_made_up_by_the_next_trigger() -> None:
    """The next trigger names the oldest pending checkpoint; every older one has ended (C13)."""
    gate = Told(A, B)
    gate(Triggered(1), barrier(A, 0, 1))
    assert gate(Triggered(3, oldest=3)) == [Release(1)]
    assert has_ended(gate.gate, 1)
    assert gate(barrier(B, 0, 1)) == [Release(1)], "nobody released it before it came"
    assert gate(barrier(A, 1, 3), barrier(B, 1, 3)) == [cut(3, {A: 1, B: 1}), Release(3)]


def test_a_checkpoint_older_than_what_is_pending_is_not_begun() -> None:
    """The trigger is late: the checkpoint has ended already (C21)."""
    gate = Told(A)
    gate(Triggered(5, oldest=4))
    assert gate(Triggered(3), barrier(A, 0, 3)) == [Release(3)]
    assert has_ended(gate.gate, 3)


def test_checkpoints_in_flight_are_cut_in_their_order() -> None:
    """Several checkpoints may be in flight. A barrier is passed only when its own checkpoint is cut (C12)."""
    gate = Told(A)
    gate(Triggered(2, oldest=1), Triggered(1, oldest=1), barrier(A, 0, 1))
    assert has_ended(gate.gate, 1)
    gate(data(A, 1), barrier(A, 2, 2))
    assert gate(Advanced({A: 2})) == [cut(2, {A: 2}), Release(2)]


def test_a_trigger_that_was_overtaken_by_a_later_cut_has_ended() -> None:
    """The late barrier would come after the later one; another task might hold at them in the opposite order (C2)."""
    gate = Told()
    assert gate(Triggered(2)) == [cut(2, {}), Release(2)]
    assert gate(Triggered(1)) == []
    assert has_ended(gate.gate, 1)


def test_a_barrier_of_an_earlier_attempt_belongs_to_no_checkpoint() -> None:
    """An earlier attempt's barrier was restored together with the unread entries around it (C5)."""
    gate = Told(A)
    gate(Arrived(A, 0, 0, 1, void=True), Triggered(1))
    assert gate(Tick()) == []
    assert gate(barrier(A, 1, 1)) == [cut(1, {A: 1}), Release(1)]


def test_an_entry_that_was_seen_already_counts_once() -> None:
    """J8."""
    gate = Told(A)
    gate(Triggered(1), data(A, 0), data(A, 0), Advanced({A: 1}))
    assert gate(barrier(A, 1, 1)) == [cut(1, {A: 1}), Release(1)]


def test_a_gap_between_entries_is_a_bug_of_the_caller() -> None:
    """Entries have to arrive without gaps, so a gap is a bug of the caller (J8)."""
    with pytest.raises(InvariantViolated, match="entry 1 came before entry 0"):
        Told(A)(data(A, 1))


def test_a_task_does_not_go_back() -> None:
    """A micro-batch without offsets of an input leaves the task's position there unchanged (J8)."""
    gate = Told(A)
    gate(data(A, 0), Advanced({A: 1}), Advanced({A: 0}), Advanced({}), Triggered(1))
    assert gate(barrier(A, 1, 1)) == [cut(1, {A: 1}), Release(1)]
