"""The answers have Flink's paths, statuses and field names (E1)."""

from __future__ import annotations

import re
from typing import Any

import aiohttp
import msgspec
import pytest

from minflinkd.checkpoint.offsets import Offsets, encode
from minflinkd.rpc.local import LocalNetwork
from minflinkd.runtime.resource_profile import parse_profile
from tests.unit.rest.parties import FAILED, RUNNING, STARTED, TM, TRACEBACK, Dispatcher, ResourceManager, failing

Http = aiohttp.ClientSession

TASK_STATES = [
    "created",
    "scheduled",
    "deploying",
    "running",
    "finished",
    "canceling",
    "canceled",
    "failed",
    "reconciling",
    "initializing",
]


async def get(http: Http, path: str) -> Any:
    async with http.get(path) as response:
        assert response.status == 200, await response.text()
        assert response.content_type == "application/json"
        return await response.json()


@pytest.mark.parametrize("path", ["/config", "/overview", "/jobs", f"/jobs/{RUNNING}/status", "/taskmanagers"])
async def test_the_v1_prefix_is_optional(http: Http, path: str) -> None:
    """Flink's CLI uses /v1, and its dashboard no prefix (E1)."""
    assert await get(http, f"/v1{path}") == await get(http, path)


async def test_config_has_what_the_dashboard_reads_and_names_the_blob_server(http: Http) -> None:
    """A client finds there where to upload artifacts (E1, E2)."""
    config = await get(http, "/config")
    wanted = {"refresh-interval", "timezone-name", "timezone-offset", "flink-version", "flink-revision", "features"}
    assert wanted <= config.keys()
    assert config["features"].keys() == {"web-submit", "web-cancel", "web-rescale", "web-history"}
    assert config["minflinkd"] == {"version": "0.1.0", "blob-server": "http://127.0.0.1:50100"}


async def test_overview_counts_jobs_and_slots(http: Http) -> None:
    """The answer is a ClusterOverviewWithVersion (E1)."""
    overview = await get(http, "/overview")
    extras = overview.pop("minflinkd")
    assert overview == {
        "taskmanagers": 1,
        "slots-total": 2,
        "slots-available": 1,
        "taskmanagers-blocked": 0,
        "slots-free-and-blocked": 0,
        "jobs-running": 1,
        "jobs-finished": 0,
        "jobs-cancelled": 0,
        "jobs-failed": 1,
        "flink-version": "2.3.0",
        "flink-commit": "minflinkd-0.1.0",
    }
    assert extras["starting"] == [{"id": "tm-ba9876543210", "since": STARTED, "waiting": ""}]
    assert extras["taskmanagers-lost"] == 1
    assert extras["leader"] == {"name": "alpha:17", "url": "http://alpha:8081", "since": STARTED, "epoch": 7}
    assert extras["standbys"] == [{"name": "beta:18", "url": "http://beta:8081"}]


async def test_jobs_lists_ids_and_states(http: Http) -> None:
    """The answer is a JobIdsWithStatusOverview (E1)."""
    jobs = await get(http, "/jobs")
    assert jobs == {"jobs": [{"id": RUNNING, "status": "RUNNING"}, {"id": FAILED, "status": "FAILED"}]}


async def test_jobs_overview_has_every_task_state(http: Http) -> None:
    """The answer is a MultipleJobsDetails (E1)."""
    first = (await get(http, "/jobs/overview"))["jobs"][0]
    assert first.keys() == {
        "jid", "name", "start-time", "end-time", "duration", "state", "last-modification", "tasks",
        "jobType", "schedulerType", "pending-operators", "minflinkd",
    }  # fmt: skip
    assert (first["jobType"], first["pending-operators"]) == ("STREAMING", 0)
    assert first["minflinkd"] == {
        "on-trial": False,
        "restarts": 1,
        "restarting-repeatedly": None,
        "owner": "",
        "next-restart": None,
        "waiting": "2 slots of one TaskManager are needed; 1 TaskManager is registered",
        "last-failure": None,
        "checkpoints": {
            "completed": STARTED + 5300,
            "duration": 300,
            "interval": 5000,
            "failed": -1,
            "failure-message": "",
            "consecutive-failures": 0,
        },
    }
    assert first["tasks"] == {"total": 2, **dict.fromkeys(TASK_STATES, 0), "running": 2}
    assert (first["end-time"], first["state"]) == (-1, "RUNNING")
    assert first["duration"] > 0


