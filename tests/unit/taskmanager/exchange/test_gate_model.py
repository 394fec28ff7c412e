"""Random histories of a task with inputs: what every cut covers, and that nothing is held for ever.

Readers hold at barriers as `Input.readable` does. The coordinator loses messages. A restore begins with what was cut.
Every data entry has a unique number, so a cut can be compared with exactly the entries before its barriers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from minflinkd.runtime.ids import VertexId
from minflinkd.taskmanager.exchange import gate as g

NAMES = tuple(VertexId(name) for name in "abc")


@dataclass(frozen=True)
class Item:
    """An entry of a log: data with a number, or a barrier."""

    data: int = 0
    barrier: int = 0


@dataclass
class Line:
    """One input as it is on disk and in the task."""

    log: list[Item] = field(default_factory=list)
    first: int = 0  # the first sequence number of this deployment; entries below it were restored
    seen: int = 0  # up to here the gate has seen the log
    position: int = 0  # up to here the task has read the log
    taken: list[int] = field(default_factory=list)  # data that is in the task's state
    offered: int = 0  # the last checkpoint whose barrier was written or left out

    def before(self, sequence: int) -> list[int]:
        return [item.data for item in self.log[:sequence] if item.data]


@dataclass(frozen=True)
class Saved:
    """A snapshot: the task's state, and each input's barrier (its sequence number) and unread entries before it."""

    number: int
    taken: dict[VertexId, list[int]]
    barriers: dict[VertexId, int]
    unread: dict[VertexId, int]
    logs: dict[VertexId, list[Item]]


class GateModel(RuleBasedStateMachine):
    hold = True
    aligned_timeout: float | None = None

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.last_data = 0
        self.last_id = 0
        self.pending: set[int] = set()  # the coordinator's pending checkpoints
        self.owed_triggers: list[int] = []
        self.owed_aborts: list[int] = []
        self.begun: set[int] = set()  # triggered at the gate, in this attempt
        self.saved: list[Saved] = []
        self.cut_ids: list[int] = []  # cut in this attempt
        self.released: set[int] = set()
        self.first_seen: dict[int, float] = {}  # when the first barrier of a checkpoint was seen, in this attempt
        self.lines: dict[VertexId, Line] = {}
        self.gate = g.Gate({})

    @initialize(inputs=st.integers(1, 3))
    def inputs(self, inputs: int) -> None:
        self.lines = {name: Line() for name in NAMES[:inputs]}
        self.begin()

    def begin(self) -> None:
        channels = {name: g.Channel(line.position, line.position) for name, line in self.lines.items()}
        self.gate = g.Gate(channels, hold=self.hold, aligned_timeout=self.aligned_timeout)
        self.released, self.begun, self.cut_ids, self.first_seen = set(), set(), [], {}

    # --- the gate's world ----------------------------------------------------------------------------------------

    def feed(self, event: g.Event) -> None:
        self.gate, commands = g.step(self.gate, event, self.now)
        for command in commands:
            if isinstance(command, g.Release):
                self.released.add(command.checkpoint_id)
            else:
                self.check(command)

    def check(self, cut: g.Cut) -> None:
        number = cut.checkpoint_id
        assert number in self.begun
        assert number not in self.released, "cut after it had ended"
        assert not self.cut_ids or number > self.cut_ids[-1]
        assert cut.alignment == self.now - self.first_seen[number]
        held = overtaken = 0
        for name, line in self.lines.items():
            at = cut.barriers[name]
            assert line.log[at] == Item(barrier=number)
            unread = [item.data for item in line.log[cut.unread.get(name, at) : at] if item.data]
            if self.hold:
                assert line.taken + unread == line.before(at), "exactly what is before the barrier"
            else:
                assert line.taken[: len(line.before(at))] == line.before(at), "at least what is before the barrier"
            held += sum(1 for item in line.log[at : line.seen] if item.data)
            overtaken += len(unread)
            if name in cut.unread:
                assert unread
                assert self.hold
                assert self.aligned_timeout is not None
                assert cut.alignment >= self.aligned_timeout
        assert (cut.held, cut.overtaken) == (held if self.hold else 0, overtaken)
        self.cut_ids.append(number)
        self.saved.append(
            Saved(
                number,
                {name: list(line.taken) for name, line in self.lines.items()},
                dict(cut.barriers),
                dict(cut.unread),
                {name: line.log[: cut.barriers[name]] for name, line in self.lines.items()},
            )
        )

    def scan(self) -> None:
        for name, line in self.lines.items():
            for sequence in range(line.seen, len(line.log)):
                item = line.log[sequence]
                void = sequence < line.first
                if item.barrier and not void:
                    self.first_seen.setdefault(item.barrier, self.now)
                line.seen = sequence + 1
                self.feed(g.Arrived(name, sequence, 1 if item.data else 0, item.barrier or None, void))

    def limit(self, line: Line) -> int:
        """Return how far the reader may go."""
        position = end = line.position
        while position < len(line.log):
            item = line.log[position]
            if item.barrier and self.hold and position >= line.first and item.barrier not in self.released:
                break
            position += 1
            end = end if item.barrier else position
        return end

    def write(self, line: Line, item: Item) -> None:
        line.log.append(item)

    # --- what happens --------------------------------------------------------------------------------------------

    @rule(which=st.integers(0, 2), entries=st.integers(1, 3))
    def data_is_written(self, which: int, entries: int) -> None:
        line = self.lines[NAMES[which % len(self.lines)]]
        for _ in range(entries):
            self.last_data += 1
            self.write(line, Item(data=self.last_data))

    @precondition(lambda self: len(self.pending) < 3)
    @rule()
    def checkpoint_is_set_up(self) -> None:
        self.last_id += 1
        self.pending.add(self.last_id)
        self.owed_triggers.append(self.last_id)

    @precondition(lambda self: self.last_id > 0)
    @rule(which=st.integers(0, 2), left_out=st.integers(0, 7))
    def barrier_is_written(self, which: int, left_out: int) -> None:
        """The task upstream writes barriers in order.

        It may write none for an aborted checkpoint that it had no part in.
        """
        line = self.lines[NAMES[which % len(self.lines)]]
        if line.offered >= self.last_id:
            return
        line.offered += 1
        if left_out == 0 and line.offered not in self.pending:
            return
        self.write(line, Item(barrier=line.offered))

    @precondition(lambda self: self.owed_triggers)
    @rule(which=st.integers(0, 2), lost=st.integers(0, 7))
    def trigger_comes(self, which: int, lost: int) -> None:
        """Triggers come in any order."""
        number = self.owed_triggers.pop(which % len(self.owed_triggers))
        if lost == 0:
            return
        self.begun.add(number)
        self.feed(g.Triggered(number, min(self.pending, default=number)))

    @precondition(lambda self: self.pending)
    @rule(which=st.integers(0, 2))
    def checkpoint_is_aborted(self, which: int) -> None:
        number = sorted(self.pending)[which % len(self.pending)]
        self.pending.discard(number)
        self.owed_aborts.append(number)

    @precondition(lambda self: self.owed_aborts)
    @rule(lost=st.integers(0, 3))
    def abort_comes(self, lost: int) -> None:
        number = self.owed_aborts.pop(0)
        if lost:
            self.feed(g.Aborted(number))

    @rule()
    def somebody_looks(self) -> None:
        self.scan()
        self.feed(g.Tick())

    @rule(reads=st.lists(st.integers(0, 4), min_size=3, max_size=3))
    def micro_batch_is_processed(self, reads: list[int]) -> None:
        """An idle input, or one that was looked at too early, contributes nothing."""
        ends = {}
        for (name, line), most in zip(self.lines.items(), reads, strict=False):
            end = min(self.limit(line), line.position + most)
            while end > line.position and line.log[end - 1].barrier:
                end -= 1  # a reader stops after the last entry that is not a barrier
            ends[name] = end
        self.scan()
        for name, end in ends.items():
            line = self.lines[name]
            line.taken += [item.data for item in line.log[line.position : end] if item.data]
            line.position = max(end, line.position)
        self.feed(g.Advanced(ends))

    @rule(seconds=st.floats(0.0, 2.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.saved)
    @rule(which=st.integers(0, 1))
    def everything_begins_again(self, which: int) -> None:
        """Restore one of the last two cuts. The upstream logs continue at its barrier, which is not in the cut."""
        saved = self.saved[-1 - which % min(2, len(self.saved))]
        for name, line in self.lines.items():
            at = saved.barriers[name]
            line.log = list(saved.logs[name])
            line.first, line.position = at, saved.unread.get(name, at)
            line.seen = line.position
            line.taken = list(saved.taken[name]) if self.hold else line.before(at)  # the excess is replayed
            line.offered = self.last_id
        self.saved = [s for s in self.saved if s.number <= saved.number]
        self.pending.clear()
        self.owed_triggers.clear()
        self.owed_aborts.clear()
        self.begin()

    # --- what holds ----------------------------------------------------------------------------------------------

    @invariant()
    def the_state_is_a_prefix_of_the_input(self) -> None:
        for line in self.lines.values():
            assert line.taken == line.before(line.position)

    @invariant()
    def no_barrier_is_passed_that_is_not_released(self) -> None:
        for line in self.lines.values():
            passed = {item.barrier for item in line.log[line.first : line.position] if item.barrier}
            assert not self.hold or passed <= self.released

    @invariant()
    def time_alone_cuts_at_the_time_that_was_named_and_not_before(self) -> None:
        """An earlier wake-up would be for nothing, and a later one too late (C5)."""
        due = g.next_wakeup(self.gate)
        before = math.inf if due is None else math.nextafter(due, 0.0)
        if before >= self.now:
            assert g.step(self.gate, g.Tick(), before) == (self.gate, ())

    def teardown(self) -> None:
        """At the end, when no more events come, every pending checkpoint is cut and everything is read."""
        if not self.lines:
            return
        for line in self.lines.values():  # every pending checkpoint gets its barriers everywhere
            for number in range(line.offered + 1, self.last_id + 1):
                self.write(line, Item(barrier=number))
            line.offered = self.last_id
        lost = {n for n in self.pending if n not in self.begun and n not in self.owed_triggers}
        overtaken = {n for n in self.pending if self.cut_ids and n < self.cut_ids[-1] and n not in self.cut_ids}
        self.pending -= lost | overtaken  # the coordinator aborts them: their triggers failed, or they were declined
        wanted = {n for n in self.pending if n not in self.cut_ids}
        while self.owed_triggers:
            number = self.owed_triggers.pop(0)
            self.begun.add(number)
            self.feed(g.Triggered(number, min(self.pending, default=number)))
        self.settle()
        self.pending -= set(self.cut_ids)  # these are complete
        self.last_id += 1  # one more, whose trigger names the oldest pending checkpoint
        self.pending.add(self.last_id)
        self.begun.add(self.last_id)
        for line in self.lines.values():
            self.write(line, Item(barrier=self.last_id))
        self.feed(g.Triggered(self.last_id, min(self.pending)))
        self.settle()
        assert wanted | {self.last_id} <= set(self.cut_ids)
        for line in self.lines.values():
            assert line.taken == line.before(len(line.log)), "held for ever"
        assert not self.gate.waiting
        assert not self.gate.arrived
        assert not self.gate.void
        assert not any(channel.barriers or channel.unread for channel in self.gate.channels.values())

    def settle(self) -> None:
        for _ in range(sum(len(line.log) for line in self.lines.values()) + 5):
            self.micro_batch_is_processed([10**6] * 3)
            self.somebody_looks()
            self.now += 1.0


class AtLeastOnceModel(GateModel):
    hold = False


class UnalignedModel(GateModel):
    aligned_timeout = 1.0


@pytest.mark.parametrize("model", [GateModel, AtLeastOnceModel, UnalignedModel])
def test_a_gate_holds_what_it_promises_in_every_history(model: type[GateModel]) -> None:
    """Random histories keep the rules with aligned, at-least-once and unaligned checkpoints (C2, C3, C5, C13)."""
    run_state_machine_as_test(model, settings=settings(max_examples=30, stateful_step_count=30, deadline=None))
