"""Errors have a status, a stable code and a next step, and never the daemon's own traceback (E3)."""

from __future__ import annotations

import aiohttp
import pytest

from minflinkd.jobgraph.faults import GraphFault
from minflinkd.rpc.local import LocalNetwork
from tests.unit.rest.parties import FAILED, RUNNING, Dispatcher, ResourceManager

Http = aiohttp.ClientSession


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "not-found"),
        ("GET", "/v1/nothing", 404, "not-found"),
        ("GET", f"/jobs/{'9' * 32}", 404, "not-found"),
        ("GET", f"/jobs/{RUNNING}/vertices/nope", 404, "not-found"),
        ("GET", f"/jobs/{RUNNING}/checkpoints/details/99", 404, "not-found"),
        ("GET", "/taskmanagers/tm-ffffffffffff", 404, "not-found"),
        ("GET", "/jobs/xyz", 400, "invalid-id"),
        ("GET", "/jobs/..%2f..%2fetc", 400, "invalid-id"),
        ("GET", f"/jobs/{RUNNING}/checkpoints/details/-1", 400, "invalid-request"),
        ("GET", f"/jobs/{RUNNING}/checkpoints/details/7/subtasks/nobody", 404, "not-found"),
        ("GET", f"/jobs/{RUNNING}/checkpoints/details/x/subtasks/out", 400, "invalid-request"),
        ("GET", f"/jobs/{RUNNING}/exceptions?maxExceptions=many", 400, "invalid-request"),
        ("PATCH", f"/jobs/{RUNNING}?mode=stop", 400, "invalid-request"),
        ("PATCH", f"/jobs/{FAILED}", 409, "conflict"),
        ("DELETE", "/jobs", 405, "method-not-allowed"),
        ("POST", "/overview", 405, "method-not-allowed"),
    ],
)
async def test_an_error_has_a_status_a_code_and_a_hint(
    http: Http, method: str, path: str, status: int, code: str
) -> None:
    async with http.request(method, path) as response:
        body = await response.json()
    assert (response.status, body["code"]) == (status, code)
    assert body["errors"]
    assert body.keys() <= {"errors", "code", "consequence", "kind", "hint"}
    assert body["consequence"] == "refused"


async def test_a_dispatcher_that_is_away_is_503_with_retry_after(
    http: Http, network: LocalNetwork, dispatcher: Dispatcher
) -> None:
    """503 means that the same request may succeed later (E3)."""
    network.detach(dispatcher.mailbox)
    async with http.get("/jobs") as response:
        body = await response.json()
    assert (response.status, body["code"]) == (503, "unreachable")
    assert (body["consequence"], body["kind"]) == ("retryable", "cluster")
    assert response.headers["Retry-After"]


async def test_a_dispatcher_that_is_silent_is_503(http: Http, dispatcher: Dispatcher) -> None:
    """Every wait has a timeout and a defined outcome (A5)."""
    dispatcher.silent = True
    async with http.get("/overview") as response:
        assert (response.status, (await response.json())["code"]) == (503, "rpc-timeout")


async def test_a_bug_shows_no_traceback(http: Http, dispatcher: Dispatcher) -> None:
    """The daemon's own tracebacks are never shown (E3)."""
    dispatcher.broken = True
    async with http.get("/jobs") as response:
        text = await response.text()
    assert response.status == 500
    assert "Traceback" not in text
    assert ".py" not in text


async def test_a_bug_of_the_endpoint_itself_names_what_to_look_for(
    http: Http, dispatcher: Dispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log has the traceback, and the client gets an id with which to find it (E3)."""
    monkeypatch.setattr("minflinkd.rest.overviews.encode", lambda *_: 1 / 0)
    async with http.get("/jobs/overview") as response:
        body = await response.json()
    assert (response.status, body["code"]) == (500, "internal")
    assert "Zero" not in body["errors"][0]
    assert "log" in body["hint"]


async def test_every_fault_of_a_job_is_in_the_answer(http: Http, dispatcher: Dispatcher) -> None:
    """Each fault has the path, what is wrong and what would be right (J4)."""
    dispatcher.faults = (
        GraphFault(path="vertices.out.inputs[0]", problem="there is no vertex delay", hint="did you mean delays?"),
        GraphFault(path="vertices.py", problem="delays failed", traceback="Traceback ...\nKeyError: 'x'"),
    )
    async with http.post("/jobs", json={"name": "x"}) as response:
        body = await response.json()
    assert (response.status, body["code"]) == (400, "invalid-job-graph")
    assert body["faults"][0] == {
        "path": "vertices.out.inputs[0]",
        "problem": "there is no vertex delay",
        "hint": "did you mean delays?",
    }
    assert body["faults"][1]["traceback"].endswith("KeyError: 'x'")
    assert body["errors"][1] == "vertices.out.inputs[0]: there is no vertex delay (did you mean delays?)"


async def test_liveness_needs_no_party_and_readiness_all(
    http: Http, network: LocalNetwork, resource_manager: ResourceManager
) -> None:
    """The health endpoint is `/health` (E2)."""
    async with http.get("/health") as response:
        assert (response.status, (await response.json())["ready"]) == (200, True)
    network.detach(resource_manager.mailbox)
    async with http.get("/health/ready") as response:
        body = await response.json()
    assert (response.status, body["ready"]) == (503, False)
    assert "resourcemanager" in body["reasons"][0]
    async with http.get("/health/live") as response:
        assert response.status == 200