async def test_jobs_overview_says_where_a_job_fails_that_restarts_repeatedly(
    http: Http, dispatcher: Dispatcher
) -> None:
    """In the words of the job itself: how often, the task and the TaskManager of the last failure (E1)."""
    dispatcher.jobs[RUNNING] = failing()
    found = (await get(http, "/jobs/overview"))["jobs"][0]["minflinkd"]["restarting-repeatedly"]
    assert (found["failures"], found["task"], found["taskmanager-id"]) == (7, "out", TM)
    assert found == (await get(http, f"/jobs/{RUNNING}"))["minflinkd"]["restarting-repeatedly"]


async def test_a_job_has_flinks_details(http: Http) -> None:
    """The answer is a JobDetailsInfo (E1)."""
    job = await get(http, f"/jobs/{RUNNING}")
    assert job.keys() == {
        "jid", "application-id", "name", "isStoppable", "state", "job-type", "schedulerType", "start-time",
        "end-time", "duration", "maxParallelism", "now", "timestamps", "vertices", "status-counts", "plan",
        "pending-operators", "minflinkd",
    }  # fmt: skip
    assert job["timestamps"]["RUNNING"] == STARTED + 700
    assert job["timestamps"]["FAILED"] == job["timestamps"]["RECONCILING"] == 0
    assert job["status-counts"] == {**{state.upper(): 0 for state in TASK_STATES}, "RUNNING": 2}
    assert job["minflinkd"]["restarts"] == 1
    assert job["minflinkd"]["recoveries"][0]["checkpoint-id"] == 3
    assert job["minflinkd"]["submission"] == {"stored": 0.01, "running": 0.7}
    assert job["minflinkd"]["waiting"] == ["2 slots of one TaskManager are needed; 1 TaskManager is registered"]


async def test_a_vertex_is_a_task_under_a_hex_id(http: Http) -> None:
    """Flink's CLI and dashboard parse a job vertex's id as 32 hex digits (E1)."""
    vertex = (await get(http, f"/jobs/{RUNNING}"))["vertices"][0]
    assert re.fullmatch("[0-9a-f]{32}", vertex["id"])
    assert vertex.keys() == {
        "id", "slotSharingGroupId", "name", "maxParallelism", "parallelism", "status",
        "start-time", "end-time", "duration", "tasks", "metrics", "minflinkd",
    }  # fmt: skip
    assert (vertex["name"], vertex["parallelism"], vertex["status"]) == ("flights -> delays", 2, "RUNNING")
    assert vertex["metrics"]["read-records"] == 5000
    assert vertex["minflinkd"]["attempt-read-records"] == 1000
    assert vertex["metrics"].keys() == {
        "read-bytes", "read-bytes-complete", "write-bytes", "write-bytes-complete", "read-records",
        "read-records-complete", "write-records", "write-records-complete", "accumulated-backpressured-time",
        "accumulated-idle-time", "accumulated-busy-time",
    }  # fmt: skip
    assert vertex["minflinkd"]["task-id"] == "flights"
    assert vertex["minflinkd"]["batch-id"] == 41


async def test_a_jobs_rows_are_those_of_its_sources_and_sinks(http: Http) -> None:
    """Rows that pass from one task to the next through an exchange are not counted again."""
    extras = (await get(http, f"/jobs/{RUNNING}"))["minflinkd"]
    assert (extras["source-records"], extras["sink-records"]) == (5000, 20)


