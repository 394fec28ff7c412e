"""`/history` and `/jobs/:jobid/history`: what the sampler has put down, stored or not (E16)."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import aiohttp
import pytest
from msgspec.structs import replace

from minflinkd.metrics.history.book import HistoryBook
from minflinkd.metrics.history.track import Resolution
from minflinkd.metrics.registry import Metrics
from minflinkd.rest.backend import Backend
from minflinkd.rest.history.keeper import HistoryKeeper
from minflinkd.rest.history.sampler import Sampler
from minflinkd.rpc.jobs import GetJob, JobDetails, JobStatus
from minflinkd.rpc.local import LocalNetwork
from minflinkd.rpc.snapshot import RowCounts
from minflinkd.runtime.ids import JobId
from minflinkd.storage.location import Location
from minflinkd.storage.registry import Storages
from tests.unit.rest.parties import FAILED, RUNNING, STARTED, Dispatcher, ResourceManager, details
from tests.waiting import until

T0 = (int(time.time()) - 600) // 60 * 60_000  # some minutes ago: the endpoint shows the last hour


class SetClock:
    """Tells the time that it is set to. Its sleeps end when it has been moved on."""

    def __init__(self) -> None:
        self.ms = T0

    def monotonic(self) -> float:
        return self.ms / 1000

    def epoch_ms(self) -> int:
        return self.ms

    async def sleep(self, seconds: float) -> None:
        due = self.ms + 1000 * seconds
        await until(lambda: self.ms >= due, timeout=600)


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def sampler(
    network: LocalNetwork, dispatcher: Dispatcher, resource_manager: ResourceManager, metrics: Metrics, clock: SetClock
) -> Sampler:
    return Sampler(Backend(network, clock=clock), metrics.history, lag=lambda: 0.004)


def advance(dispatcher: Dispatcher, rows: int, batch_ms: float = 120.0) -> None:
    """Let the first task of the running job finish a micro-batch with so many rows."""
    job = dispatcher.jobs[RUNNING]
    first, second = job.tasks
    read = first.metrics.rows_in + rows
    metrics = replace(
        first.metrics,
        batch_id=first.metrics.batch_id + 1,
        rows_in=read,
        batch_ms=batch_ms,
        batch_phases={"addBatch": 90.0, "walCommit": 12.0},
        rows=RowCounts(read={"flights": read}, written={"delays": 10}),
    )
    dispatcher.jobs[RUNNING] = replace(job, tasks=(replace(first, metrics=metrics), second))


async def sampled(sampler: Sampler, dispatcher: Dispatcher, clock: SetClock, rows: list[int]) -> None:
    for count in rows:
        advance(dispatcher, count)
        await sampler.sample()
        clock.ms += 5000


async def answer(http: aiohttp.ClientSession, path: str) -> dict[str, Any]:
    async with http.get(path) as response:
        assert response.status == 200, await response.text()
        found: dict[str, Any] = await response.json()
        return found


async def test_rates_are_rows_between_two_samples(
    http: aiohttp.ClientSession, sampler: Sampler, dispatcher: Dispatcher, clock: SetClock
) -> None:
    """The first sample of a daemon has nothing to compare with: it knows no rate."""
    await sampled(sampler, dispatcher, clock, [0, 50, 0, 500])
    found = await answer(http, f"/jobs/{RUNNING}/history?since={T0}")
    assert found["start"] == T0
    assert found["resolution"] == 5000
    assert found["tasks"]["flights"]["rows_in_per_second"][:5] == [None, 10.0, 0.0, 100.0, None]
    assert found["job"]["rows_in_per_second"][:4] == [None, 10.0, 0.0, 100.0]
    assert found["tasks"]["flights"]["phase_addBatch"][1] == pytest.approx(0.09, rel=0.002)
    assert found["tasks"]["flights"]["phase_walCommit"][1] == pytest.approx(0.012, rel=0.04)
    assert found["tasks"]["flights"]["watermark_lag"][0] == pytest.approx((T0 - STARTED) / 1000, rel=0.002)
    assert found["tasks"]["out"]["batch_duration"][0] is None


async def test_jobs_that_answer_slowly_do_not_hold_up_a_sample(
    sampler: Sampler, dispatcher: Dispatcher, clock: SetClock, metrics: Metrics
) -> None:
    """A sample comes every 5 s. What could not be looked at in time is left out, and the cluster's part is there."""
    dispatcher.jobs |= {JobId(digit * 32): details(JobId(digit * 32)) for digit in "cde"}

    async def slow(request: GetJob) -> JobDetails:
        clock.ms += 3000
        return dispatcher.jobs[request.job_id]

    dispatcher.mailbox.on(GetJob, slow)
    sample = await sampler.sample()
    assert len(sample.jobs) == 2
    assert sample.cluster["jobs_running"] == 4
    assert len(metrics.history.jobs) == 2


