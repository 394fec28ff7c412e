"""HTTP asks who sends a request, and lets each role do what it may (E40, E41, E43)."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from structlog.testing import capture_logs

from minflinkd.rest.identity import access
from minflinkd.rest.identity.roles import Role
from minflinkd.rest.identity.tokens import Token
from minflinkd.rest.route import Route
from minflinkd.rest.schemas.answer import FULL_ERRORS
from minflinkd.rpc.local import LocalNetwork
from minflinkd.runtime.local_socket import Admitted
from tests.component.rest.access_world import HINT, OWN, ROLES, TOKENS, World, bearer, world
from tests.unit.rest.parties import RUNNING, Dispatcher, ResourceManager, TaskManager
from tests.waiting import until

JOB = "0" * 32


@pytest.fixture
async def at(
    network: LocalNetwork,
    dispatcher: Dispatcher,
    resource_manager: ResourceManager,
    task_manager: TaskManager,
    tmp_path: Path,
) -> AsyncIterator[World]:
    async with world(network, tmp_path) as found:
        yield found


def path_of(route: Route) -> str:
    values = {"jobid": JOB, "taskmanagerid": "tm-0123456789ab", "checkpointid": "1"}
    return re.sub(r"\{(\w+)\}", lambda name: values.get(name[1], "x"), route.path)


async def status(http: aiohttp.ClientSession, route: Route, prefix: str = "", **options: Any) -> int:
    body = {"json": {"name": "x"}} if route.method in ("POST", "PUT") else {}
    async with http.request(route.method, prefix + path_of(route), **body, **options) as response:
        if response.content_type != "text/event-stream":  # which does not end
            await response.read()
        return response.status


# The role of each route that takes another one than `view`. A change here is a change of what tokens may do.
MORE = {
    "GET /health": "anybody",
    "GET /health/live": "anybody",
    "GET /health/ready": "anybody",
    "GET /login": "anybody",
    "GET /page/{digest}/{folder}/{file}": "anybody",  # the same for everybody, and says nothing
    "POST /login": "anybody",
    "POST /logout": "anybody",
    "POST /login/links": "view",
    "PATCH /jobs/{jobid}": "operate",
    "POST /jobs/{jobid}/savepoints": "operate",
    "POST /jobs/{jobid}/checkpoints": "operate",
    "POST /jobs/{jobid}/checkpoints/verification": "operate",
    "POST /jobs/{jobid}/stop": "operate",
    "PUT /jobs/{jobid}/resource-requirements": "operate",
    "POST /savepoint-disposal": "operate",
    "GET /storage/orphans": "operate",
    "GET /jobs/{jobid}/state": "operate",
    "GET /jobs/{jobid}/vertices/{vertexid}/state": "operate",
    "GET /jobs/{jobid}/vertices/{vertexid}/state/growth": "operate",
    "POST /jobs": "submit",
    "POST /jobs/text": "submit",
    "POST /jobs/{jobid}/hot-restart": "submit",
    "POST /jobs/{jobid}/submit-again": "submit",
    "POST /jobs/{jobid}/backfill": "submit",
    "POST /taskmanagers/{taskmanagerid}/drain": "admin",
    "DELETE /taskmanagers/{taskmanagerid}/drain": "admin",
    "DELETE /storage/orphans": "admin",
    "POST /cluster/handover": "admin",
    "DELETE /cluster": "admin",
    "POST /applications/{applicationid}/cancel": "operate",
    "GET /jobs/{jobid}/yarn-cancel": "operate",
    "GET /jobs/{jobid}/yarn-stop": "operate",
    "PATCH /jobs/{jobid}/rescaling": "operate",
    "PATCH /jobs/{jobid}/clientHeartbeat": "operate",
    "POST /jobs/{jobid}/coordinators/{operatorUid}": "operate",
    "DELETE /datasets/{datasetid}": "operate",
    "POST /jobmanager/profiler": "operate",
    "POST /taskmanagers/{taskmanagerid}/profiler": "operate",
    "POST /jars/upload": "submit",
    "DELETE /jars/{jarid}": "submit",
    "POST /jars/{jarid}/plan": "submit",
    "POST /jars/{jarid}/run": "submit",
    "POST /jars/{jarid}/run-application": "submit",
}


async def test_the_routes_have_the_roles_that_were_decided(at: World) -> None:
    """A route that changes something never takes `view` by mistake (E41)."""
    found = {f"{route.method} {route.path}": str(route.role) for route in at.server.routes}
    assert {name: role for name, role in found.items() if role != "view" or not name.startswith("GET ")} == MORE


@pytest.mark.parametrize("prefix", ["", "/v1"])
@pytest.mark.parametrize("role", ["nobody", *map(str, ROLES)])
async def test_each_role_is_let_in_where_it_may_and_nowhere_else(at: World, role: str, prefix: str) -> None:
    """Every route by every role (E41)."""
    wrong = []
    for route in at.server.routes:
        headers = {} if role == "nobody" else bearer(role)
        got = await status(at.http, route, prefix, headers=headers)
        if role == "nobody":
            right = (got == 401) is (route.role > Role.ANYBODY)
        else:
            right = (got == 403) is (Role[role.upper()] < route.role) and got != 401
        if not right:
            wrong.append(f"{route.method} {route.path}: {got}")
    assert len(at.server.routes) > 40
    assert wrong == []


@pytest.mark.parametrize("path", ["/nothing", "/v1/nothing", "/jobs/x/y/z", "/Jobs", "/login/", "/v1/v1/health"])
async def test_what_is_not_there_is_not_shown_to_nobody(at: World, path: str) -> None:
    """Whoever is not let in learns nothing of what there is (E40)."""
    async with at.http.get(path) as response:
        assert response.status == 401
    async with at.http.get(path, headers=bearer("view")) as response:
        assert response.status == 404


async def test_a_refusal_is_json_with_where_the_token_is(at: World) -> None:
    """Errors say what to do (E3)."""
    async with at.http.get("/jobs", headers={"Accept": FULL_ERRORS}) as response:
        answer = await response.json()
    assert (response.status, answer["code"], answer["hint"]) == (401, "unauthenticated", HINT)
    assert response.headers["WWW-Authenticate"].startswith("Bearer")
    async with at.http.post("/jobs", json={}, headers=bearer("operate")) as response:
        answer = await response.json()
    assert (response.status, response.headers["Minflinkd-Error-Code"]) == (403, "forbidden")
    assert "needs the role submit, and operate has operate" in answer["errors"][0]


@pytest.mark.parametrize("scheme", ["Basic", "Bearer\t", "", "Token"])
async def test_other_schemes_than_bearer_are_refused(at: World, scheme: str) -> None:
    async with at.http.get("/jobs", headers={"Authorization": f"{scheme} {TOKENS['admin'].text}"}) as response:
        assert response.status == 401


async def test_the_daemons_own_token_has_every_right(at: World) -> None:
    async with at.http.get("/whoami", headers=bearer(OWN)) as response:
        assert await response.json() == {"name": "daemon", "role": "admin", "jobs": []}


async def test_over_the_socket_the_daemons_user_needs_no_token(at: World) -> None:
    """The kernel says who is at the other end (E40)."""
    async with at.local.get("/whoami") as response:
        assert await response.json() == {"name": f"uid {os.geteuid()}", "role": "admin", "jobs": []}


async def test_over_the_socket_a_token_counts_if_there_is_one(at: World) -> None:
    """So that somebody can use less than all their rights (E41)."""
    async with at.local.get("/whoami", headers=bearer("view")) as response:
        assert (await response.json())["name"] == "view"
    async with at.local.get("/whoami", headers=bearer(Token.new())) as response:
        assert response.status == 401


async def test_over_the_socket_others_need_a_token(network: LocalNetwork, tmp_path: Path) -> None:
    """Also if somebody opens the socket's mode to them (E40)."""
    nobody_here = Admitted(os.geteuid() + 1)
    async with world(network, tmp_path, nobody_here) as found:
        found.access._local = None if os.geteuid() == 0 else nobody_here  # root is let in whoever the daemon is
        async with found.local.get("/jobs") as response:
            assert response.status == 401
        async with found.local.get("/whoami", headers=bearer("view")) as response:
            assert response.status == 200


