"""Owned tasks: what happens when they fail, end, or do not end."""

from __future__ import annotations

import asyncio
import gc
import itertools
import warnings

import pytest
from structlog.testing import capture_logs

from minflinkd.runtime import supervision
from minflinkd.runtime.supervision import TaskOwner


@pytest.mark.looptime
async def test_a_failing_loop_starts_again_after_growing_pauses() -> None:
    """The pauses begin with 0.1 s and double up to 10 s (A1)."""
    owner, clock = TaskOwner("owner"), asyncio.get_running_loop().time
    times: list[float] = []

    async def body() -> None:
        times.append(clock())
        raise ValueError("broken")

    with capture_logs() as logs:
        owner.loop("body", body)
        await asyncio.sleep(40)
        await owner.aclose()
    pauses = [round(later - sooner, 3) for sooner, later in itertools.pairwise(times)]
    assert pauses[:9] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]
    assert {(line["owner"], line["loop"], line["log_level"]) for line in logs} == {("owner", "body", "error")}


@pytest.mark.looptime
async def test_a_loop_that_ran_for_long_starts_again_at_once() -> None:
    """The pause grows with failures in a row, not with the age of the loop (A1)."""
    owner, clock = TaskOwner("owner"), asyncio.get_running_loop().time
    times: list[float] = []

    async def body() -> None:
        times.append(clock())
        await asyncio.sleep(2 * supervision.LONGEST_PAUSE)
        raise ValueError("broken")

    with capture_logs():
        owner.loop("body", body)
        await asyncio.sleep(70)
        await owner.aclose()
    assert [round(later - sooner, 3) for sooner, later in itertools.pairwise(times)] == [20.1] * 3


@pytest.mark.looptime
async def test_a_loop_that_returns_is_reported_and_started_again() -> None:
    """A1."""
    owner, runs = TaskOwner("owner"), list[int]()

    async def body() -> None:
        runs.append(1)

    with capture_logs() as logs:
        owner.loop("body", body)
        await asyncio.sleep(0.15)
        await owner.aclose()
    assert len(runs) == 2
    assert "should run for ever returned" in logs[0]["event"]


async def test_the_failure_of_a_job_goes_to_on_error_or_to_the_log() -> None:
    owner, told = TaskOwner("owner"), list[Exception]()

    async def fail() -> None:
        raise ValueError("broken")

    with capture_logs() as logs:
        await owner.job("told", fail(), on_error=told.append)
        assert logs == []
        await owner.job("logged", fail())
    assert [str(error) for error in told] == ["broken"]
    assert (logs[0]["event"], logs[0]["task"]) == ("a task failed", "logged")
    assert len(owner) == 0


@pytest.mark.looptime
async def test_closing_names_the_tasks_that_do_not_end() -> None:
    """`stop()` names the stuck tasks."""
    owner, release = TaskOwner("owner"), asyncio.Event()

    async def stubborn() -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    task = owner.job("stubborn", stubborn())
    owner.job("willing", asyncio.sleep(100))
    assert owner.names() == ["owner: stubborn", "owner: willing"]
    await asyncio.sleep(0)
    with capture_logs() as logs:
        await owner.aclose(timeout=1.0)
    assert [line["task"] for line in logs] == ["owner: stubborn"]
    assert owner.names() == ["owner: stubborn"]
    release.set()
    await task


async def test_a_task_may_close_its_own_owner() -> None:
    owner = TaskOwner("owner")

    async def close() -> None:
        await owner.aclose()

    await asyncio.wait_for(owner.job("close", close()), 1)


async def test_nothing_is_left_unawaited_of_a_job_that_never_began() -> None:
    """The job was cancelled before its first step, or given to an owner that is closed already."""
    owner = TaskOwner("owner")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        owner.job("never begun", asyncio.sleep(1))
        await owner.aclose()
        with pytest.raises(RuntimeError, match="owner is closed; it cannot start 'late'"):
            owner.job("late", asyncio.sleep(1))
        gc.collect()
    assert [str(w.message) for w in caught if "never awaited" in str(w.message)] == []
