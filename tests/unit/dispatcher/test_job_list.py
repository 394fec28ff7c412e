"""The list of jobs is made anew where jobs have changed, and nowhere else (E4)."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minflinkd.dispatcher.job_list import AT_A_TIME, JobList
from minflinkd.rpc.jobs import JobOverview, JobStatus
from minflinkd.runtime.ids import JobId

A, B = JobId("a" * 32), JobId("b" * 32)


class Jobs:
    """Jobs with a state, and how often each was looked at."""

    def __init__(self, *ids: JobId) -> None:
        self.states = dict.fromkeys(ids, JobStatus.RUNNING)
        self.looks: list[JobId] = []
        self.list = JobList(ids=lambda: self.states, overview=self._overview)
        for job_id in ids:
            self.list.changed(job_id)

    def _overview(self, job_id: JobId) -> JobOverview | None:
        self.looks.append(job_id)
        if (status := self.states.get(job_id)) is None:
            return None
        return JobOverview(
            job_id=job_id, name="", status=status, start_ms=0, end_ms=-1, last_modification_ms=0, tasks={}
        )

    def become(self, job_id: JobId, status: JobStatus) -> None:
        self.states[job_id] = status
        self.list.changed(job_id)

    async def listed(self) -> dict[JobId, JobStatus]:
        return {job.job_id: job.status for job in await self.list.all()}


async def test_only_a_job_that_has_changed_is_looked_at_again() -> None:
    jobs = Jobs(A, B)
    await jobs.listed()
    jobs.looks.clear()
    jobs.become(B, JobStatus.FAILING)
    assert await jobs.listed() == {A: JobStatus.RUNNING, B: JobStatus.FAILING}
    assert jobs.looks == [B]


async def test_as_long_as_nothing_looks_different_the_list_is_the_same_object() -> None:
    """So whoever encodes it can tell by identity whether that is still to be done."""
    jobs = Jobs(A, B)
    before = await jobs.list.all()
    jobs.become(A, JobStatus.RUNNING)
    assert await jobs.list.all() is before


async def test_a_job_that_is_gone_is_not_listed_and_a_new_one_is() -> None:
    jobs = Jobs(A)
    await jobs.listed()
    del jobs.states[A]
    jobs.list.changed(A)
    jobs.become(B, JobStatus.CREATED)
    assert await jobs.listed() == {B: JobStatus.CREATED}


async def test_a_change_while_jobs_are_looked_at_is_in_the_next_list() -> None:
    """Many jobs are looked at a few at a time, with other work in between."""
    ids = [JobId(f"{n:032x}") for n in range(2 * AT_A_TIME)]
    jobs = Jobs(*ids)
    looking = asyncio.ensure_future(jobs.listed())
    await asyncio.sleep(0)
    assert 0 < len(jobs.looks) < len(ids)
    for job_id in ids:
        jobs.become(job_id, JobStatus.FAILING)
    await looking
    assert set((await jobs.listed()).values()) == {JobStatus.FAILING}


async def test_who_does_not_wait_for_the_list_leaves_nothing_out_of_the_next_one() -> None:
    ids = [JobId(f"{n:032x}") for n in range(AT_A_TIME)]
    jobs = Jobs(*ids)
    looking = asyncio.ensure_future(jobs.listed())
    await asyncio.sleep(0)
    looking.cancel()
    assert len(await jobs.listed()) == AT_A_TIME


async def test_a_job_that_cannot_be_looked_at_is_looked_at_again_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = Jobs(A)
    with monkeypatch.context() as patch:
        patch.setattr(jobs.list, "_overview", lambda _: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            await jobs.listed()
    assert await jobs.listed() == {A: JobStatus.RUNNING}


STEPS = st.lists(
    st.tuples(st.integers(0, 3 * AT_A_TIME), st.sampled_from([*list(JobStatus), None]), st.booleans()), max_size=80
)


@given(STEPS)
def test_whenever_it_is_asked_for_the_list_has_every_change_before(
    steps: list[tuple[int, JobStatus | None, bool]],
) -> None:
    """Jobs come, change and go between the questions, and while others are looked at."""

    ids = [JobId(f"{number:032x}") for number, _, _ in steps]

    async def run() -> None:
        jobs = Jobs()
        asked = list[tuple[int, dict[JobId, JobStatus], asyncio.Future[dict[JobId, JobStatus]]]]()
        for at, (job_id, (_, status, asks)) in enumerate(zip(ids, steps, strict=True)):
            if status is None:
                jobs.states.pop(job_id, None)
                jobs.list.changed(job_id)
            else:
                jobs.become(job_id, status)
            if asks:
                asked.append((at, dict(jobs.states), asyncio.ensure_future(jobs.listed())))
                await asyncio.sleep(0)
        for at, then, answer in asked:
            found, later = await answer, set(ids[at + 1 :])  # of these, what came later may be told
            assert {one: found[one] for one in found if one not in later} == {
                one: then[one] for one in then if one not in later
            }
        assert await jobs.listed() == jobs.states
        assert list(await jobs.listed()) == list(jobs.states)

    asyncio.run(run())