async def test_the_cluster_has_its_series_and_each_jobs_rate(
    http: aiohttp.ClientSession, sampler: Sampler, dispatcher: Dispatcher, clock: SetClock
) -> None:
    await sampled(sampler, dispatcher, clock, [0, 50])
    found = await answer(http, f"/history?since={T0}")
    assert {name: values[0] for name, values in found["cluster"].items()} == {
        "slots_total": 2,
        "slots_free": 1,
        "task_managers": 1,
        "jobs_running": 1,
        "loop_lag": pytest.approx(0.004, rel=0.002),
        "rpc_per_second": ANY,
        "rpc_unanswered_per_second": 0.0,
        "rpc_slowest": ANY,
        "rpc_in_flight": 0,
    }
    assert list(found["jobs"]) == [RUNNING]
    assert found["jobs"][RUNNING]["rows_in_per_second"][:3] == [None, 10.0, None]


async def test_the_past_of_a_job_outlives_it(
    http: aiohttp.ClientSession, sampler: Sampler, dispatcher: Dispatcher, clock: SetClock
) -> None:
    """Its end is a mark. Nothing is known of a job that ended before it was ever seen."""
    await sampled(sampler, dispatcher, clock, [0, 50])
    dispatcher.become(RUNNING, JobStatus.FINISHED)
    await sampler.sample()
    del dispatcher.jobs[RUNNING]
    found = await answer(http, f"/jobs/{RUNNING}/history?since={T0}&resolution=1m")
    assert found["marks"][-1] == {"at": STARTED + 9000, "kind": "ended", "text": "FINISHED"}
    assert {mark["kind"] for mark in found["marks"]} >= {"submitted", "restart", "ended"}
    assert found["job"]["rows_in_per_second"][0] == 10.0
    assert (await answer(http, f"/jobs/{FAILED}/history"))["marks"] == []
    async with http.get(f"/jobs/{'9' * 32}/history") as response:
        assert response.status == 404


async def test_a_silent_dispatcher_leaves_gaps_only(
    http: aiohttp.ClientSession, sampler: Sampler, dispatcher: Dispatcher, clock: SetClock
) -> None:
    """What the ResourceManager says is put down all the same."""
    dispatcher.broken = True
    await sampler.sample()
    found = await answer(http, f"/history?since={T0}")
    assert found["cluster"]["jobs_running"][0] is None
    assert found["cluster"]["slots_total"][0] == 2


async def test_the_next_daemon_knows_all_but_the_last_half_minute(
    sampler: Sampler, dispatcher: Dispatcher, metrics: Metrics, clock: SetClock, tmp_path: Path
) -> None:
    """A daemon that is killed writes nothing at its end. What it wrote before is whole (E16)."""
    storages = Storages({})
    directory = storages.at(f"file://{tmp_path}/history")
    keeper = HistoryKeeper(metrics.history, directory, epoch=1, clock=clock)
    for _ in range(3):
        await sampled(sampler, dispatcher, clock, [50] * 6)
        await keeper.flush()
    await sampled(sampler, dispatcher, clock, [50] * 5)  # lost with the daemon

    book = await read_again(directory, clock)
    past, before = book.jobs[RUNNING], metrics.history.jobs[RUNNING]
    assert (past.name, past.marks.keys()) == (before.name, before.marks.keys())
    for mine, other in ((past.track, before.track), (past.tasks["flights"], before.tasks["flights"])):
        start = T0 // 5000
        assert [list(c) for c in mine.columns(Resolution.FINE, start, start + 18)] == [
            list(c) for c in other.columns(Resolution.FINE, start, start + 18)
        ]
    await storages.aclose()