async def test_the_socket_is_for_its_user_and_goes_away(network: LocalNetwork, tmp_path: Path) -> None:
    async with world(network, tmp_path) as found:
        assert found.socket.stat().st_mode & 0o777 == 0o600
    assert not found.socket.exists()


async def test_a_limited_token_reaches_its_jobs_alone(at: World, dispatcher: Dispatcher) -> None:
    """Patterns of names keep teams from each other's jobs (E41)."""
    limited = bearer("limited")
    async with at.http.get("/jobs", headers=bearer("view")) as response:
        (job, *_) = (await response.json())["jobs"]
    for method, path in (("GET", ""), ("GET", "/config"), ("PATCH", "?mode=cancel"), ("POST", "/savepoints")):
        async with at.http.request(method, f"/jobs/{job['id']}{path}", headers=limited) as response:
            assert (response.status, response.headers["Minflinkd-Error-Code"]) == (403, "forbidden"), path
    for name, code in (("etl-1", 202), ("other", 403), ("", 403)):
        async with at.http.post("/jobs", json={"name": name}, headers=limited) as response:
            assert response.status == code, name
    assert len(dispatcher.submissions) == 1
    job = dispatcher.jobs[RUNNING]
    dispatcher.jobs[RUNNING] = msgspec.structs.replace(job, graph=msgspec.structs.replace(job.graph, name="etl-2"))
    async with at.http.get(f"/jobs/{RUNNING}/config", headers=limited) as response:
        assert response.status == 200
    for name, refused in (("etl-2", False), ("other", True)):
        async with at.http.post(f"/jobs/{RUNNING}/hot-restart", json={"name": name}, headers=limited) as response:
            assert (response.status == 403) is refused, name
    async with at.http.get("/taskmanagers", headers=limited) as response:
        assert response.status == 200
    async with at.http.post("/savepoint-disposal", json={"savepoint-path": "/x"}, headers=limited) as response:
        assert response.status == 403


