"""Flink's endpoints for savepoints."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest

from minflinkd.rpc import jobs as j
from minflinkd.rpc.messages import Done
from minflinkd.runtime.errors import ErrorInfo
from tests.unit.rest.parties import RUNNING, Dispatcher

TRIGGER = "0" * 31 + "7"


@pytest.fixture
def asked(dispatcher: Dispatcher) -> list[Any]:
    """Return what the Dispatcher is asked. It completes savepoints at once, and fails disposals."""
    asked: list[Any] = []

    async def trigger(request: Any) -> Done:
        asked.append(request)
        return Done()

    async def status(request: Any) -> j.OperationStatus:
        asked.append(request)
        return j.OperationStatus(done=True, location="file:///savepoints/savepoint-1")

    async def disposal(request: Any) -> j.OperationStatus:
        asked.append(request)
        return j.OperationStatus(done=True, error=ErrorInfo(code="no-checkpoint-there", message="there is none"))

    dispatcher.mailbox.on(j.TriggerSavepoint, trigger)
    dispatcher.mailbox.on(j.CheckpointJob, trigger)
    dispatcher.mailbox.on(j.GetSavepoint, status)
    dispatcher.mailbox.on(j.DisposeSavepoint, trigger)
    dispatcher.mailbox.on(j.GetDisposal, disposal)
    return asked


async def test_a_savepoint_is_triggered_and_followed(http: aiohttp.ClientSession, asked: list[Any]) -> None:
    """The answers have Flink's fields (C24)."""
    body = {"target-directory": "/savepoints", "cancel-job": False, "formatType": "CANONICAL", "triggerId": TRIGGER}
    async with http.post(f"/jobs/{RUNNING}/savepoints", json=body) as answer:
        assert (answer.status, await answer.json()) == (202, {"request-id": TRIGGER})
    async with http.get(f"/jobs/{RUNNING}/savepoints/{TRIGGER}") as answer:
        assert await answer.json() == {
            "status": {"id": "COMPLETED"},
            "operation": {"location": "file:///savepoints/savepoint-1"},
        }
    assert asked[0] == j.TriggerSavepoint(job_id=RUNNING, trigger_id=TRIGGER, directory="/savepoints")


async def test_a_job_is_stopped_with_a_savepoint(http: aiohttp.ClientSession, asked: list[Any]) -> None:
    """An empty body is enough (C24)."""
    async with http.post(f"/jobs/{RUNNING}/stop", json={"targetDirectory": "/s", "drain": True}) as answer:
        assert answer.status == 202
    async with http.post(f"/jobs/{RUNNING}/stop") as answer:
        assert answer.status == 202
    assert [(request.directory, request.stop, request.drain) for request in asked] == [
        ("/s", True, True),
        ("", True, False),
    ]


async def test_a_disposal_says_why_it_failed(http: aiohttp.ClientSession, asked: list[Any]) -> None:
    """`class` is the error's code (C24)."""
    async with http.post("/savepoint-disposal", json={"savepoint-path": "/savepoints/x"}) as answer:
        trigger = (await answer.json())["request-id"]
    async with http.get(f"/savepoint-disposal/{trigger}") as answer:
        cause = (await answer.json())["operation"]["failure-cause"]
    assert cause["class"] == "no-checkpoint-there"
    assert "there is none" in cause["stack-trace"]
    assert asked[0].path == "/savepoints/x"


async def test_a_checkpoint_is_triggered_and_followed(
    http: aiohttp.ClientSession, dispatcher: Dispatcher, asked: list[Any]
) -> None:
    """The answers have Flink's fields (C20, E1)."""
    answers = [
        j.OperationStatus(done=False),
        j.OperationStatus(done=True, location="17"),
        j.OperationStatus(done=True, error=ErrorInfo(code="checkpoint-failed", message="declined")),
    ]

    async def status(request: j.GetSavepoint) -> j.OperationStatus:
        return answers.pop(0)

    dispatcher.mailbox.on(j.GetSavepoint, status)
    body = {"checkpointType": "INCREMENTAL", "triggerId": TRIGGER}
    async with http.post(f"/jobs/{RUNNING}/checkpoints", json=body) as answer:
        assert (answer.status, await answer.json()) == (202, {"request-id": TRIGGER})
    assert asked == [j.CheckpointJob(job_id=RUNNING, trigger_id=TRIGGER)]
    path = f"/jobs/{RUNNING}/checkpoints/{TRIGGER}"
    async with http.get(path) as answer:
        assert await answer.json() == {"status": {"id": "IN_PROGRESS"}, "operation": None}
    async with http.get(path) as answer:
        assert await answer.json() == {"status": {"id": "COMPLETED"}, "operation": {"checkpointId": 17}}
    async with http.get(path) as answer:
        assert (await answer.json())["operation"]["failureCause"]["class"] == "checkpoint-failed"


async def test_a_full_checkpoint_is_asked_for(http: aiohttp.ClientSession, asked: list[Any]) -> None:
    """It refers to no file of an earlier one (C12)."""
    async with http.post(
        f"/jobs/{RUNNING}/checkpoints", json={"checkpointType": "FULL", "triggerId": TRIGGER}
    ) as answer:
        assert answer.status == 202
    assert asked == [j.CheckpointJob(job_id=RUNNING, trigger_id=TRIGGER, full=True)]


async def test_a_job_is_cancelled_with_a_savepoint(http: aiohttp.ClientSession, asked: list[Any]) -> None:
    """Flink's `cancel -s` asks for it (C24)."""
    body = {"target-directory": "/s", "cancel-job": True, "triggerId": TRIGGER}
    async with http.post(f"/jobs/{RUNNING}/savepoints", json=body) as answer:
        assert answer.status == 202
    assert asked == [j.TriggerSavepoint(job_id=RUNNING, trigger_id=TRIGGER, directory="/s", cancel=True)]


@pytest.mark.parametrize("body", [{"cancel-job": "yes"}, {"triggerId": "../x"}, {"target-directory": 7}])
async def test_what_is_not_understood_is_refused(
    http: aiohttp.ClientSession, asked: list[Any], body: dict[str, Any]
) -> None:
    """E3."""
    async with http.post(f"/jobs/{RUNNING}/savepoints", json=body) as answer:
        assert answer.status == 400
        assert (await answer.json())["code"] == "invalid-request"
    assert asked == []
