"""`/openapi.json` describes the endpoint as it is: every route, and what it takes (E5)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp.test_utils import make_mocked_request
from openapi_spec_validator import OpenAPIV31SpecValidator

from minflinkd.rest import route
from minflinkd.rest.declared import declare, flag
from minflinkd.rest.identity.roles import Role
from minflinkd.rest.server import RestServer
from tests.component.rest.access_world import World, bearer
from tests.component.rest.test_access import at
from tests.unit.rest.parties import RUNNING, TM, TaskManager

__all__ = ["at"]

Http = aiohttp.ClientSession
VALUES = {"jobid": RUNNING, "taskmanagerid": TM, "checkpointid": "7", "vertexid": "out", "filename": "session.log"}
CODE = re.compile(r"\b[A-Z]\d+[a-z]?\b")  # of a requirement


async def described(http: Http) -> dict[str, Any]:
    async with http.get("/openapi.json") as response:
        assert (response.status, response.content_type) == (200, "application/json")
        found: dict[str, Any] = await response.json()
    return found


def operations(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the operations by what `name` of their route returns."""
    return {f"{m.upper()} {path}": one for path, ones in document["paths"].items() for m, one in ones.items()}


def name(one: route.Route) -> str:
    return f"{one.method} {one.path}"


async def test_each_route_is_in_the_document_and_nothing_else(http: Http, server: RestServer) -> None:
    found = operations(await described(http))
    assert sorted(found) == sorted(map(name, server.routes))
    assert len(found) > 50
    names = [one["operationId"] for one in found.values()]
    assert len(set(names)) == len(names), "generated clients name their functions after them"


async def test_the_document_is_valid_openapi(http: Http) -> None:
    document = await described(http)
    assert document["openapi"].startswith("3.1")
    assert [str(error) for error in OpenAPIV31SpecValidator(document).iter_errors()] == []


async def test_each_operation_has_the_role_that_its_route_needs(http: Http, server: RestServer) -> None:
    """Only what anybody may ask needs no token (E41)."""
    document = await described(http)
    found = operations(document)
    assert {name(one): str(one.role) for one in server.routes} == {
        key: o["x-minflinkd-role"] for key, o in found.items()
    }
    assert document["security"] == [{"token": []}]
    assert {key for key, one in found.items() if one.get("security") == []} == {
        name(one) for one in server.routes if one.role is Role.ANYBODY
    }
    assert all(
        ("401" in one["responses"]) is (one.get("security") is None or "/login" in key) for key, one in found.items()
    )


async def test_who_may_look_reads_the_document_and_nobody_else(at: World) -> None:
    """It needs the lowest role, as other descriptions of the daemon do (E41)."""
    async with at.http.get("/openapi.json") as response:
        assert response.status == 401
    for path in ("/openapi.json", "/v1/openapi.json"):
        async with at.http.get(path, headers=bearer("view")) as response:
            assert response.status == 200


async def test_the_document_speaks_to_clients(http: Http) -> None:
    """Descriptions cite none of our requirements, and whole numbers are as long as times of day."""
    document = await described(http)
    assert not CODE.search(" ".join(texts(document, "description"))), "leave the code out of the docstring"
    for schema in parts(document["components"]["schemas"]):
        assert schema.get("type") != "integer" or schema["format"] == "int64"
        assert schema.get("type") != "array" or "items" in schema, "generators refuse a list that does not say of what"


async def test_what_an_answer_always_has_is_required(http: Http) -> None:
    """A default in our own types is for those who read the answer of an earlier version."""
    schemas = (await described(http))["components"]["schemas"]
    assert set(schemas["JobInfo"]["required"]) == set(schemas["JobInfo"]["properties"])
    assert "external_path" in schemas["Checkpoint"]["properties"]
    assert "external_path" not in schemas["Checkpoint"]["required"], "of a completed one alone"
    assert schemas["ErrorAnswer"]["required"] == ["errors", "code"]
    assert "required" not in schemas["SavepointTrigger"] or not schemas["SavepointTrigger"]["required"]


async def test_a_value_that_is_not_described_is_refused(
    http: Http, server: RestServer, task_manager: TaskManager
) -> None:
    """Each parameter of each route is read by its declaration (E3)."""
    task_manager.logs["taskmanager.out"] = b"printed"
    tried = 0
    for one in server.routes:
        path = re.sub(r"\{(\w+)\}", lambda found: VALUES.get(found[1], "x"), one.path)
        for parameter in one.query:
            kind = msgspec.json.schema(parameter.kind)
            if kind.get("type") == "string" and not {"pattern", "enum"} & kind.keys():
                continue  # any text will do
            body = {"json": {}} if one.body is not None else {}
            async with http.request(one.method, path, params={parameter.name: "~"}, **body) as response:
                assert (response.status, parameter.name) == (400, parameter.name), one.path
                assert (await response.json())["hint"], parameter.name
            tried += 1
    assert tried > 15


def test_a_handler_reads_only_what_its_route_declares() -> None:
    """Otherwise clients could not know of it."""
    known, hidden = flag("known", "declared"), flag("hidden", "not declared")
    request = make_mocked_request("GET", "/jobs?known&hidden=true")
    declare(request, (known,))
    assert known.of(request) is True
    with pytest.raises(AssertionError, match="GET /jobs does not declare"):
        hidden.of(request)


def texts(value: Any, key: str) -> Iterator[str]:
    """Yield all texts under this key."""
    for part in parts(value):
        if isinstance(part.get(key), str):
            yield part[key]


def parts(value: Any) -> Iterator[dict[str, Any]]:
    """Yield all mappings in a value."""
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from parts(inner)