async def test_wrong_tokens_are_answered_late_counted_and_logged_without_the_token(at: World) -> None:
    """Failures are delayed, counted, logged without the token, at most once a second and reason (E41)."""
    loop, wrong = asyncio.get_running_loop(), Token.new()
    began = loop.time()

    async def ask() -> int:
        async with at.http.get("/jobs?x=1", headers=bearer(wrong)) as response:
            return response.status

    with capture_logs() as logs:
        assert set(await asyncio.gather(*(ask() for _ in range(20)))) == {401}
    assert loop.time() - began >= access.DELAY
    told = [line for line in logs if line["event"] == "a request was refused"]
    assert len(told) == 1
    assert (told[0]["reason"], told[0]["peer"], told[0]["path"]) == ("wrong-token", "127.0.0.1", "/jobs")
    assert wrong.secret not in json.dumps(logs)
    assert wrong.id not in json.dumps(logs)
    async with at.http.get("/metrics", headers=bearer("view")) as response:
        assert 'minflinkd_http_refused_total{reason="wrong-token"} 20.0' in await response.text()


async def test_delayed_answers_do_not_keep_others_out(at: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """More wrong tokens than may wait are answered at once (E45)."""
    monkeypatch.setattr(access, "DELAY", 60.0)
    monkeypatch.setattr(access, "MOST_DELAYED", 3)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(at.server.url, connector=connector) as http:

        async def guess() -> int:
            async with http.get("/jobs", headers=bearer(Token.new())) as response:
                return response.status

        guesses = [asyncio.create_task(guess()) for _ in range(10)]
        await until(lambda: sum(each.done() for each in guesses) == 7, "all but three are answered")
        async with http.get("/jobs", headers=bearer("view")) as response:
            assert response.status == 200
        for each in guesses:
            each.cancel()
        await asyncio.gather(*guesses, return_exceptions=True)


async def log_in(at: World, **options: Any) -> str:
    """Return the cookie."""
    async with at.http.post("/login", json={"token": TOKENS["operate"].text}, **options) as response:
        assert response.status == 200, await response.text()
        assert await response.json() == {"name": "operate", "role": "operate", "jobs": []}
    return response.headers["Set-Cookie"]


async def test_a_browser_logs_in_with_a_token_and_gets_a_cookie_that_no_other_site_uses(at: World) -> None:
    """HttpOnly, SameSite=Strict (E41)."""
    cookie = await log_in(at)
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert TOKENS["operate"].secret not in cookie
    port = at.server.url.rpartition(":")[2]
    assert cookie.startswith(f"minflinkd-{port}=")
    headers = {"Cookie": cookie.partition(";")[0]}
    async with at.http.get("/whoami", headers=headers) as response:
        assert (await response.json())["name"] == "operate"
    async with at.http.post("/jobs", json={}, headers=headers) as response:
        assert response.status == 403
    async with at.http.post("/logout", headers=headers) as response:
        assert response.status == 204
    async with at.http.get("/whoami", headers=headers) as response:
        assert (response.status, (await response.json())["errors"][0]) == (401, "the session has ended (log in again)")


@pytest.mark.parametrize(
    "page",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
async def test_a_page_of_another_origin_cannot_use_the_cookie(
    at: World, page: dict[str, str], dispatcher: Dispatcher
) -> None:
    """CSRF is refused, also from a page at another port of the same host (E41)."""
    headers = {"Cookie": (await log_in(at)).partition(";")[0], **page}
    for method, path in (("PATCH", f"/jobs/{JOB}?mode=cancel"), ("POST", "/login/links"), ("POST", "/logout")):
        async with at.http.request(method, path, headers=headers) as response:
            assert (response.status, response.headers["Minflinkd-Error-Code"]) == (403, "cross-site")
    async with at.http.post("/login", json={"token": TOKENS["view"].text}, headers=page) as response:
        assert response.status == 403


async def test_a_session_ends_with_its_token(at: World) -> None:
    """A revoked token leaves nothing behind (E41)."""
    headers = {"Cookie": (await log_in(at)).partition(";")[0]}
    at.access.replace_tokens(())
    async with at.http.get("/whoami", headers=headers) as response:
        assert response.status == 401


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"json": {"token": "x"}}, 401),
        ({"json": {"token": 1}}, 400),
        ({"json": {}}, 400),
        ({"data": b"\xff", "headers": {"Content-Type": "application/json"}}, 400),
        ({"data": b"x" * 5000, "headers": {"Content-Type": "application/json"}}, 400),
        ({"data": "token", "headers": {"Content-Type": "text/plain"}}, 415),
        ({"data": {"token": "x"}}, 401),
        ({"data": {"other": "x"}}, 401),
        ({"data": b""}, 415),
    ],
)
async def test_a_log_in_that_is_none_is_refused_and_shows_nothing(
    at: World, options: dict[str, Any], code: int
) -> None:
    async with at.http.post("/login", **options) as response:
        assert response.status == code
        assert "Set-Cookie" not in response.headers


