"""What a user may have beside what they have: pure decisions (E46)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace

from minflinkd.blob.keys import Blob, BlobKey, BlobKind
from minflinkd.blob.uploads import Upload
from minflinkd.config.quotas import KINDS, Quotas
from minflinkd.dispatcher.quotas import (
    Balance,
    Counted,
    QuotaBook,
    QuotaExceeded,
    Share,
    Usage,
    refusal,
    share_of,
    share_of_versions,
)
from minflinkd.dispatcher.versions import Restart, Version, Versions
from minflinkd.jobgraph.model import Artifact, Input, JobGraph, Sink, Source, Vertex
from minflinkd.runtime.ids import JobId, VertexId

JOB, OTHER, THIRD = JobId("1" * 32), JobId("2" * 32), JobId("3" * 32)
KIB = 1024


def graph(slots: int, artifacts: Mapping[str, int] | None = None) -> JobGraph:
    """Return a job of two tasks in one slot sharing group: it wants as many slots as the wider one."""
    return JobGraph(
        name="copy",
        parallelism=slots,
        vertices=(
            Vertex(id=VertexId("numbers"), source=Source(format="rate"), parallelism=1),
            Vertex(
                id=VertexId("out"),
                inputs=(Input(id=VertexId("numbers"), exchange=True),),
                sink=Sink(format="console"),
            ),
        ),
        artifacts=tuple(Artifact(name=f"{k}.py", key=k, size=size) for k, size in (artifacts or {}).items()),
    )


def book(limits: dict[str, str], *stored: Counted) -> QuotaBook:
    quotas = Quotas.parse(limits)
    return QuotaBook(quotas=lambda: quotas, stored=lambda: stored)


# --- what a job counts -------------------------------------------------------------------------------------------


def test_a_job_counts_the_slots_that_it_wants_at_its_full_parallelism() -> None:
    """Tasks of a slot sharing group share its slots; an adaptive job that runs with less counts all of them."""
    together = graph(4)
    assert share_of(together) == Share(slots=4)
    source, sink = together.vertices
    apart = replace(together, vertices=(source, replace(sink, slot_sharing_group="apart")))
    assert share_of(apart) == Share(slots=5)


def test_while_one_version_replaces_another_the_wider_counts_and_the_files_of_both() -> None:
    """Whichever of them the job goes on as, it is within the quota, and so it is if a new version is rolled back."""
    versions = Versions(
        current=Version(graph=graph(2, {"b": 20})),
        restart=Restart(
            number=1, requested_ms=0, target=graph(2, {"b": 20}), old=Version(graph=graph(5, {"a": 10, "b": 20}))
        ),
    )
    assert share_of_versions(versions) == Share(slots=5, artifacts={"a": 10, "b": 20})


# --- refusals ----------------------------------------------------------------------------------------------------


def test_a_refusal_names_each_limit_what_is_used_and_what_to_do() -> None:
    """The figures, the option that has the limit, and where to look."""
    quotas = Quotas.parse({"*.jobs": "3", "alice.slots": "10", "*.artifacts": "1 MiB"})
    refused = refusal("alice", Usage(3, 8, 1000), Usage(4, 12, (1 << 20) + KIB), quotas)
    assert refused is not None
    assert refused.message == (
        "alice may have at most 3 jobs that have not ended, has 3, and this needs 1 more (security.quotas.*.jobs); "
        "at most 10 slots, has 8, and this needs 4 more (security.quotas.alice.slots); "
        "at most 1 MiB of artifacts, has 1,000 bytes, and this needs 1,048,600 bytes more (security.quotas.*.artifacts)"
    )
    assert "`minflinkd quotas`" in refused.hint
    assert refused.info().code == "quota-exceeded"


@pytest.mark.parametrize(
    ("before", "after", "fits"),
    [
        (Usage(1, 4), Usage(2, 8), True),  # exactly the limit
        (Usage(2, 8), Usage(2, 9), False),
        (Usage(2, 8), Usage(3, 8), False),
        (Usage(5, 20), Usage(5, 20), True),  # the limits were lowered
        (Usage(5, 20), Usage(5, 19), True),
        (Usage(5, 20), Usage(5, 21), False),
        (Usage(1, 20), Usage(2, 20), True),  # more than one limit, but nothing more of that kind
    ],
)
def test_only_what_needs_more_of_a_kind_is_refused_for_its_limit(before: Usage, after: Usage, fits: bool) -> None:
    """So a job can be made smaller while its owner has too much."""
    quotas = Quotas.parse({"*.jobs": "2", "*.slots": "8"})
    assert (refusal("alice", before, after, quotas) is None) is fits


# --- claims ------------------------------------------------------------------------------------------------------


def test_of_two_submissions_at_once_one_gets_the_last_place() -> None:
    """The second is refused while the first is being checked, and may come when the first has failed."""
    quotas = book({"*.jobs": "1"})
    quotas.claim(JOB, "alice", share_of(graph(1)), keep=True)
    with pytest.raises(QuotaExceeded, match="has 1, and this needs 1 more"):
        quotas.claim(OTHER, "alice", share_of(graph(1)), keep=True)
    quotas.claim(THIRD, "bob", share_of(graph(1)), keep=True)
    quotas.release(JOB)
    quotas.claim(OTHER, "alice", share_of(graph(1)), keep=True)


def test_a_dry_run_claims_nothing() -> None:
    quotas = book({"*.jobs": "1"})
    for _ in range(2):
        quotas.claim(JOB, "alice", share_of(graph(1)), keep=False)
    assert quotas.usage("alice") == Usage()


def test_a_job_is_counted_once_while_it_is_stored_and_still_claimed() -> None:
    stored = Counted(JOB, "alice", share_of(graph(3, {"a": 10})))
    quotas = book({}, stored)
    quotas.claim(JOB, "alice", share_of(graph(3, {"a": 10})), keep=True)
    assert quotas.usage("alice") == Usage(1, 3, 10)


def test_a_wider_version_needs_what_it_has_more_than_the_present_one() -> None:
    """At a rescale and a hot restart the job's own slots are not counted twice; its files are all kept."""
    quotas = book({"*.slots": "5", "*.artifacts": "30"}, Counted(JOB, "alice", share_of(graph(3, {"a": 10}))))
    quotas.claim(JOB, "alice", share_of(graph(5, {"a": 10, "b": 20})), keep=False)
    with pytest.raises(QuotaExceeded, match="at most 5 slots, has 3, and this needs 3 more"):
        quotas.claim(JOB, "alice", share_of(graph(6)), keep=False)
    with pytest.raises(
        QuotaExceeded, match="at most 30 bytes of artifacts, has 10 bytes, and this needs 21 bytes more"
    ):
        quotas.claim(JOB, "alice", share_of(graph(1, {"b": 21})), keep=False)


