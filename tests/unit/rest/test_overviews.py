"""The overviews are encoded once for each change, and say the same as if they were encoded every time (E4)."""

from __future__ import annotations

from dataclasses import replace as copy

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from minflinkd.ha.standing import Standing
from minflinkd.rest.backend import encode
from minflinkd.rest.cluster import About, overview_of
from minflinkd.rest.jobs import job_summary
from minflinkd.rest.overviews import CLOCK_MS, EncodedCluster, EncodedJobs
from minflinkd.rest.schemas import ClusterOverview, JobsOverview, JobSummary
from minflinkd.rpc.jobs import CheckpointsInBrief, JobOverview, JobStatus
from minflinkd.rpc.messages import ResourceOverview
from minflinkd.runtime.ids import JobId

NOW = 1_800_000_000_000
ABOUT = About(version="1", config_items=list, blob_url=str)


def job(number: int, **more: object) -> JobOverview:
    found = JobOverview(
        job_id=JobId(f"{number:032x}"),
        name=f"job {number}",
        status=JobStatus.RUNNING,
        start_ms=NOW - 1000 * number,
        end_ms=-1,
        last_modification_ms=NOW - 500,
        tasks={"RUNNING": 2},
        checkpoints=CheckpointsInBrief(completed_ms=NOW - 300, duration_ms=7),
    )
    return replace(found, **more)


def as_described(jobs: tuple[JobOverview, ...], now: int) -> bytes:
    return encode(JobsOverview(jobs=tuple(job_summary(each, now) for each in jobs)))


def test_the_jobs_are_what_the_schema_says() -> None:
    """Whatever is in their names, and whether they run, have ended, or have not begun."""
    jobs = (
        job(1),
        job(2, name='"duration":17,"', waiting=',"duration":1,'),
        job(3, status=JobStatus.FINISHED, end_ms=NOW - 10),
        job(4, start_ms=-1),
        job(5, name="\\", owner="élodie"),
    )
    assert EncodedJobs("jobs", job_summary).of(jobs, NOW) == as_described(jobs, NOW)
    assert EncodedJobs("jobs", job_summary).of((), NOW) == as_described((), NOW)


def test_if_one_job_changes_only_that_one_is_encoded() -> None:
    encoded: list[JobId] = []

    def summary(one: JobOverview, now: int) -> JobSummary:
        encoded.append(one.job_id)
        return job_summary(one, now)

    answers, jobs = EncodedJobs("jobs", summary), (job(1), job(2), job(3))
    answers.of(jobs, NOW)
    encoded.clear()
    jobs = (jobs[0], replace(jobs[1], status=JobStatus.FAILING), jobs[2])
    assert answers.of(jobs, NOW) == as_described(jobs, NOW)
    assert encoded == [jobs[1].job_id]
    assert answers.of(jobs[1:], NOW) == as_described(jobs[1:], NOW)


def test_a_change_shows_at_once_and_a_duration_soon() -> None:
    """Also when the clock is set back."""
    answers, jobs = EncodedJobs("jobs", job_summary), (job(1),)
    first = answers.of(jobs, NOW)
    assert answers.of(jobs, NOW + CLOCK_MS - 1) is first
    assert answers.of(jobs, NOW + CLOCK_MS) == as_described(jobs, NOW + CLOCK_MS)
    changed = (replace(jobs[0], status=JobStatus.FAILING),)
    assert answers.of(changed, NOW + CLOCK_MS) == as_described(changed, NOW + CLOCK_MS)
    assert answers.of(changed, NOW - 10) == as_described(changed, NOW - 10)


def test_the_cluster_is_encoded_anew_if_jobs_resources_or_leaders_change() -> None:
    rendered = 0

    def overview(jobs: tuple[JobOverview, ...], resources: ResourceOverview, standing: Standing) -> ClusterOverview:
        nonlocal rendered
        rendered += 1
        return overview_of(ABOUT, jobs, resources, standing)

    answers, jobs, standing = EncodedCluster(overview), (job(1),), Standing()
    resources = ResourceOverview(task_managers=1, slots_total=8, slots_free=4)
    first = answers.of(jobs, resources, standing)
    assert answers.of(jobs, resources, Standing()) is first
    more = replace(resources, slots_free=3)
    in_trouble = copy(standing, trouble="away")
    for one, two, three in ((jobs, more, standing), ((), more, standing), ((), more, in_trouble)):
        expected = encode(overview_of(ABOUT, one, two, three))
        assert answers.of(one, two, three) == expected
        assert msgspec.json.decode(expected)["slots-available"] == 3
    assert rendered == 4


TEXTS = st.text(st.sampled_from('ab\\",:{}é\n') | st.characters(exclude_categories=["Cs"]), max_size=20) | st.just(
    '"duration":1,'
)
CHANGES = st.lists(
    st.tuples(
        st.integers(1, 4),  # which job
        st.sampled_from(["new", "gone", "other", "same"]),
        TEXTS,
        st.sampled_from([-1, NOW - 5000, NOW]),  # when it began
        st.integers(-100, 200),  # milliseconds that pass
    ),
    max_size=30,
)


@given(CHANGES)
def test_whatever_becomes_of_jobs_the_answer_is_what_it_would_be_if_it_were_new(
    changes: list[tuple[int, str, str, int, int]],
) -> None:
    """Jobs come and go, change, and have any text in them; the clock is set, too. Only durations may be a bit old."""
    answers, known, now = EncodedJobs("jobs", job_summary), dict[int, JobOverview](), NOW
    listed: tuple[JobOverview, ...] = ()
    for number, what, text, start, passed in changes:
        now += passed
        if what == "gone":
            known.pop(number, None)
        elif what != "same":
            known[number] = job(number, name=text, waiting=text, start_ms=start, end_ms=NOW if what == "other" else -1)
        if listed != (present := tuple(known.values())):
            listed = present
        told = msgspec.json.decode(answers.of(listed, now), type=JobsOverview).jobs
        wanted = msgspec.json.decode(as_described(listed, now), type=JobsOverview).jobs
        assert [replace(each, duration=0) for each in told] == [replace(each, duration=0) for each in wanted]
        assert all(abs(a.duration - b.duration) < CLOCK_MS for a, b in zip(told, wanted, strict=True))
