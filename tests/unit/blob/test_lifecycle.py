"""What the BlobServer keeps and what it deletes, decided without I/O (B2, B6, B16, B17, B19, B20)."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from minflinkd.blob.errors import BlobInUse, BlobNotFound, BlobPermanent
from minflinkd.blob.keys import Blob, BlobKey, BlobKind
from minflinkd.blob.lifecycle import BlobLifecycle, BlobState
from minflinkd.runtime.ids import JobId
from minflinkd.runtime.machine import InvariantViolated

R = 100.0
JOB, OTHER = JobId("a" * 32), JobId("b" * 32)
SET = "5" * 32


def new_blob(job_id: JobId | None = JOB, kind: BlobKind = BlobKind.PERMANENT, text: str = "x") -> Blob:
    return Blob(job_id, BlobKey.new(kind, hashlib.sha256(text.encode()).hexdigest()))


def leading(*held: Blob) -> BlobLifecycle:
    lifecycle = BlobLifecycle(retention=R, now=0.0)
    lifecycle.hold(JOB, [blob.key for blob in held])
    lifecycle.jobs_known()
    return lifecycle


def store(lifecycle: BlobLifecycle, blob: Blob, now: float, upload_set: str | None = None) -> Blob:
    lifecycle.receive(blob, upload_set, now)
    lifecycle.received(blob, upload_set, now)
    return blob


def test_an_upload_of_which_nobody_takes_hold_goes_with_the_second_rotation() -> None:
    lifecycle = leading()
    blob = store(lifecycle, new_blob(), 10)
    assert lifecycle.rotate(100) == ()
    assert lifecycle.rotate(200) == (blob,)
    assert lifecycle.state(blob) is BlobState.CONDEMNED
    assert not lifecycle.offered(blob, None, 200)
    with pytest.raises(BlobNotFound, match="was deleted"):
        lifecycle.acquire(blob)
    assert lifecycle.hold(JOB, [blob.key]) == {blob.key}, "a submission that comes late is told so"
    lifecycle.deleted(blob)
    assert lifecycle.rotate(300) == ()


def test_a_set_is_staged_as_a_whole_when_its_last_blob_has_come() -> None:
    """B6"""
    lifecycle = leading()
    first = store(lifecycle, new_blob(text="1"), 0, SET)
    assert lifecycle.rotate(99) == ()
    second = store(lifecycle, new_blob(text="2"), 99, SET)
    assert lifecycle.rotate(190) == ()
    lifecycle.complete(JOB, SET, 195)
    lifecycle.complete(JOB, SET, 195)
    assert lifecycle.rotate(290) == ()
    assert set(lifecycle.rotate(390)) == {first, second}


def test_a_set_that_is_not_completed_is_staged_as_a_whole() -> None:
    """B6"""
    lifecycle = leading()
    first = store(lifecycle, new_blob(text="1"), 0, SET)
    second = store(lifecycle, new_blob(text="2"), 50, SET)
    assert lifecycle.due_at == 100
    assert lifecycle.rotate(100) == ()
    assert (lifecycle.state(first), lifecycle.state(second)) == (BlobState.UPLOADED, BlobState.UPLOADED)
    assert lifecycle.due_at == 150
    assert lifecycle.rotate(150) == ()
    assert lifecycle.state(first) is BlobState.STAGED
    assert lifecycle.rotate(200) == ()
    assert set(lifecycle.rotate(300)) == {first, second}


@pytest.mark.parametrize("broken", [False, True])
def test_a_set_does_not_expire_while_one_of_its_blobs_is_received(broken: bool) -> None:
    """Otherwise the job would lack the blobs that came first, however slowly the rest comes (B6)."""
    lifecycle = leading()
    first, second = store(lifecycle, new_blob(text="1"), 0, SET), new_blob(text="2")
    lifecycle.receive(second, SET, 10)
    for now in (110, 220, 330):
        assert lifecycle.rotate(now) == ()
        assert lifecycle.state(first) is BlobState.UPLOADED
        assert lifecycle.due_at > now
    if broken:
        lifecycle.not_received(second)
        assert lifecycle.rotate(430) == ()
        assert lifecycle.state(first) is BlobState.STAGED
    else:
        lifecycle.received(second, SET, 340)
        lifecycle.complete(JOB, SET, 340)
        assert lifecycle.hold(JOB, [first.key, second.key]) == frozenset()


def test_a_deletion_counts_once() -> None:
    """Two runs of the cleanup may work on the same blob."""
    lifecycle = leading()
    blob = store(lifecycle, new_blob(), 0)
    lifecycle.rotate(100)
    lifecycle.rotate(200)
    assert (lifecycle.deleted(blob), lifecycle.deleted(blob)) == (True, False)


def test_known_content_that_is_offered_joins_the_set() -> None:
    """Blobs that were about to be deleted count as new (B1, B6)."""
    lifecycle = leading()
    blob = store(lifecycle, new_blob(), 0)
    lifecycle.rotate(100)
    assert lifecycle.offered(blob, SET, 150)
    assert lifecycle.rotate(200) == ()
    lifecycle.complete(JOB, SET, 201)
    assert lifecycle.rotate(300) == ()
    assert lifecycle.hold(JOB, [blob.key]) == frozenset()
    assert [lifecycle.rotate(now) for now in (400, 500, 600, 700)] == [()] * 4


def test_a_job_that_is_submitted_in_time_finds_its_artifacts() -> None:
    """Each artifact gets one reference (B6, B17)."""
    lifecycle = leading()
    blob = store(lifecycle, new_blob(), 0)
    lifecycle.rotate(100)
    lifecycle.hold(JOB, [blob.key])
    lifecycle.hold(JOB, [blob.key])
    assert lifecycle.references(blob) == 1, "not raised again by recovery"
    lifecycle.failed(JOB, 150)
    assert lifecycle.references(blob) == 1, "a failure leaves blobs with a copy as they are"
    assert [lifecycle.rotate(now) for now in (200, 300, 400)] == [()] * 3
    lifecycle.let_go(JOB, 400)
    assert (lifecycle.rotate(500), lifecycle.rotate(600)) == ((), (blob,))


def test_a_failure_drops_the_references_to_transient_blobs() -> None:
    """B17"""
    lifecycle = leading()
    log, plan = store(lifecycle, new_blob(kind=BlobKind.TRANSIENT), 0), store(lifecycle, new_blob(), 0)
    other = store(lifecycle, new_blob(OTHER, BlobKind.TRANSIENT), 0)
    for blob in (log, log, plan, other):
        lifecycle.acquire(blob)
    lifecycle.failed(JOB, 1)
    assert [lifecycle.references(blob) for blob in (log, plan, other)] == [0, 1, 1]
    assert not lifecycle.release(log, 2), "by an owner who does not know"
    assert (lifecycle.rotate(100), lifecycle.rotate(200)) == ((), (log,))


def test_a_reference_given_back_stages_the_blob_or_deletes_it_at_once() -> None:
    """B16, B18"""
    lifecycle = leading()
    plan, log = store(lifecycle, new_blob(), 0), store(lifecycle, new_blob(kind=BlobKind.TRANSIENT), 0)
    for blob in (plan, log, log):
        lifecycle.acquire(blob)
    assert not lifecycle.release(log, 1, at_once=True), "somebody else holds it"
    assert lifecycle.release(log, 1, at_once=True)
    assert lifecycle.state(log) is BlobState.CONDEMNED
    assert not lifecycle.release(plan, 1, at_once=True), "a permanent one is staged"
    assert lifecycle.state(plan) is BlobState.STAGED


def test_the_end_of_a_job_takes_all_of_it_whatever_the_counts_say() -> None:
    """B17"""
    blob = new_blob()
    lifecycle = leading(blob)
    lifecycle.acquire(blob)
    lifecycle.end(JOB)
    assert not lifecycle.can_be_had(blob)
    with pytest.raises(BlobInUse, match="are being deleted"):
        lifecycle.receive(new_blob(), None, 0)
    lifecycle.ended(JOB)
    assert lifecycle.references(blob) == 0
    store(lifecycle, new_blob(text="late"), 1)


def test_nothing_goes_before_the_jobs_are_known() -> None:
    """Until jobs are read, their files look like nobody's (B19)."""
    lifecycle = BlobLifecycle(retention=R, now=0.0)
    blob, mine = new_blob(), new_blob(OTHER)
    lifecycle.found([blob, mine], 0)
    assert [lifecycle.rotate(now) for now in (100, 200, 300)] == [()] * 3
    lifecycle.hold(OTHER, [mine.key])
    lifecycle.jobs_known()
    lifecycle.found([blob, mine], 300)
    assert (lifecycle.rotate(300), lifecycle.rotate(400), lifecycle.rotate(500)) == ((), (blob,), (blob,))