def test_an_upload_counts_until_it_is_one_of_a_jobs_and_never_twice() -> None:
    """What the user has uploaded for a submission is not counted again when it is submitted."""
    key = BlobKey.new(BlobKind.PERMANENT, "c" * 64)
    uploads = [Upload(Blob(JOB, key), "alice", 60)]
    quotas = Quotas.parse({"*.artifacts": "100"})
    one = QuotaBook(quotas=lambda: quotas, stored=tuple, uploads=lambda: uploads)
    assert one.usage("alice") == Usage(0, 0, 60)
    assert one.users() == {"alice"}
    one.claim(JOB, "alice", share_of(graph(1, {str(key): 60})), keep=True)
    assert one.usage("alice") == Usage(1, 1, 60)
    with pytest.raises(QuotaExceeded, match="has 60 bytes, and this needs 41 bytes more"):
        one.admit_upload("alice", 41)
    one.admit_upload("alice", 40)
    one.admit_upload("bob", 100)
    one.claim(OTHER, "bob", share_of(graph(1, {"another": 100})), keep=True)
    with pytest.raises(QuotaExceeded):
        one.claim(THIRD, "bob", share_of(graph(1, {"more": 1})), keep=False)


def test_what_somebody_uploads_for_a_job_of_another_one_counts_for_its_owner_once_it_is_the_jobs() -> None:
    key = BlobKey.new(BlobKind.PERMANENT, "c" * 64)
    stored = Counted(JOB, "alice", share_of(graph(1)))
    one = QuotaBook(quotas=Quotas, stored=lambda: [stored], uploads=lambda: [Upload(Blob(JOB, key), "bob", 60)])
    assert (one.usage("alice").artifacts, one.usage("bob").artifacts) == (0, 60)
    one.claim(JOB, "alice", share_of(graph(1, {str(key): 60})), keep=True)
    assert (one.usage("alice").artifacts, one.usage("bob").artifacts) == (60, 0)


