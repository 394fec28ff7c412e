"""What Flink's dashboard calls is answered, in Flink's form: nothing that a page shows is a 404 (E1)."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest
from msgspec.structs import replace

from minflinkd.rest.plan import vertex_id
from minflinkd.rpc.jobs import HotRestart, JobStatus, Rescaled, RestartState
from minflinkd.runtime.errors import ErrorInfo
from minflinkd.runtime.ids import VertexId
from tests.unit.rest.parties import FAILED, RUNNING, STARTED, TM, Dispatcher, TaskManager
from tests.waiting import until

Http = aiohttp.ClientSession

FLIGHTS = vertex_id("flights")
VERTEX = f"/jobs/{RUNNING}/vertices/{FLIGHTS}"


async def get(http: Http, path: str, status: int = 200) -> Any:
    async with http.get(path) as response:
        assert response.status == status, await response.text()
        return await response.json()


async def test_an_application_is_a_job(http: Http) -> None:
    """The overview counts the job by its state, and the details list it."""
    overview = await get(http, "/applications/overview")
    found = {each["id"]: each for each in overview["applications"]}
    assert found[RUNNING]["status"] == "RUNNING"
    assert found[RUNNING]["jobs"] == {"RUNNING": 1}
    assert found[FAILED]["status"] == "FAILED"
    details = await get(http, f"/applications/{RUNNING}")
    assert [job["jid"] for job in details["jobs"]] == [RUNNING]
    assert details["timestamps"]["RUNNING"] == STARTED  # since it was created, as all of these are RUNNING for Flink
    failures = await get(http, f"/applications/{FAILED}/exceptions")
    assert [each["jobId"] for each in failures["exceptionHistory"]["entries"]] == [FAILED]
    assert (await get(http, f"/applications/{RUNNING}/jobmanager/config"))[0]["key"] == "rest.port"


async def test_an_application_is_cancelled_with_its_job(http: Http, dispatcher: Dispatcher) -> None:
    async with http.post(f"/applications/{RUNNING}/cancel") as response:
        assert (response.status, await response.json()) == (202, {})
    assert dispatcher.jobs[RUNNING].status is JobStatus.CANCELED


async def test_the_dashboard_cancels_a_job_with_a_get(http: Http, dispatcher: Dispatcher) -> None:
    """But the page of another site cannot: a link to it is not followed."""
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    async with http.get(f"/jobs/{RUNNING}/yarn-cancel", headers=headers) as response:
        assert response.status == 403
    async with http.get(f"/jobs/{RUNNING}/yarn-cancel") as response:
        assert response.status == 202
    assert dispatcher.jobs[RUNNING].status is JobStatus.CANCELED


async def test_metrics_without_get_are_names_and_with_get_values(http: Http) -> None:
    """Values are texts, and unknown names are left out."""
    names = [each["id"] for each in await get(http, f"{VERTEX}/metrics")]
    assert {"numRecordsIn", "0.numRecordsIn", "1.numRecordsIn"} <= set(names)
    assert await get(http, f"{VERTEX}/metrics?get=numRecordsIn,0.numRecordsIn,nonsense") == [
        {"id": "numRecordsIn", "value": "5000"},
        {"id": "0.numRecordsIn", "value": "900"},
    ]
    assert await get(http, f"{VERTEX}/subtasks/1/metrics?get=numRecordsOut") == [{"id": "numRecordsOut", "value": "50"}]
    assert await get(http, f"{VERTEX}/watermarks") == [
        {"id": f"{index}.currentInputWatermark", "value": str(STARTED)} for index in (0, 1)
    ]
    assert await get(http, f"{VERTEX}/jm-operator-metrics") == []
    await get(http, f"{VERTEX}/subtasks/2/metrics", 404)


async def test_metrics_are_aggregated(http: Http) -> None:
    """By default in all ways; `agg` selects; a nonsensical one is refused."""
    [found] = await get(http, f"{VERTEX}/subtasks/metrics?get=numRecordsIn")
    assert found == {"id": "numRecordsIn", "min": 100, "max": 900, "avg": 500, "sum": 1000, "skew": 80}
    assert await get(http, f"{VERTEX}/subtasks/metrics?get=numRecordsIn&agg=max") == [
        {"id": "numRecordsIn", "max": 900}
    ]
    assert await get(http, f"{VERTEX}/subtasks/metrics?get=numRecordsIn&agg=max&subtasks=1-3") == [
        {"id": "numRecordsIn", "max": 100}
    ]
    assert await get(http, f"{VERTEX}/subtasks/metrics?get=numRecordsIn&subtasks=2-3") == []
    await get(http, f"{VERTEX}/subtasks/metrics?get=numRecordsIn&agg=median", 400)
    assert {"id": "numRestarts"} in await get(http, "/jobs/metrics")
    assert await get(http, "/jobs/metrics?get=numRestarts&agg=sum") == [{"id": "numRestarts", "sum": 1}]
    [rss] = await get(http, "/taskmanagers/metrics?get=minflinkd.process.rss&agg=max")
    assert rss == {"id": "minflinkd.process.rss", "max": 1e8}


async def test_jobs_task_managers_and_the_daemon_have_metrics(http: Http) -> None:
    assert {"id": "numberOfCompletedCheckpoints"} in await get(http, f"/jobs/{RUNNING}/metrics")
    assert await get(http, f"/taskmanagers/{TM}/metrics?get=minflinkd.process.rss") == [
        {"id": "minflinkd.process.rss", "value": "100000000"}
    ]
    assert await get(http, "/jobmanager/metrics?get=taskSlotsTotal") == [{"id": "taskSlotsTotal", "value": "2"}]


@pytest.mark.parametrize(
    "path",
    [
        f"{VERTEX}/subtasks/0",
        f"{VERTEX}/subtasks/0/attempts/1",
        f"{VERTEX}/subtasks/0/attempts/1/accumulators",
        f"{VERTEX}/subtasks/accumulators",
        f"{VERTEX}/accumulators",
        f"{VERTEX}/taskmanagers",
        f"{VERTEX}/subtasktimes",
        f"/jobs/{RUNNING}/accumulators",
        f"/jobs/{RUNNING}/jobmanager/config",
        f"/jobs/{RUNNING}/jobmanager/environment",
        f"/jobs/{RUNNING}/jobmanager/log-url",
        f"/jobs/{RUNNING}/taskmanagers/{TM}/log-url",
        "/jobmanager/environment",
        "/jobmanager/logs",
        "/jobmanager/thread-dump",
        "/jobmanager/profiler",
        f"/taskmanagers/{TM}/profiler",
        "/datasets",
    ],
)
async def test_what_a_page_shows_is_answered(http: Http, path: str) -> None:
    """All of these have the form that /openapi.json says (`described.py`)."""
    await get(http, path)


async def test_a_vertex_says_where_and_since_when_it_runs(http: Http, dispatcher: Dispatcher) -> None:
    job = dispatcher.jobs[RUNNING]
    first = replace(job.tasks[0], entered={"SCHEDULED": STARTED + 500, "RUNNING": STARTED + 800})
    dispatcher.jobs[RUNNING] = replace(job, tasks=(first, *job.tasks[1:]))
    times, _ = (await get(http, f"{VERTEX}/subtasktimes"))["subtasks"]
    assert times["endpoint"] == TM
    assert (times["timestamps"]["RUNNING"], times["timestamps"]["FINISHED"]) == (STARTED + 800, 0)
    [here] = (await get(http, f"{VERTEX}/taskmanagers"))["taskmanagers"]
    assert (here["taskmanager-id"], here["status-counts"]["RUNNING"]) == (TM, 2)


async def test_backpressure_is_a_share_of_the_time(http: Http, dispatcher: Dispatcher) -> None:
    """Over the attempt's life as long as nobody has looked before."""
    job = dispatcher.jobs[RUNNING]
    held = replace(job.tasks[0].metrics, backpressured_ms=1e15)
    dispatcher.jobs[RUNNING] = replace(job, tasks=(replace(job.tasks[0], metrics=held), *job.tasks[1:]))
    found = await get(http, f"{VERTEX}/backpressure")
    assert (found["status"], found["backpressureLevel"], found["subtasks"][0]["ratio"]) == ("ok", "high", 1.0)