async def read_again(directory: Location, clock: SetClock, epoch: int = 2) -> HistoryBook:
    book = HistoryBook()
    async with HistoryKeeper(book, directory, epoch=epoch, clock=clock) as keeper:
        await until(keeper.loaded.is_set)
    return book


async def test_a_block_that_cannot_be_read_is_left_out(
    sampler: Sampler, dispatcher: Dispatcher, metrics: Metrics, clock: SetClock, tmp_path: Path
) -> None:
    """Nothing depends on it, and the rest is there."""
    storages = Storages({})
    directory = storages.at(f"file://{tmp_path}/history")
    keeper = HistoryKeeper(metrics.history, directory, epoch=1, clock=clock)
    await sampled(sampler, dispatcher, clock, [50] * 6)
    await keeper.flush()
    (stored,) = [each async for each in directory.list()]
    for name, data in (("fine-000000001-000000001", b"nonsense"), ("coarse-000000002-000000001", b""), ("other", b"x")):
        await directory.child(name).write_bytes(data)
    torn = (await directory.child(directory.relative(stored.path)).read_bytes())[:-9]
    await directory.child("fine-000000003-000000001").write_bytes(torn)
    assert set((await read_again(directory, clock)).jobs) == {RUNNING}
    await storages.aclose()


async def test_what_is_stored_stays_small(
    sampler: Sampler, dispatcher: Dispatcher, metrics: Metrics, clock: SetClock, tmp_path: Path
) -> None:
    """Fine blocks go when their hour is stored in a coarse one, and that goes after a day (E16)."""
    storages = Storages({})
    directory = storages.at(f"file://{tmp_path}/history")
    most = 0
    async with HistoryKeeper(metrics.history, directory, epoch=1, clock=clock) as keeper:
        await until(keeper.loaded.is_set)
        for _ in range(30 * 12):  # hours, of which every five minutes
            await sampled(sampler, dispatcher, clock, [50])
            clock.ms += 295_000
            await keeper.flush()
            names = [directory.relative(each.path) async for each in directory.list()]
            most = max(most, len(names))
    assert most <= 26 + 25
    book = await read_again(directory, clock)
    minute = clock.ms // 60_000
    values = book.jobs[RUNNING].track.values(Resolution.COARSE, 4, minute - 1440, minute)
    assert sum(value is not None for value in values) == 24 * 12
    await storages.aclose()


async def test_two_leaders_one_after_the_other_lose_nothing_of_each_other(
    sampler: Sampler, dispatcher: Dispatcher, metrics: Metrics, clock: SetClock, tmp_path: Path
) -> None:
    """The second reads what the first has written, and writes what the first does not touch (A11)."""
    storages = Storages({})
    directory = storages.at(f"file://{tmp_path}/history")
    first = HistoryKeeper(metrics.history, directory, epoch=1, clock=clock)
    await sampled(sampler, dispatcher, clock, [50] * 4)
    await first.flush()
    later = HistoryBook()
    backend = sampler._backend
    async with HistoryKeeper(later, directory, epoch=2, clock=clock) as second:
        await until(second.loaded.is_set)
        await sampled(Sampler(backend, later), dispatcher, clock, [50] * 4)
        await second.flush()
        await first.flush()  # it does not know yet that it was replaced
    book = await read_again(directory, clock, epoch=3)
    restarts = book.jobs[RUNNING].track.values(Resolution.FINE, 4, T0 // 5000, T0 // 5000 + 9)
    assert restarts == [1] * 8 + [None]
    await storages.aclose()