def test_a_job_whose_owner_is_not_known_counts_for_nobody() -> None:
    """It was stored before owners were recorded. Its versions are not limited either."""
    quotas = book({"*.jobs": "0"}, Counted(JOB, "", Share(slots=7)))
    quotas.claim(JOB, "", share_of(graph(9)), keep=True)
    assert quotas.users() == frozenset()


def test_users_are_those_who_have_something_or_a_limit_of_their_own() -> None:
    quotas = book({"*.jobs": "2", "bob.slots": "4"}, Counted(JOB, "alice", Share(slots=1)))
    quotas.claim(OTHER, "carol", share_of(graph(1)), keep=True)
    assert quotas.users() == {"alice", "bob", "carol"}
    assert quotas.balances("alice")["jobs"] == Balance(1, Quotas.parse({"*.jobs": "2"}).of("alice", "jobs"))


# --- any sequence ------------------------------------------------------------------------------------------------

USERS = st.sampled_from(["alice", "bob"])
SLOTS = st.integers(1, 4)
FILES = st.dictionaries(st.sampled_from("abcd"), st.integers(1, 3), max_size=2)
ANY = st.integers(0, 9)


@dataclass
class Record:
    """A stored job: the versions that may be brought up."""

    owner: str
    versions: list[JobGraph] = field(default_factory=list)

    def usage(self, *more: JobGraph) -> tuple[int, int, int]:
        """Compute it the long way."""
        graphs = [*self.versions, *more]
        files = {a.key: a.size for each in graphs for a in each.artifacts}
        return 1, max(each.parallelism for each in graphs), sum(files.values())