async def test_the_daemon_shows_the_end_of_its_log(http: Http) -> None:
    [log] = (await get(http, "/jobmanager/logs"))["logs"]
    for path in ("/jobmanager/log", f"/jobmanager/logs/{log['name']}"):
        async with http.get(path) as response:
            assert (response.status, await response.text()) == (200, "the daemon's last words\n")
            assert (response.headers["X-Log-Offset"], response.headers["X-Log-Size"]) == ("1000", "1024")
        for query, part in [
            ("offset=0", "the daemon's last words\n"),
            ("offset=1018", "words\n"),
            ("offset=1024", ""),
            ("offset=-6&length=5", "words"),
            ("offset=5&length=5", ""),
        ]:
            async with http.get(f"{path}?{query}") as response:
                assert (response.status, await response.text()) == (200, part), query
    async with http.get("/jobmanager/stdout") as response:
        assert (response.status, await response.text()) == (200, "")
    await get(http, "/jobmanager/logs/passwd", 404)


async def test_the_daemons_threads_and_tasks_are_shown(http: Http) -> None:
    threads = (await get(http, "/jobmanager/thread-dump"))["threadInfos"]
    assert any(each["threadName"] == "MainThread" for each in threads)
    assert any("task of the daemon" in each["stringifiedThreadInfo"] for each in threads)


async def test_an_ended_job_has_a_result(http: Http) -> None:
    running = await get(http, f"/jobs/{RUNNING}/execution-result")
    assert running == {"status": {"id": "IN_PROGRESS"}, "job-execution-result": None}
    failed = (await get(http, f"/jobs/{FAILED}/execution-result"))["job-execution-result"]
    assert (failed["application-status"], failed["net-runtime"]) == ("FAILED", 9000)
    assert "selectt" in failed["failure-cause"]["stack-trace"]


