"""The queue of deletions: batched, retried, limited, and never ahead of checkpointing (F5)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from minflinkd.checkpoint import deletion_queue as d
from minflinkd.checkpoint.deletion_queue import (
    Delete,
    Ended,
    Limits,
    Piece,
    Queue,
    Wanted,
    check_invariants,
    next_wakeup,
    step,
)
from minflinkd.runtime.machine import InvariantViolated

SMALL = Limits(batch=3, in_flight=2, rate=1.0, tries=3, first_pause=1.0, longest_pause=4.0)


class Story:
    def __init__(self, limits: Limits = SMALL) -> None:
        self.queue = Queue(limits=limits)
        self.now = 0.0

    def tell(self, *events: d.Event) -> list[d.Command]:
        wanted: list[d.Command] = []
        for event in events:
            self.queue, commands = step(self.queue, event, self.now)
            check_invariants(self.queue)
            wanted += commands
        return wanted

    def at(self, now: float, *events: d.Event) -> list[d.Command]:
        self.now = now
        return self.tell(*(events or (d.Tick(),)))


def test_files_of_several_deletions_go_in_one_request_and_those_of_a_large_one_in_several() -> None:
    """Deletions are batched (F5)."""
    story = Story()
    assert story.tell(d.WriteBegun(), Wanted(1, ("a",)), Wanted(2, ("b", "c")), Wanted(3, ("d", "e", "f", "g"))) == []
    assert story.tell(d.WriteEnded()) == [Delete(1, ("a", "b", "c"))]
    assert story.at(3, d.Done(1)) == [Ended(1, True), Ended(2, True), Delete(2, ("d", "e", "f"))]
    assert story.at(6, d.Done(2)) == [Delete(3, ("g",))]
    assert story.tell(d.Done(3)) == [Ended(3, True)]


def test_no_file_is_deleted_while_a_checkpoint_writes() -> None:
    """Deletions give way to checkpointing. One that has begun goes on (F5)."""
    story = Story()
    assert story.tell(d.WriteBegun(), d.WriteBegun(), Wanted(1, ("a",)), d.WriteEnded()) == []
    assert next_wakeup(story.queue, 0.0) is None
    assert story.tell(d.WriteEnded()) == [Delete(1, ("a",))]


def test_not_more_is_deleted_at_a_time_and_in_a_time_than_allowed() -> None:
    """Deletions are limited in flight and in rate (F5)."""
    story = Story(Limits(batch=2, in_flight=3, rate=1.0))
    assert story.tell(Wanted(1, ("a", "b")), Wanted(2, ("c", "d")), Wanted(3, ("e",))) == [Delete(1, ("a", "b"))]
    assert next_wakeup(story.queue, 0.0) == 2.0
    assert story.at(2) == [Delete(2, ("c", "d"))]
    assert story.at(9) == []  # one request is reserved for metadata
    assert story.tell(d.Done(1)) == [Ended(1, True), Delete(3, ("e",))]


def test_files_leave_one_request_of_two_to_metadata() -> None:
    """Even if the rate would allow more (F5, C22)."""
    story = Story()
    assert story.tell(Wanted(1, ("a", "b", "c")), Wanted(2, ("d",))) == [Delete(1, ("a", "b", "c"))]
    assert story.at(99) == []
    assert next_wakeup(story.queue, 99.0) is None
    assert story.tell(d.Done(1)) == [Ended(1, True), Delete(2, ("d",))]


def test_metadata_waits_for_no_files_nor_for_a_write() -> None:
    """A restart waits until the metadata of a failed checkpoint is gone (C22)."""
    story = Story()
    story.tell(Wanted(1, ("a", "b", "c")), Wanted(2, ("d",)), d.WriteBegun())
    assert story.tell(Wanted(3, ("chk-1/_metadata",), must_succeed=True)) == [
        Delete(2, ("chk-1/_metadata",), must_succeed=True)
    ]


def test_what_fails_is_tried_again_by_itself_after_a_growing_pause() -> None:
    """One object that cannot be deleted does not hold up the others for good (F5)."""
    story = Story()
    story.tell(d.WriteBegun(), Wanted(1, ("a",)), Wanted(2, ("b",)), d.WriteEnded())
    assert story.tell(d.Failed(1)) == []
    assert next_wakeup(story.queue, 0.0) == 2.0  # because of the rate; the pause ends before
    assert story.at(2) == [Delete(2, ("a",))]
    assert story.tell(d.Failed(2)) == []
    assert story.at(3) == [Delete(3, ("b",))]
    assert story.at(4, d.Done(3)) == [Ended(2, True), Delete(4, ("a",))]


def test_files_are_given_up_in_the_end_and_metadata_never() -> None:
    """The sweep of orphans finds such files (F7). Metadata that is left would be restored from (C22)."""
    story = Story()
    story.tell(Wanted(1, ("a",)), Wanted(2, ("chk-1/_metadata",), must_succeed=True))
    answers = []
    for now in range(1, 100):
        for request in list(story.queue.in_flight):
            answers += [c for c in story.tell(d.Failed(request)) if isinstance(c, Ended)]
        story.at(float(now))
    assert answers == [Ended(1, False)]
    [[metadata]] = [*story.queue.in_flight.values()] or [[story.queue.waiting[0]]]
    assert metadata.must_succeed


def request(*names: str, must_succeed: bool = False) -> tuple[Piece, ...]:
    return (Piece(1, names, must_succeed),)


FILES, METADATA = request("a", "b", "c"), request("chk-1/_metadata", must_succeed=True)
BROKEN: dict[str, Queue] = {
    "more requests in flight than allowed": Queue(limits=SMALL, in_flight={1: METADATA, 2: METADATA, 3: FILES}),
    "no request left to metadata": Queue(limits=SMALL, in_flight={1: FILES, 2: FILES}),
    "a request larger than allowed": Queue(limits=SMALL, in_flight={1: FILES + request("d")}),
    "writes end that did not begin": Queue(limits=SMALL, writes=-1),
    "files and metadata in one request": Queue(limits=SMALL, in_flight={1: request("a") + METADATA}),
}


@pytest.mark.parametrize("why", BROKEN)
def test_a_queue_that_must_not_exist_is_found(why: str) -> None:
    """The driver checks after each step (A3)."""
    with pytest.raises(InvariantViolated) as found:
        check_invariants(BROKEN[why])
    assert found.value.message == f"deletions: {why}"


def test_all_that_is_broken_of_a_queue_is_named() -> None:
    """One bug often breaks several rules (A3)."""
    crowded = replace(BROKEN["no request left to metadata"], writes=-1)
    with pytest.raises(InvariantViolated, match="no request left to metadata, writes end that did not begin"):
        check_invariants(crowded)


def test_a_queue_may_be_as_full_as_its_limits_say() -> None:
    """One request is left to metadata, unless only one is allowed at all (F5)."""
    check_invariants(Queue(limits=SMALL, in_flight={1: FILES, 2: METADATA}))
    check_invariants(Queue(limits=replace(SMALL, in_flight=1), in_flight={1: FILES}))
    check_invariants(Queue(limits=replace(SMALL, in_flight=3), in_flight={1: FILES, 2: FILES, 3: METADATA}))


def test_a_single_request_at_a_time_is_shared_by_files_and_metadata() -> None:
    """Metadata goes first as soon as the request before it has ended (C22, F5)."""
    story = Story(replace(SMALL, in_flight=1))
    assert story.tell(Wanted(1, ("a",)), Wanted(2, ("b",))) == [Delete(1, ("a",))]
    assert story.tell(Wanted(3, ("chk-1/_metadata",), must_succeed=True)) == []
    assert story.at(9, d.Done(1)) == [Ended(1, True), Delete(2, ("chk-1/_metadata",), must_succeed=True)]
    assert story.tell(d.Done(2)) == [Ended(3, True), Delete(3, ("b",))]


def test_the_pause_doubles_with_each_failure_up_to_the_longest() -> None:
    """An object that cannot be deleted is tried less and less often (F5)."""
    story = Story()
    story.tell(Wanted(1, ("chk-1/_metadata",), must_succeed=True))
    pauses = []
    for _ in range(40):
        [number] = story.queue.in_flight
        assert story.tell(d.Failed(number)) == []
        due = next_wakeup(story.queue, story.now)
        assert due is not None
        pauses.append(due - story.now)
        story.at(due)
    assert pauses == [1.0, 2.0] + [4.0] * 38


def test_metadata_neither_uses_nor_awaits_the_rate_of_files() -> None:
    """The rate limits files only (F5, C22)."""
    story = Story(replace(SMALL, in_flight=3))
    assert story.tell(Wanted(1, ("chk-1/_metadata",), must_succeed=True), Wanted(2, ("a", "b"))) == [
        Delete(1, ("chk-1/_metadata",), must_succeed=True),
        Delete(2, ("a", "b")),
    ]
    story.tell(Wanted(3, ("c",)), Wanted(4, ("chk-2/_metadata",), must_succeed=True), d.Failed(3))
    assert next_wakeup(story.queue, 0.0) == 1.0, "the pause of the metadata, which does not wait for the rate"
    assert story.at(1.0) == [Delete(4, ("chk-2/_metadata",), must_succeed=True)]
    assert story.at(2.0, d.Done(2)) == [Ended(2, True), Delete(5, ("c",))]


def test_a_deletion_is_incomplete_if_any_part_of_it_was_given_up() -> None:
    """The others of the same number of failures are still tried (F7)."""
    story = Story(replace(SMALL, tries=1, rate=100.0))
    assert story.tell(Wanted(1, ("a", "b", "c", "d"))) == [Delete(1, ("a", "b", "c"))]
    assert story.at(1, d.Failed(1)) == [Delete(2, ("d",))], "the rest is deleted all the same"
    assert story.at(2, d.Done(2)) == [Ended(1, False)]
    assert story.queue.incomplete == frozenset(), "nothing is left of it"
    assert story.at(3, Wanted(2, ("e",)), Wanted(3, ("f",))) == [Delete(3, ("e",))]
    assert story.at(4, d.WriteBegun(), d.Done(3), Wanted(4, ("g",)), d.WriteEnded()) == [
        Ended(2, True),
        Delete(4, ("f", "g")),
    ]
    assert story.at(5, d.Failed(4)) == [Ended(3, False), Ended(4, False)]


class DeletionModel(RuleBasedStateMachine):
    """A storage that fails at random, and deletions of checkpoints' files."""

    def __init__(self) -> None:
        super().__init__()
        self.story = Story(Limits(batch=4, in_flight=3, rate=2.0, tries=3))
        self.objects: dict[int, set[str]] = {}
        self.asked = 0
        self.writes = 0
        self.ended: dict[int, bool] = {}
        self.requests: dict[int, tuple[str, ...]] = {}

    def tell(self, event: d.Event) -> None:
        for command in self.story.tell(event):
            match command:
                case Delete(request, names, must_succeed):
                    assert must_succeed or not self.writes
                    self.requests[request] = names
                case Ended(deletion, complete):
                    assert deletion not in self.ended
                    self.ended[deletion] = complete
                    assert complete is not bool(self.objects[deletion])

    @rule(count=st.integers(1, 9), must_succeed=st.booleans())
    def something_is_to_go(self, count: int, must_succeed: bool) -> None:
        self.asked += 1
        self.objects[self.asked] = {f"{self.asked}-{number}" for number in range(count)}
        self.tell(Wanted(self.asked, tuple(sorted(self.objects[self.asked])), must_succeed))

    @rule(begins=st.booleans())
    def a_checkpoint_writes(self, begins: bool) -> None:
        if begins or self.writes:
            self.writes += 1 if begins else -1
            self.tell(d.WriteBegun() if begins else d.WriteEnded())

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), works=st.booleans())
    def the_storage_answers(self, data: st.DataObject, works: bool) -> None:
        request = data.draw(st.sampled_from(sorted(self.requests)))
        names = self.requests.pop(request)
        if works:
            for left in self.objects.values():
                left.difference_update(names)
        self.tell(d.Done(request) if works else d.Failed(request))

    @rule(seconds=st.sampled_from([0.1, 1.0, 30.0]))
    def time_passes(self, seconds: float) -> None:
        self.story.now += seconds
        self.tell(d.Tick())

    @invariant()
    def whatever_can_be_done_is_being_done_or_has_its_time(self) -> None:
        queue = self.story.queue
        if queue.waiting and not self.requests and not self.writes:
            assert next_wakeup(queue, self.story.now) is not None

    def teardown(self) -> None:
        """Once the storage works, every deletion ends."""
        while self.writes:
            self.a_checkpoint_writes(False)
        for _ in range(1000):
            for request in sorted(self.requests):
                names = self.requests.pop(request)
                for left in self.objects.values():
                    left.difference_update(names)
                self.tell(d.Done(request))
            if (due := next_wakeup(self.story.queue, self.story.now)) is not None:
                self.story.now = due
                self.tell(d.Tick())
            elif not self.requests:
                break
        assert self.ended.keys() == self.objects.keys()


DeletionModel.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestDeletionModel = DeletionModel.TestCase