def test_nothing_of_a_job_that_cannot_be_read_goes() -> None:
    """A job that could not be recovered is no reason to delete its blobs (B17)."""
    lifecycle = leading()
    blob = store(lifecycle, new_blob(), 0)
    lifecycle.keep(JOB)
    lifecycle.found([blob], 1)
    assert lifecycle.state(blob) is BlobState.KEPT
    assert [lifecycle.rotate(now) for now in (100, 200, 300)] == [()] * 3


def test_a_user_deletes_transient_blobs_only() -> None:
    """B2"""
    lifecycle = leading()
    with pytest.raises(BlobPermanent, match="goes with its job"):
        lifecycle.delete(store(lifecycle, new_blob(), 0))
    log = store(lifecycle, new_blob(None, BlobKind.TRANSIENT), 0)
    lifecycle.acquire(log)
    lifecycle.delete(log)
    lifecycle.delete(log)
    assert not lifecycle.can_be_had(log)


def test_a_transient_blob_lives_from_its_last_use() -> None:
    lifecycle = leading()
    log = store(lifecycle, new_blob(None, BlobKind.TRANSIENT), 0)
    lifecycle.rotate(100)
    lifecycle.used(log, 150)
    assert (lifecycle.rotate(200), lifecycle.rotate(300)) == ((), (log,))