async def test_what_flink_refuses_is_refused_with_its_sentence(http: Http) -> None:
    async with http.patch(f"/jobs/{RUNNING}/rescaling?parallelism=4") as response:
        assert response.status == 503
        assert "Rescaling is temporarily disabled. See FLINK-12312." in (await response.json())["errors"][0]
    assert "has been removed" in (await get(http, f"/jobs/{RUNNING}/yarn-stop", 409))["errors"][0]
    async with http.post("/jobmanager/profiler", json={"mode": "CPU", "duration": 30}) as response:
        assert "async-profiler is not part of minflinkd" in (await response.json())["errors"][0]
    async with http.patch(f"/jobs/{RUNNING}/clientHeartbeat", json={"expiredTimestamp": 1}) as response:
        assert response.status == 202
    async with http.delete("/datasets/x") as response:
        assert response.status == 404


async def test_rescales_are_hot_restarts_that_changed_the_parallelism(http: Http, dispatcher: Dispatcher) -> None:
    """Other hot restarts are none."""
    rescaled = (Rescaled(VertexId("flights"), 2, 4), Rescaled(VertexId("delays"), 2, 4))
    boom = ErrorInfo(code="user-code", message="boom")
    restarts = (
        HotRestart(number=3, state=RestartState.HANDING_OVER, requested_ms=STARTED + 9000, rescaled=rescaled),
        HotRestart(number=2, state=RestartState.ROLLED_BACK, requested_ms=STARTED, error=boom),
        HotRestart(
            number=1,
            state=RestartState.COMPLETED,
            requested_ms=STARTED,
            phases={"stopped": 0.1, "first_checkpoint": 0.5},
            rescaled=rescaled,
        ),
    )
    dispatcher.jobs[RUNNING] = replace(dispatcher.jobs[RUNNING], hot_restarts=restarts)
    path = f"/jobs/{RUNNING}/rescales"
    history = await get(http, f"{path}/history")
    assert [(each["rescaleAttemptId"], each["terminalState"]) for each in history] == [(3, None), (1, "COMPLETED")]
    vertex = history[1]["vertices"][FLIGHTS]
    assert (vertex["preRescaleParallelism"], vertex["postRescaleParallelism"]) == (2, 4)
    assert await get(http, f"{path}/details/{history[1]['rescaleUuid']}") == history[1]
    await get(http, f"{path}/details/{'0' * 32}", 404)
    overview = await get(http, f"{path}/overview")
    assert overview["rescalesCounts"] == {"ignored": 0, "inProgress": 1, "completed": 1, "failed": 0}
    assert overview["latest"]["completed"] == history[1]
    assert (await get(http, f"{path}/summary"))["completedRescalesDurationStatsInMillis"]["max"] == 500
    assert (await get(http, f"{path}/config"))["rescaleHistoryMax"] == 32


async def test_a_thread_dump_of_a_task_manager(http: Http) -> None:
    """What is not known is said, too."""
    threads = (await get(http, f"/taskmanagers/{TM}/thread-dump"))["threadInfos"]
    assert [each["threadName"] for each in threads] == ["(not known)", "main"]


async def test_a_flame_graph_is_made_of_samples(http: Http, task_manager: TaskManager) -> None:
    """The first answer says that they are being taken; the type and the partition select among them."""
    first = await get(http, f"{VERTEX}/flamegraph?type=full")
    assert first == {"endTimestamp": -3, "data": None}
    found: Any = None

    async def taken() -> bool:
        nonlocal found
        found = await get(http, f"{VERTEX}/flamegraph?type=full")
        return bool(found["endTimestamp"] > 0)

    await until(taken, "samples")
    assert (found["data"]["name"], found["data"]["value"]) == ("root", 5)
    [run] = found["data"]["children"][0]["children"]
    assert [(each["name"], each["value"]) for each in run["children"]] == [("sleep", 3), ("add", 2)]
    assert (await get(http, f"{VERTEX}/flamegraph?type=on_cpu"))["data"]["value"] == 2
    assert (await get(http, f"{VERTEX}/flamegraph?type=off_cpu&subtaskindex=1"))["data"]["value"] == 0
    assert task_manager.samples == 1


async def test_an_ended_vertex_has_no_flame_graph(http: Http, dispatcher: Dispatcher) -> None:
    job = dispatcher.jobs[RUNNING]
    dispatcher.jobs[RUNNING] = replace(job, tasks=(replace(job.tasks[0], end_ms=STARTED), *job.tasks[1:]))
    assert await get(http, f"{VERTEX}/flamegraph") == {"endTimestamp": -1, "data": None}


async def test_the_cluster_is_stopped(http: Http, stopped: asyncio.Event) -> None:
    async with http.delete("/cluster") as response:
        assert (response.status, await response.json()) == (200, {})
    assert stopped.is_set()