async def test_the_plan_has_an_edge_where_a_task_reads_an_exchange(http: Http) -> None:
    """The answer is a JobPlanInfo, whose nodes are tasks (E1)."""
    plan = (await get(http, f"/jobs/{RUNNING}/plan"))["plan"]
    first, second = plan["nodes"]
    assert plan.keys() == {"jid", "name", "type", "nodes"}
    assert first["inputs"] == []
    assert second["inputs"] == [{"num": 0, "id": first["id"], "ship_strategy": "EXCHANGE", "exchange": "durable"}]
    assert first["description"] == "flights (source) -> delays (sql)"


async def test_a_jobs_config_hides_secrets(http: Http) -> None:
    """The answer is a JobConfigInfo (E1). Sensitive values are masked (E40)."""
    config = await get(http, f"/jobs/{RUNNING}/config")
    execution = config["execution-config"]
    assert execution.keys() == {
        "restart-strategy", "job-parallelism", "object-reuse-mode", "user-config",
    }  # fmt: skip
    assert execution["user-config"] == {"minutes": "60", "db_password": "******"}
    assert execution["restart-strategy"] == "fixed-delay (at most 3 attempts)"


async def test_the_daemons_config_hides_secrets_and_says_where_options_were_set(http: Http) -> None:
    """Sensitive values are masked everywhere (E40); where they are from is said of them, too (E17)."""
    assert await get(http, "/jobmanager/config") == [
        {"key": "rest.port", "value": "8081", "minflinkd": {"origins": []}},
        {
            "key": "security.token-secret",
            "value": "******",
            "minflinkd": {
                "origins": [{"layer": "file", "place": "/etc/minflinkd/minflinkd.yaml:12", "entry": ""}],
            },
        },
    ]


async def test_the_traceback_of_user_code_is_in_the_exceptions(http: Http) -> None:
    """The answer is a JobExceptionsInfoWithHistory (E1)."""
    exceptions = await get(http, f"/jobs/{FAILED}/exceptions")
    assert exceptions.keys() == {"root-exception", "timestamp", "all-exceptions", "truncated", "exceptionHistory"}
    assert TRACEBACK in exceptions["root-exception"]
    entry = exceptions["exceptionHistory"]["entries"][0]
    assert (entry["exceptionName"], entry["taskName"], entry["taskManagerId"]) == ("user-code", "flights -> delays", TM)
    assert entry["stacktrace"].startswith("[user-code] delays failed")
    assert exceptions["all-exceptions"][0]["exception"] == entry["stacktrace"]


async def test_a_job_without_failures_has_no_root_exception(http: Http) -> None:
    exceptions = await get(http, f"/jobs/{RUNNING}/exceptions")
    assert (exceptions["root-exception"], exceptions["timestamp"]) == (None, None)
    assert exceptions["exceptionHistory"] == {"entries": [], "truncated": False}


async def test_max_exceptions_truncates(http: Http) -> None:
    exceptions = await get(http, f"/jobs/{FAILED}/exceptions?maxExceptions=0")
    assert exceptions["exceptionHistory"] == {"entries": [], "truncated": True}


@pytest.mark.parametrize("name", ["flights", "hex"])
async def test_a_vertex_is_found_by_flinks_id_and_by_its_own(http: Http, name: str) -> None:
    """The answer is a JobVertexDetailsInfo (E1)."""
    wanted = (await get(http, f"/jobs/{RUNNING}"))["vertices"][0]["id"] if name == "hex" else name
    vertex = await get(http, f"/jobs/{RUNNING}/vertices/{wanted}")
    assert {"id", "name", "parallelism", "maxParallelism", "now", "subtasks", "aggregated"} <= vertex.keys()
    subtask, _ = vertex["subtasks"]
    assert subtask["taskmanager-id"] == TM
    assert subtask["start-time"] == subtask["start_time"] == STARTED + 500


async def test_a_checkpoints_tasks_have_the_vertices_ids(http: Http) -> None:
    """A checkpoint's details of a task are found under the id of the job's vertex (E1)."""
    vertices = [vertex["id"] for vertex in (await get(http, f"/jobs/{RUNNING}"))["vertices"]]
    checkpoint = await get(http, f"/jobs/{RUNNING}/checkpoints/details/7")
    assert list(checkpoint["tasks"]) == vertices
    assert checkpoint["tasks"][vertices[0]]["minflinkd"]["task-id"] == "flights"