@pytest.mark.parametrize("condemned", [False, True], ids=["staged", "condemned"])
def test_nothing_goes_while_the_records_contradict_each_other(condemned: bool) -> None:
    """What seems due may be needed. The message names the blob; nothing has changed, and time does not help (B20)."""
    lifecycle = leading()
    wrong, other = store(lifecycle, new_blob(text="1"), 0), store(lifecycle, new_blob(text="2"), 0)
    if condemned:
        assert set(lifecycle.rotate(100) + lifecycle.rotate(200)) == {wrong, other}
    lifecycle._counts[wrong] += 1  # as if `acquire` had forgotten to take it off the lists
    for now in (300, 400, 500):
        with pytest.raises(InvariantViolated, match=str(wrong)) as refused:
            lifecycle.rotate(now)
        assert str(other) not in refused.value.message
    assert "restart the daemon" in refused.value.hint
    assert lifecycle.references(wrong) == 1
    assert lifecycle.state(other) is (BlobState.CONDEMNED if condemned else BlobState.STAGED)
    del lifecycle._counts[wrong]
    assert set(lifecycle.rotate(600) + lifecycle.rotate(700)) == {wrong, other}


def test_of_many_contradictions_the_first_are_named() -> None:
    """A message has a bounded length."""
    lifecycle = leading()
    for number in range(14):
        lifecycle._counts[store(lifecycle, new_blob(text=str(number)), 0)] += 1
    with pytest.raises(InvariantViolated, match="; and 4 more") as refused:
        lifecycle.rotate(100)
    assert refused.value.message.count("is staged, but also referenced") == 10