async def test_a_person_sees_a_form_that_logs_in_without_a_script(at: World) -> None:
    """The page logs in with a token (E41)."""
    accept = {"Accept": "text/html,*/*"}
    async with at.http.get("/", headers=accept) as response:
        page = await response.text()
    assert (response.status, response.content_type) == (401, "text/html")
    assert "<script" not in page
    assert "form-action 'self'" in response.headers["Content-Security-Policy"]
    own = {"Origin": at.server.url, "Sec-Fetch-Site": "same-origin", **accept}
    async with at.http.post("/login", data={"token": "mfl-no"}, headers=own) as response:
        page = await response.text()
    assert (response.status, response.content_type) == (401, "text/html"), "not JSON: a person has mistyped a token"
    assert 'role="alert"' in page
    form = {"token": TOKENS["view"].text}
    own = {"Origin": at.server.url, "Sec-Fetch-Site": "same-origin", **accept}
    async with at.http.post("/login", data=form, headers=own, allow_redirects=False) as response:
        assert (response.status, response.headers["Location"]) == (303, "/")
    headers = {"Cookie": response.headers["Set-Cookie"].partition(";")[0], **accept}
    async with at.http.get("/", headers=headers) as response:
        assert response.status == 200


async def test_a_link_logs_in_once_with_the_rights_of_who_made_it(at: World) -> None:
    """`minflinkd open` (E40)."""
    async with at.http.post("/login/links", headers=bearer("operate")) as response:
        link = await response.json()
    assert (response.status, link["seconds"]) == (201, 60)
    navigating = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}  # from a terminal or a mail
    async with at.http.get(link["path"], headers=navigating, allow_redirects=False) as response:
        assert response.status == 200, "a redirection would not carry a strict cookie"
    headers = {"Cookie": response.headers["Set-Cookie"].partition(";")[0]}
    async with at.http.get("/whoami", headers=headers) as response:
        assert (await response.json())["name"] == "operate"
    async with at.http.get(link["path"]) as response:
        assert (response.status, "Set-Cookie" in response.headers) == (401, False)


