"""The record of a job's versions is checked before it is stored: a bug in a decision leaves nothing bad on disk."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from minflinkd.blob.keys import BlobKey
from minflinkd.dispatcher import versions as v
from minflinkd.dispatcher.job_store import JobStore
from minflinkd.rpc.jobs import JobStatus, RestartState
from minflinkd.rpc.network import Unreachable
from minflinkd.runtime.ids import JobId
from minflinkd.storage.interface import StorageUnavailable
from tests.unit.dispatcher.conftest import Cluster, FakeBlobs
from tests.unit.dispatcher.versions_world import (
    BOOM,
    FINDS_NONE,
    JOB,
    Runner,
    a_runner,
    job_running,
    over,
    restart,
    runs,
    seen,
)

pytestmark = pytest.mark.usefixtures("impatient")


@pytest.fixture
async def runner(cluster: Cluster) -> AsyncIterator[Runner]:
    async with a_runner(cluster) as one:
        yield one


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> list[v.Versions]:
    """Every record that is written."""
    records: list[v.Versions] = []
    put = JobStore.put_versions

    async def recorded(self: JobStore, job_id: JobId, number: int, versions: v.Versions) -> None:
        records.append(versions)
        await put(self, job_id, number, versions)

    monkeypatch.setattr(JobStore, "put_versions", recorded)
    return records


Spoil = Callable[[v.Versions], v.Versions]


def plant(monkeypatch: pytest.MonkeyPatch, owner: object, rule: str, spoil: Spoil) -> None:
    """Break one rule of the machine, once: its decision is spoilt."""
    sound = getattr(owner, rule)

    def spoilt(this: v.Step, *others: object) -> None:
        monkeypatch.setattr(owner, rule, sound)
        sound(this, *others)
        this.state = spoil(this.state)

    monkeypatch.setattr(owner, rule, spoilt)


def of_no_number(state: v.Versions) -> v.Versions:
    """A restart has a number that none had before it."""
    assert state.restart is not None
    return replace(state, restart=replace(state.restart, number=0))


def illegal_move(state: v.Versions) -> v.Versions:
    assert state.restart is not None
    return replace(state, restart=state.restart.to(RestartState.FAILED))


def without_way_back(state: v.Versions) -> v.Versions:
    """A version on trial needs one to go back to."""
    assert state.restart is not None
    return replace(state, restart=replace(state.restart, old=None))


def broken(*_: object) -> None:
    raise ZeroDivisionError("a bug")


def are_sound(records: list[v.Versions]) -> bool:
    for record in records:
        v.check_invariants(record)
    return True


@pytest.mark.parametrize(
    ("spoil", "why"),
    [(without_way_back, "none before it to go back to"), (illegal_move, "hot restart 1: STARTING -> FAILED")],
)
async def test_a_bug_in_a_decision_is_not_stored_and_the_job_runs_on(
    cluster: Cluster, runner: Runner, monkeypatch: pytest.MonkeyPatch, stored: list[v.Versions], spoil: Spoil, why: str
) -> None:
    """The order is step, check, write, publish. The version that was stored last is brought up again (A3, H8)."""
    plant(monkeypatch, v, "_stood_down", spoil)
    with capture_logs():
        async with job_running(cluster, runner):
            await restart(cluster, "2")
            ended = await seen(cluster, over(1))
            assert are_sound(stored)
            assert ended.state is RestartState.FAILED
            assert ended.error is not None
            assert (ended.error.code, why in ended.error.message) == ("hot-restart-interrupted", True)
            await seen(cluster, runs(runner, "1"))
            failures = [failure.error.code for failure in (await cluster.job(JOB)).failures]
            assert failures == ["jobmaster-down"]
            await restart(cluster, "3")
            assert (await seen(cluster, over(2))).state is RestartState.COMPLETED
            await seen(cluster, runs(runner, "3"))


async def test_a_version_on_trial_is_still_on_trial_after_a_bug(
    cluster: Cluster, runner: Runner, monkeypatch: pytest.MonkeyPatch, stored: list[v.Versions]
) -> None:
    """What is stored is that it has to prove itself; the next JobMaster has it do so (H7, H8)."""
    plant(monkeypatch, v.Step, "turn_back", without_way_back)
    runner.fails = "2"
    with capture_logs():
        async with job_running(cluster, runner):
            await restart(cluster, "2")
            ended = await seen(cluster, over(1))
            assert are_sound(stored)
            assert (ended.state, ended.error) == (RestartState.ROLLED_BACK, BOOM)
            await seen(cluster, runs(runner, "1"))


async def test_a_request_that_meets_a_bug_is_not_accepted(
    cluster: Cluster, runner: Runner, monkeypatch: pytest.MonkeyPatch, stored: list[v.Versions]
) -> None:
    """Whoever asked may ask again. Nothing of the request is stored (H1)."""
    plant(monkeypatch, v, "_requested", of_no_number)
    with capture_logs():
        async with job_running(cluster, runner):
            with pytest.raises(Unreachable, match="restart 0 is under way, and 1 were requested"):
                await restart(cluster, "2")
            assert stored == []
            await seen(cluster, runs(runner, "1"))
            assert (await cluster.job(JOB)).hot_restarts == ()


async def test_a_bug_in_the_last_decision_does_not_hold_up_a_cancellation(
    cluster: Cluster, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job ends, whatever becomes of its hot restart (H3a)."""
    runner.finds = FINDS_NONE
    with capture_logs():
        async with job_running(cluster, runner):
            await restart(cluster, "2")
            await seen(cluster, lambda job: job.on_trial)
            monkeypatch.setattr(v.Step, "end", broken)
            await cluster.cancel(JOB)
            job = await seen(cluster, lambda job: job if job.status.terminal else None)
            assert job.status is JobStatus.CANCELED


async def test_a_new_version_comes_up_although_nobody_can_tell_which_artifacts_exist(
    cluster: Cluster, runner: Runner, monkeypatch: pytest.MonkeyPatch, stored: list[v.Versions]
) -> None:
    """The decision is stored, so what follows from it is done. Artifacts that are not needed are held longer (B17)."""
    hold = FakeBlobs.hold

    async def away(self: FakeBlobs, job_id: JobId, keys: Collection[BlobKey]) -> frozenset[BlobKey]:
        if stored:
            raise StorageUnavailable("the storage is away")
        return await hold(self, job_id, keys)

    monkeypatch.setattr(FakeBlobs, "hold", away)
    with capture_logs():
        async with job_running(cluster, runner):
            assert (await restart(cluster, "2")).number == 1
            assert (await seen(cluster, over(1))).state is RestartState.COMPLETED
            await seen(cluster, runs(runner, "2"))
