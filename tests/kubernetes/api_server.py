"""An API server for tests: the part of Kubernetes' that minflinkd uses, over HTTP, with faults on demand.

No real one can be installed from the registries. What is written here follows Kubernetes' documentation of its API; the
schemas of objects are the real ones.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

from tests.kubernetes.admission import Rights, admit, rights_of
from tests.kubernetes.store import Object, Refusal, Store

KINDS = {  # by the version of their API
    "api/v1": {"pods": "Pod", "events": "Event", "secrets": "Secret", "configmaps": "ConfigMap"},
    "apis/coordination.k8s.io/v1": {"leases": "Lease"},
}
BOOKMARKS = 0.2  # seconds; a real server sends one in about a minute


@dataclass
class Faults:
    """What goes wrong from now on."""

    away: bool = False  # connections are cut
    slow: float = 0.0  # seconds before each answer
    busy: int = 0  # so many requests are answered with 429
    retry_after: str = "1"
    broken: int = 0  # so many requests are answered with 500
    lost_answers: int = 0  # so many changes are made, and then the connection is cut
    then_away: bool = False  # and after that the server is away
    quota: int | None = None  # Pods of the namespace


@dataclass
class ApiServer:
    """`asked` has the verbs and resources of all requests that were allowed."""

    url: str
    token: str  # of the daemon's service account
    rights: Rights
    store: Store = field(default_factory=Store)
    faults: Faults = field(default_factory=Faults)
    asked: list[tuple[str, str]] = field(default_factory=list)
    watches: set[asyncio.Task[object]] = field(default_factory=set)

    @property
    def namespace(self) -> str:
        return self.rights.namespace

    def pod(self, name: str) -> Object | None:
        return self.store.find("pods", name)

    def cut_watches(self) -> None:
        for watch in self.watches:
            watch.cancel()

    def go_away(self) -> None:
        self.faults.away = True
        self.cut_watches()

    def come_back(self) -> None:
        self.faults.away = False

    async def handle(self, request: web.Request) -> web.StreamResponse:
        try:
            return await self._answer(request)
        except Refusal as refusal:
            headers = {"Retry-After": self.faults.retry_after} if refusal.code == 429 else {}
            return web.json_response(refusal.status, status=refusal.code, headers=headers)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if self.faults.slow:
            await asyncio.sleep(self.faults.slow)
        if self.faults.away:
            return _cut(request)
        if self.faults.busy > 0:
            self.faults.busy -= 1
            raise Refusal(429, "TooManyRequests", "the server has received too many requests; try again later")
        if self.faults.broken > 0:
            self.faults.broken -= 1
            raise Refusal(500, "InternalError", "etcdserver: request timed out")
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            raise Refusal(401, "Unauthorized", "Unauthorized")
        group, version = request.match_info.get("group", ""), request.match_info["version"]
        resource, namespace = request.match_info["resource"], request.match_info["namespace"]
        kind = KINDS.get(f"apis/{group}/{version}" if group else f"api/{version}", {}).get(resource)
        if kind is None:
            raise Refusal(404, "NotFound", "the server could not find the requested resource")
        verb = _verb(request)
        self.rights.require(verb, group, resource, namespace)
        self.asked.append((verb, resource))
        if verb == "watch":
            return await self._watch(request, resource, namespace)
        answer = await self._carry_out(request, verb, kind)
        if verb not in ("get", "list") and self.faults.lost_answers > 0:
            self.faults.lost_answers -= 1
            if self.faults.then_away:
                self.go_away()  # before a watch has told of the change
            return _cut(request)
        return web.json_response(answer, status=201 if verb == "create" else 200)

    async def _carry_out(self, request: web.Request, verb: str, kind: str) -> Object:
        resource, namespace, name = (request.match_info.get(key, "") for key in ("resource", "namespace", "name"))
        body = await request.json() if request.can_read_body else {}
        query = request.query
        match verb:
            case "create":
                if body.get("kind") != kind or body["metadata"].get("namespace", namespace) != namespace:
                    raise Refusal(400, "BadRequest", f"the object is no {kind} of the namespace {namespace}")
                admit(resource, body, strict=query.get("fieldValidation") == "Strict")
                self._keep_quota(resource, body["metadata"]["name"])
                return self.store.create(resource, namespace, body, dry_run=query.get("dryRun") == "All")
            case "get":
                return self.store.get(resource, namespace, name)
            case "list":
                items = [each for each in self.store.all(resource, namespace) if _selected(each, query)]
                version = {"resourceVersion": str(self.store.version)}
                return {"kind": f"{kind}List", "apiVersion": "v1", "metadata": version, "items": items}
            case "update":
                admit(resource, body, strict=False)
                return self.store.replace(resource, namespace, body)
            case "patch":
                return self.store.patch(resource, namespace, name, body)
            case _:
                grace, uid = body.get("gracePeriodSeconds"), body.get("preconditions", {}).get("uid")
                return self.store.delete(resource, namespace, name, grace=grace, uid=uid)

    def _keep_quota(self, resource: str, name: str) -> None:
        quota = self.faults.quota
        if resource == "pods" and quota is not None and (used := len(self.store.all("pods"))) >= quota:
            raise Refusal(
                403,
                "Forbidden",
                f'pods "{name}" is forbidden: exceeded quota: pods, requested: pods=1, used: pods={used}, '
                f"limited: pods={quota}",
            )

    async def _watch(self, request: web.Request, resource: str, namespace: str) -> web.StreamResponse:
        """Stream what happens after the version of the query, and bookmarks in between."""
        version, answer = int(request.query.get("resourceVersion", self.store.version)), web.StreamResponse()
        ends = asyncio.get_running_loop().time() + float(request.query.get("timeoutSeconds", 1800))
        await answer.prepare(request)
        task = asyncio.current_task()
        assert task is not None
        self.watches.add(task)
        try:
            while asyncio.get_running_loop().time() < ends:
                turn = self.store.turn
                try:
                    changes = self.store.since(version, resource, namespace)
                except Refusal as refusal:
                    await _send(answer, "ERROR", refusal.status)
                    return answer
                for change in changes:
                    version = change.version
                    if _selected(change.object, request.query):
                        await _send(answer, change.type, change.object)
                await self.store.change(turn, BOOKMARKS)
                if request.query.get("allowWatchBookmarks") == "true":
                    kind, current = KINDS["api/v1"].get(resource, "Lease"), str(version)
                    bookmark = {"kind": kind, "apiVersion": "v1", "metadata": {"resourceVersion": current}}
                    await _send(answer, "BOOKMARK", bookmark)
        except asyncio.CancelledError:
            _cut(request)
            raise
        except ConnectionResetError:  # the client has gone
            pass
        finally:
            self.watches.discard(task)
        return answer


def _verb(request: web.Request) -> str:
    if request.method == "GET":
        if request.query.get("watch") == "true":
            return "watch"
        return "get" if "name" in request.match_info else "list"
    return {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}[request.method]


def _selected(found: Object, query: object) -> bool:
    selector = query.get("labelSelector", "") if hasattr(query, "get") else ""
    labels = found["metadata"].get("labels", {})
    wanted = (part.partition("=") for part in selector.split(",") if part)
    return all(labels.get(key) == value for key, _, value in wanted)


async def _send(answer: web.StreamResponse, kind: str, found: Object) -> None:
    await answer.write(json.dumps({"type": kind, "object": found}).encode() + b"\n")


def _cut(request: web.Request) -> web.Response:
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


@asynccontextmanager
async def api_server(directory: Path, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[ApiServer]:
    """Run an API server on loopback. `directory` gets what a Pod finds of its service account."""
    server = ApiServer("", f"token-{secrets.token_hex(16)}", rights_of("minflinkd"))
    app = web.Application()
    for path in ("/api/{version}", "/apis/{group}/{version}"):
        collection = f"{path}/namespaces/{{namespace}}/{{resource}}"
        app.router.add_route("*", collection, server.handle)
        app.router.add_route("*", f"{collection}/{{name}}", server.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    port = runner.addresses[0][1]
    server.url = f"{'https' if tls else 'http'}://127.0.0.1:{port}"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "token").write_text(server.token)
    (directory / "namespace").write_text(server.namespace)
    try:
        yield server
    finally:
        server.cut_watches()
        await runner.cleanup()