async def lines(at: World, count: int) -> list[dict[str, Any]]:
    def written() -> list[dict[str, Any]]:
        found = [json.loads(line) for line in at.audit.read_text().splitlines()] if at.audit.exists() else []
        return found if len(found) >= count else []

    return await until(written, f"{count} lines in the audit log")


async def test_each_change_is_written_down_with_who_where_and_what_came_of_it(at: World) -> None:
    """One JSON line each, apart from the log (E43)."""
    async with at.http.post(f"/jobs?jobId={'a' * 32}", json={"name": "x"}, headers=bearer("submit")) as response:
        assert response.status == 202
    async with at.http.post("/jobs", json={"name": "x"}, headers=bearer("view")) as response:
        assert response.status == 403
    async with at.local.post("/cluster/handover") as response:
        assert response.status == 202
    await log_in(at)
    async with at.http.get("/jobs", headers=bearer("view")) as response:
        assert response.status == 200
    found = await lines(at, 4)
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", line.pop("time")) for line in found)
    here, uid = "127.0.0.1", f"uid {os.geteuid()}"
    assert found == [
        {
            "who": "submit",
            "role": "submit",
            "from": here,
            "method": "POST",
            "path": "/jobs",
            "job": "a" * 32,
            "status": 202,
        },
        {
            "who": "view",
            "role": "view",
            "from": here,
            "method": "POST",
            "path": "/jobs",
            "status": 403,
            "error": "forbidden",
        },
        {"who": uid, "role": "admin", "from": uid, "method": "POST", "path": "/cluster/handover", "status": 202},
        {"who": "operate", "role": "operate", "from": here, "method": "POST", "path": "/login", "status": 200},
    ]
    assert at.audit.stat().st_mode & 0o777 == 0o600
    assert not any(token.secret in at.audit.read_text() for token in TOKENS.values())


async def test_nobody_can_push_lines_out_of_the_audit_log(at: World) -> None:
    """Requests of which it is not known who sent them are not there (E43)."""
    for headers in ({}, bearer(Token.new())):
        async with at.http.post("/cluster/handover", headers=headers) as response:
            assert response.status == 401
    async with at.local.post("/cluster/handover") as response:
        assert response.status == 202
    assert len(await lines(at, 1)) == 1