class Quota(RuleBasedStateMachine):
    """Users submit jobs, give them other versions and end them in any order. Daemons come and go, limits change."""

    def __init__(self) -> None:
        super().__init__()
        self.quotas = Quotas.parse({"*.jobs": "3", "*.slots": "8", "*.artifacts": "8"})
        self.records: dict[JobId, Record] = {}
        self.submitting: dict[JobId, tuple[str, JobGraph]] = {}
        self.checking: dict[JobId, JobGraph] = {}  # new versions
        self.number = 0
        self.before = dict.fromkeys(("alice", "bob"), (0, 0, 0))
        self.begin()

    def begin(self) -> None:
        def stored() -> list[Counted]:
            return [Counted(j, r.owner, share_of_versions(self.as_stored(r))) for j, r in self.records.items()]

        self.book = QuotaBook(quotas=lambda: self.quotas, stored=stored)

    def as_stored(self, record: Record) -> Versions:
        current, *restart = record.versions
        under_way = Restart(number=1, requested_ms=0, target=restart[0]) if restart else None
        return Versions(current=Version(graph=current), restart=under_way)

    def model(self, user: str) -> tuple[int, int, int]:
        found = [(0, 0, 0)]
        for job_id, record in self.records.items():
            if record.owner == user:
                found.append(record.usage(*([self.checking[job_id]] if job_id in self.checking else [])))
        found += [Record(user, [wanted]).usage() for owner, wanted in self.submitting.values() if owner == user]
        return tuple(map(sum, zip(*found, strict=True)))  # type: ignore[return-value]

    def claim(self, job_id: JobId, user: str, wanted: JobGraph, after: tuple[int, int, int]) -> bool:
        """Whether it was admitted, which must be as the long way says."""
        limits = [self.quotas.of(user, kind).most for kind in KINDS]
        figures = zip(self.model(user), after, limits, strict=True)
        fits = all(limit is None or now <= limit or now <= had for had, now, limit in figures)
        try:
            self.book.claim(job_id, user, share_of(wanted), keep=True)
        except QuotaExceeded:
            assert not fits, "what was freed can be used again"
            return False
        assert fits, "more than the limit was admitted"
        return True

    @rule(user=USERS, slots=SLOTS, files=FILES)
    def submit(self, user: str, slots: int, files: dict[str, int]) -> None:
        self.number += 1
        job_id, wanted = JobId(f"{self.number:032x}"), graph(slots, {f"{self.number}{k}": v for k, v in files.items()})
        after = tuple(a + b for a, b in zip(self.model(user), Record(user, [wanted]).usage(), strict=True))
        if self.claim(job_id, user, wanted, after):  # type: ignore[arg-type]
            self.submitting[job_id] = user, wanted

    @precondition(lambda self: self.submitting)
    @rule(which=ANY, accepted=st.booleans())
    def a_submission_ends(self, which: int, accepted: bool) -> None:
        job_id = sorted(self.submitting)[which % len(self.submitting)]
        user, wanted = self.submitting.pop(job_id)
        if accepted:
            self.records[job_id] = Record(user, [wanted])
        self.book.release(job_id)

    @precondition(lambda self: self.records)
    @rule(which=ANY, slots=SLOTS, files=FILES)
    def rescale(self, which: int, slots: int, files: dict[str, int]) -> None:
        """Or restart it with other files."""
        job_id = sorted(self.records)[which % len(self.records)]
        record = self.records[job_id]
        if len(record.versions) > 1 or job_id in self.checking:
            return
        wanted = graph(slots, {f"{int(job_id, 16)}{k}": v for k, v in files.items()})
        wanted_files = {a.key for a in wanted.artifacts}
        if any(a.key in wanted_files for a in record.versions[0].artifacts):  # a key has one size
            wanted = graph(slots)
        had, without = self.model(record.owner), record.usage()
        after = tuple(h - w + n for h, w, n in zip(had, without, record.usage(wanted), strict=True))
        if self.claim(job_id, record.owner, wanted, after):  # type: ignore[arg-type]
            self.checking[job_id] = wanted

    @precondition(lambda self: self.checking)
    @rule(which=ANY, accepted=st.booleans())
    def a_check_ends(self, which: int, accepted: bool) -> None:
        job_id = sorted(self.checking)[which % len(self.checking)]
        wanted = self.checking.pop(job_id)
        if accepted:
            self.records[job_id].versions.append(wanted)
        self.book.release(job_id)

    @rule(which=ANY, back=st.booleans())
    def a_restart_ends(self, which: int, back: bool) -> None:
        under_way = [record for _, record in sorted(self.records.items()) if len(record.versions) > 1]
        if under_way:
            record = under_way[which % len(under_way)]
            record.versions = [record.versions[0 if back else 1]]

    @precondition(lambda self: self.records)
    @rule(which=ANY)
    def a_job_ends(self, which: int) -> None:
        job_id = sorted(self.records)[which % len(self.records)]
        del self.records[job_id]
        if self.checking.pop(job_id, None) is not None:
            self.book.release(job_id)

    @rule()
    def the_daemon_restarts(self) -> None:
        """What was being checked is gone."""
        self.submitting.clear()
        self.checking.clear()
        self.begin()

    @rule(jobs=st.integers(0, 4), slots=st.integers(0, 10))
    def a_reload_changes_the_limits(self, jobs: int, slots: int) -> None:
        self.quotas = Quotas.parse({"*.jobs": str(jobs), "*.slots": str(slots), "*.artifacts": "8", "bob.slots": "5"})

    @invariant()
    def what_grows_is_within_the_limit(self) -> None:
        for user, before in self.before.items():
            now, found = self.model(user), self.book.usage(user)
            assert now == (found.jobs, found.slots, found.artifacts)
            for kind, had, has in zip(KINDS, before, now, strict=True):
                limit = self.quotas.of(user, kind).most
                assert has <= had or limit is None or has <= limit
            self.before[user] = now


TestQuota = Quota.TestCase
TestQuota.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
