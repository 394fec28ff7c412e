"""The queue of deletions: batched, retried, limited, and never ahead of checkpointing (F5)."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from minflinkd.checkpoint import deletion_queue as d
from minflinkd.checkpoint.deletion_queue import (
    Delete,
    Ended,
    Limits,
    Queue,
    Wanted,
    check_invariants,
    next_wakeup,
    step,
)

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


def test_metadata_waits_for_no_files_nor_for_a_write() -> None:
    """A restart waits until the metadata of a failed checkpoint is gone (C22)."""
    story = Story()
    story.tell(Wanted(1, ("a", "b", "c")), Wanted(2, ("d",)), d.WriteBegun())
    assert story.tell(Wanted(3, ("chk-1/_metadata",), insists=True)) == [Delete(2, ("chk-1/_metadata",), insists=True)]


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
    story.tell(Wanted(1, ("a",)), Wanted(2, ("chk-1/_metadata",), insists=True))
    answers = []
    for now in range(1, 100):
        for request in list(story.queue.in_flight):
            answers += [c for c in story.tell(d.Failed(request)) if isinstance(c, Ended)]
        story.at(float(now))
    assert answers == [Ended(1, False)]
    [[metadata]] = [*story.queue.in_flight.values()] or [[story.queue.waiting[0]]]
    assert metadata.insists


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
                case Delete(request, names, insists):
                    assert insists or not self.writes
                    self.requests[request] = names
                case Ended(deletion, complete):
                    assert deletion not in self.ended
                    self.ended[deletion] = complete
                    assert complete is not bool(self.objects[deletion])

    @rule(count=st.integers(1, 9), insists=st.booleans())
    def something_is_to_go(self, count: int, insists: bool) -> None:
        self.asked += 1
        self.objects[self.asked] = {f"{self.asked}-{number}" for number in range(count)}
        self.tell(Wanted(self.asked, tuple(sorted(self.objects[self.asked])), insists))

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