class AnyOrder(RuleBasedStateMachine):
    """Every event in every order. A simple shadow model records what must not be deleted."""

    jobs = st.sampled_from([JOB, OTHER])
    kinds = st.sampled_from(list(BlobKind))
    sets = st.sampled_from([None, SET, "6" * 32])

    def __init__(self) -> None:
        super().__init__()
        self.lifecycle = BlobLifecycle(retention=R, now=0.0)
        self.now = 0.0
        self.known = False
        self.stored: list[Blob] = []  # blobs with files
        self.receiving: list[tuple[Blob, str | None]] = []
        self.held: dict[JobId, set[BlobKey]] = {}
        self.kept: set[JobId] = set()
        self.going: set[Blob] = set()  # condemned before their job was kept
        self.ending: set[JobId] = set()

    def pick(self, data: st.DataObject) -> Blob:
        return data.draw(st.sampled_from(self.stored))

    @rule(job=jobs, kind=kinds, upload_set=sets)
    def begin_upload(self, job: JobId, kind: BlobKind, upload_set: str | None) -> None:
        blob = new_blob(job, kind)
        try:
            self.lifecycle.receive(blob, upload_set, self.now)
        except BlobInUse:
            return
        self.receiving.append((blob, upload_set))

    @precondition(lambda self: self.receiving)
    @rule(broken=st.booleans())
    def end_upload(self, broken: bool) -> None:
        blob, upload_set = self.receiving.pop(0)
        if broken:
            self.lifecycle.not_received(blob)
        else:
            self.lifecycle.received(blob, upload_set, self.now)
            self.stored.append(blob)

    @rule(job=jobs, upload_set=st.sampled_from([SET, "6" * 32]))
    def complete(self, job: JobId, upload_set: str) -> None:
        self.lifecycle.complete(job, upload_set, self.now)

    @precondition(lambda self: self.stored)
    @rule(data=st.data(), upload_set=sets)
    def offer(self, data: st.DataObject, upload_set: str | None) -> None:
        self.lifecycle.offered(self.pick(data), upload_set, self.now)

    @rule(job=jobs, data=st.data())
    def submit_or_recover(self, job: JobId, data: st.DataObject) -> None:
        keys = [blob.key for blob in self.stored if blob.job_id == job]
        wanted = data.draw(st.sets(st.sampled_from(keys))) if keys else set()
        gone = self.lifecycle.hold(job, wanted)
        self.held[job] = wanted - gone
        self.kept.discard(job)

    @rule(job=jobs)
    def keep(self, job: JobId) -> None:
        if job not in self.held:
            self.lifecycle.keep(job)
            self.kept.add(job)
            self.going |= {blob for blob in self.stored if not self.lifecycle.can_be_had(blob)}

    @rule(job=jobs)
    def fail(self, job: JobId) -> None:
        self.lifecycle.failed(job, self.now)

    @rule(job=jobs, late=st.booleans())
    def finish(self, job: JobId, late: bool) -> None:
        self.lifecycle.end(job)
        self.held.pop(job, None)
        self.kept.discard(job)
        self.ending.add(job)
        if not late:
            self.directory_is_gone()

    @rule()
    def directory_is_gone(self) -> None:
        for job in self.ending:
            self.lifecycle.ended(job)
        self.stored = [blob for blob in self.stored if blob.job_id not in self.ending]
        self.ending.clear()

    @precondition(lambda self: self.stored)
    @rule(data=st.data(), at_once=st.booleans(), up=st.booleans())
    def reference(self, data: st.DataObject, at_once: bool, up: bool) -> None:
        blob = self.pick(data)
        if not up:
            self.lifecycle.release(blob, self.now, at_once=at_once)
        elif self.lifecycle.can_be_had(blob):
            self.lifecycle.acquire(blob)

    @rule()
    def take_stock(self) -> None:
        self.lifecycle.jobs_known()
        self.known = True
        self.lifecycle.found(self.stored, self.now)

    @rule(seconds=st.sampled_from([1.0, R / 2, R, 3 * R]), deleted=st.booleans())
    def rotate(self, seconds: float, deleted: bool) -> None:
        self.now += seconds
        for blob in self.lifecycle.rotate(self.now):
            assert self.known or not blob.is_permanent, "only a transient blob goes earlier, when its user says so"
            assert blob.job_id is not None
            assert blob.job_id not in self.kept or blob in self.going
            assert blob.key not in self.held.get(blob.job_id, set())
            if deleted:
                self.stored = [other for other in self.stored if other != blob]
                self.lifecycle.deleted(blob)

    @invariant()
    def what_is_held_can_be_had(self) -> None:
        self.lifecycle.check_invariants()
        for job, keys in self.held.items():
            for key in keys:
                assert self.lifecycle.can_be_had(Blob(job, key))
                assert self.lifecycle.references(Blob(job, key)) >= 1

    def teardown(self) -> None:
        """Once nobody needs anything, two rotations delete everything."""
        self.lifecycle.jobs_known()
        for blob, _ in self.receiving:
            self.lifecycle.not_received(blob)
        for job in (JOB, OTHER):
            self.lifecycle.let_go(job, self.now)
            self.lifecycle.end(job)
            self.lifecycle.ended(job)
        self.now += 2 * R
        self.lifecycle.rotate(self.now)  # sets that were never completed
        self.lifecycle.found(self.stored, self.now)
        due: set[Blob] = set()
        for _ in range(2):
            self.now += R
            due |= set(self.lifecycle.rotate(self.now))
        assert due >= set(self.stored)


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