@pytest.mark.parametrize("by", ["the vertex's id", "the task's own id"])
async def test_a_tasks_part_of_a_checkpoint_is_found(http: Http, by: str) -> None:
    """A task's part is shown as Flink's subtasks of one vertex (C30)."""
    vertex = (await get(http, f"/jobs/{RUNNING}"))["vertices"][1]["id"] if by == "the vertex's id" else "out"
    part = await get(http, f"/jobs/{RUNNING}/checkpoints/details/7/subtasks/{vertex}")
    assert (part["subtasks"][0]["index"], part["minflinkd"]["task-id"]) == (0, "out")


async def test_checkpoints_and_their_config_are_answered(http: Http) -> None:
    assert (await get(http, f"/jobs/{RUNNING}/checkpoints"))["counts"]["completed"] == 7
    assert (await get(http, f"/jobs/{RUNNING}/checkpoints/config"))["interval"] == 5000


async def test_offsets_have_the_form_of_their_file(http: Http) -> None:
    """What the path answers can be put into a job's directory as `offsets.json` (C26)."""
    async with http.get(f"/jobs/{RUNNING}/offsets") as response:
        body = await response.read()
    read = msgspec.json.decode(body, type=Offsets)
    assert read.latest() == {"flights": {"0": 17}}
    assert encode(read) == body


async def test_taskmanagers_have_flinks_fields(http: Http) -> None:
    """The answer is a TaskManagersInfo (E1)."""
    (info,) = (await get(http, "/taskmanagers"))["taskmanagers"]
    assert {
        "id", "path", "dataPort", "jmxPort", "timeSinceLastHeartbeat", "slotsNumber", "freeSlots", "totalResource",
        "freeResource", "hardware", "memoryConfiguration", "blocked",
    } <= info.keys()  # fmt: skip
    assert (info["slotsNumber"], info["freeSlots"]) == (2, 1)
    assert info["hardware"]["physicalMemory"] == 24 * 1024**3
    assert info["minflinkd"]["session"] == "ready"
    assert info["minflinkd"]["slots"][0]["job-id"] == RUNNING


async def test_a_taskmanager_shows_who_holds_its_slots(http: Http) -> None:
    """The answer is a TaskManagerDetailsInfo (E1)."""
    info = await get(http, f"/taskmanagers/{TM}")
    assert [slot["jobId"] for slot in info["allocatedSlots"]] == [RUNNING]


async def test_a_taskmanager_shows_the_memory_and_the_collectors_of_its_jvm(http: Http) -> None:
    """In Flink's form, from what the last heartbeat said (E1, E17)."""
    metrics = (await get(http, f"/taskmanagers/{TM}"))["metrics"]
    assert (metrics["heapUsed"], metrics["heapCommitted"], metrics["heapMax"]) == (4e8, 8e8, 1e9)
    assert (metrics["nonHeapUsed"], metrics["nonHeapMax"]) == (2e8, -1)
    assert (metrics["directCount"], metrics["directUsed"], metrics["directMax"]) == (3, 3e6, 4e6)
    assert metrics["garbageCollectors"] == [
        {"name": "G1_Old_Generation", "count": 0, "time": 0},
        {"name": "G1_Young_Generation", "count": 31, "time": 420},
    ]


async def test_a_taskmanager_without_a_session_has_no_collectors(http: Http, resource_manager: ResourceManager) -> None:
    resource_manager.metrics = {"supervisor.rss_bytes": 9e7}
    metrics = (await get(http, f"/taskmanagers/{TM}"))["metrics"]
    assert (metrics["heapUsed"], metrics["garbageCollectors"]) == (0, [])


