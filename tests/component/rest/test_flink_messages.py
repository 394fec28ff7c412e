"""The contract with Flink's clients cannot drift: their own message classes read every answer (E1).

`tests/flink/standing.tsv` says of each of Flink's paths what it is here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import aiohttp
from msgspec.structs import replace

from minflinkd.rest.flink.rescales import uuid_of
from minflinkd.rest.plan import vertex_id
from minflinkd.rest.server import RestServer
from minflinkd.rpc import jobs as j
from minflinkd.rpc.messages import Done
from minflinkd.runtime.errors import ErrorInfo
from minflinkd.runtime.ids import VertexId
from tests.component.rest.test_checkpoint_answers import ANSWERS
from tests.component.rest.test_jars import as_json
from tests.flink.clients import Answer, faults, needs_flink
from tests.flink.paths import ANSWERED, STANDINGS, asked_for, filled, flink_paths, routed, standings, unnamed
from tests.unit.rest.checkpoint_statistics import COMPLETE, COMPLETE_OPTIONS
from tests.unit.rest.parties import FAILED, RUNNING, STARTED, TM, Dispatcher

TRIGGER = "0" * 31 + "7"
VALUES = {
    "jobid": RUNNING,
    "vertexid": vertex_id("flights"),
    "checkpointid": "7",
    "triggerid": TRIGGER,
    "taskmanagerid": TM,
    "applicationid": RUNNING,
    "subtaskindex": "0",
    "attempt": "1",
    "filename": "minflinkd.log",
    "datasetid": "0" * 32,
}
OUTCOMES = {
    "under way": j.OperationStatus(done=False),
    "done": j.OperationStatus(done=True, location="17"),
    "failed": j.OperationStatus(done=True, error=ErrorInfo(code="checkpoint-failed", message="no room")),
}
KINDS = [path for path in ANSWERS if path.startswith("checkpoints")]
# What a client may ask for besides GET, with its body. Each is answered in Flink's form.
CHANGES: Mapping[str, dict[str, Any]] = {
    "POST /jobs/:jobid/checkpoints": {"checkpointType": "FULL"},
    "POST /jobs/:jobid/savepoints": {"target-directory": "/s", "cancel-job": True, "formatType": "NATIVE"},
    "POST /jobs/:jobid/stop": {"targetDirectory": "/s", "drain": True, "formatType": "CANONICAL"},
    "POST /savepoint-disposal": {"savepoint-path": "/s/1"},
}


def test_the_table_has_every_path_of_flink_once() -> None:
    assert sorted(standings()) == sorted(path.name for path in flink_paths())
    assert set(standings().values()) <= STANDINGS


async def test_the_table_says_what_is_routed(server: RestServer) -> None:
    """To repair: correct the line of the path in tests/flink/standing.tsv."""
    routes = routed(server.routes)
    wrong = [
        f"{path.name}: {standing}, but there is {'a' if is_there else 'no'} route"
        for path in flink_paths()
        if (is_there := f"{path.method} {unnamed(path.path)}" in routes)
        != ((standing := standings()[path.name]) in ANSWERED)
    ]
    assert wrong == []


@needs_flink
async def test_flink_reads_every_answer_as_it_is(http: aiohttp.ClientSession, dispatcher: Dispatcher) -> None:
    """Nothing is missing, unknown or of another type in the answer to any question (E1)."""
    outcomes = list(OUTCOMES.values())

    async def status(_: Any) -> j.OperationStatus:
        return outcomes[0]

    async def disposal(_: Any) -> j.OperationStatus:
        return replace(outcomes[0], location="")

    rescaled = j.HotRestart(
        number=1,
        state=j.RestartState.COMPLETED,
        requested_ms=STARTED,
        phases={"stopped": 0.1},
        rescaled=(j.Rescaled(VertexId("flights"), 2, 4),),
    )
    for job_id, job in dispatcher.jobs.items():
        dispatcher.jobs[job_id] = replace(job, hot_restarts=(rescaled,))
    jar = await _uploaded(http)
    dispatcher.mailbox.on(j.GetSavepoint, status)
    dispatcher.mailbox.on(j.GetDisposal, disposal)
    answers = []
    for path in asked_for(flink_paths(), standings()):
        for job in (RUNNING, FAILED) if ":jobid" in path.path else ("",):
            for _ in OUTCOMES if ":triggerid" in path.path else ("",):
                values = {**VALUES, "jobid": job, "jarid": jar, "rescaleuuid": uuid_of(job, 1)}
                async with http.get("/v1" + filled(path.path, values)) as response:
                    assert response.status == 200, (path, await response.text())
                    answers.append(Answer(path.method, path.path, await response.json()))
                outcomes.append(outcomes.pop(0))
    assert not (wrong := await faults(answers)), "\n".join(wrong)


async def _uploaded(http: aiohttp.ClientSession) -> str:
    """Upload a job, and return the id of the file."""
    form = aiohttp.FormData()
    form.add_field("jarfile", as_json(), filename="job.json")
    async with http.post("/jars/upload", data=form) as response:
        assert response.status == 200, await response.text()
        return str((await response.json())["filename"]).rpartition("/")[2]


@needs_flink
async def test_flink_reads_every_kind_of_checkpoint(http: aiohttp.ClientSession, dispatcher: Dispatcher) -> None:
    """Completed, failed and pending ones, savepoints, and tasks that have not acknowledged (C30)."""
    dispatcher.checkpoints, dispatcher.checkpoint_options = COMPLETE, COMPLETE_OPTIONS
    answers = []
    for path in KINDS:
        async with http.get(f"/v1/jobs/{RUNNING}/{path}") as response:
            if response.status == 200:
                known = re.sub(r"(details)/\d+(/subtasks)?(/\w+)?", _named, path)
                answers.append(Answer("GET", f"/jobs/:jobid/{known}", await response.json()))
    assert len(answers) > 5
    assert not (wrong := await faults(answers)), "\n".join(wrong)


def _named(found: re.Match[str]) -> str:
    return "details/:checkpointid" + ("/subtasks/:vertexid" if found[2] else "")


@needs_flink
async def test_flink_reads_what_comes_back_for_a_change(http: aiohttp.ClientSession, dispatcher: Dispatcher) -> None:
    async def accept(_: Any) -> Done:
        return Done()

    for request in (j.TriggerSavepoint, j.CheckpointJob, j.DisposeSavepoint):
        dispatcher.mailbox.on(request, accept)
    answers, wanted = [], {path.name: path.status for path in flink_paths()}
    for name, body in CHANGES.items():
        method, _, path = name.partition(" ")
        async with http.request(method, "/v1" + filled(path, VALUES), json=body) as response:
            assert response.status == wanted[name], await response.text()
            answers.append(Answer(method, path, await response.json()))
    async with http.patch(f"/v1/jobs/{RUNNING}") as response:
        assert response.status == wanted["PATCH /jobs/:jobid"]
        answers.append(Answer("PATCH", "/jobs/:jobid", await response.json()))
    assert not (wrong := await faults(answers)), "\n".join(wrong)