async def test_logs_are_listed_by_name(http: Http) -> None:
    """The answer is a LogListInfo (E1)."""
    logs = (await get(http, f"/taskmanagers/{TM}/logs"))["logs"]
    assert [log["name"] for log in logs] == ["session.log", "taskmanager.log"]
    assert logs[0].keys() == {"name", "size", "mtime"}


async def test_a_job_states_the_guarantee_of_each_sink(http: Http) -> None:
    """The job's details show it (J13), with the latest checkpoint whose rows are in the target (K1)."""
    sinks = (await get(http, f"/jobs/{RUNNING}"))["minflinkd"]["sinks"]
    seen = {"published": None, "unpublished": 0, "compactions": None}
    assert sinks == [{"vertex": "out", "format": "parquet", "delivery": "exactly-once"} | seen]


async def test_it_is_known_how_long_an_attempt_was_in_each_state(http: Http) -> None:
    """The dashboard cannot show a vertex without these five states. What is not known is -1, as in Flink (E1)."""
    vertex = await get(http, f"/jobs/{RUNNING}/vertices/flights")
    durations = vertex["subtasks"][0]["status-duration"]
    assert durations.keys() == {"CREATED", "SCHEDULED", "DEPLOYING", "INITIALIZING", "RUNNING"}
    assert (durations["CREATED"], durations["SCHEDULED"], durations["RUNNING"] > 0) == (-1, 200, True)
    of_both = dict.fromkeys(("min", "max", "avg", "median", "p25", "p75", "p95"), 200) | {"sum": 400}
    assert vertex["aggregated"]["status-duration"]["SCHEDULED"] == of_both
    assert vertex["aggregated"]["metrics"]["write-records"]["sum"] == 500
    assert vertex["subtasks"][0]["metrics"]["read-bytes-complete"] is True, "otherwise it is shown as loading"


async def test_a_taskmanager_that_does_not_say_what_its_slots_have_has_its_hosts_cores(
    http: Http,
) -> None:
    """What of the cores is free is not known while a slot is taken (E1)."""
    (manager,) = (await get(http, "/taskmanagers"))["taskmanagers"]
    assert (manager["totalResource"]["cpuCores"], manager["hardware"]["cpuCores"]) == (2.0, 2)
    assert manager["freeResource"]["cpuCores"] == -1
    assert manager["assignedTasks"] == 1
    (slot,) = (await get(http, f"/taskmanagers/{TM}"))["allocatedSlots"]
    assert (slot["jobId"], slot["assignedTasks"], slot["resource"]["cpuCores"]) == (RUNNING, 1, -1)


async def test_a_taskmanager_says_what_its_slots_have_and_what_of_it_is_free(
    http: Http, resource_manager: ResourceManager
) -> None:
    """In Flink's words and units. One of its two slots is taken (R40, E1)."""
    resource_manager.slot_profile = parse_profile({"cpu": 0.5, "memory": "1 GiB", "disk": "10 GB", "gpu": 1})
    info = await get(http, f"/taskmanagers/{TM}")
    one = {
        "cpuCores": 0.5,
        "taskHeapMemory": 1024,
        "taskOffHeapMemory": 0,
        "managedMemory": 0,
        "networkMemory": 0,
        "extendedResources": {"gpu": 1.0},
    }
    two = {**one, "cpuCores": 1.0, "taskHeapMemory": 2048, "extendedResources": {"gpu": 2.0}}
    assert (info["totalResource"], info["freeResource"]) == (two, one)
    assert info["allocatedSlots"][0]["resource"] == one
    assert info["minflinkd"]["each-slot"] == {"cpu": 0.5, "memory": 2**30, "disk": 10**10, "gpu": 1}


async def test_taskmanagers_are_shown_while_the_dispatcher_is_away(
    http: Http, network: LocalNetwork, dispatcher: Dispatcher
) -> None:
    """Only it knows the tasks; everything else is the ResourceManager's (E1)."""
    network.detach(dispatcher.mailbox)
    (manager,) = (await get(http, "/taskmanagers"))["taskmanagers"]
    assert (manager["id"], manager["assignedTasks"]) == (TM, 0)
