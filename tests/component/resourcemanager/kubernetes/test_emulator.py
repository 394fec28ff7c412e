"""The API server and the kubelet of the tests do what Kubernetes documents."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import pytest

from tests.kubernetes import schemas
from tests.kubernetes.api_server import ApiServer
from tests.kubernetes.pod_world import PodWorld, template
from tests.kubernetes.store import Refusal, Store
from tests.waiting import until

NAME = "tm-0123456789ab"


def new_pod(**metadata: Any) -> dict[str, Any]:
    return template() | {"metadata": {"name": NAME, **metadata}}


class Api:
    """A plain client, which repeats nothing."""

    def __init__(self, server: ApiServer, session: aiohttp.ClientSession) -> None:
        self.server = server
        self.session = session

    async def ask(
        self, method: str, path: str = "pods", body: Any = None, *, token: str | None = None, **query: str
    ) -> tuple[int, dict[str, Any]]:
        url = f"{self.server.url}/api/v1/namespaces/{self.server.namespace}/{path}"
        headers = {"Authorization": f"Bearer {token or self.server.token}"}
        async with self.session.request(method, url, json=body, params=query, headers=headers) as answer:
            return answer.status, await answer.json()


@pytest.fixture
async def api(server: ApiServer) -> Any:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=False)) as session:
        yield Api(server, session)


async def test_a_name_is_taken_once_and_versions_grow(api: Api) -> None:
    """409 tells a repeated creation (R52)."""
    status, created = await api.ask("POST", body=new_pod())
    assert (status, created["status"]["phase"]) == (201, "Pending")
    status, refused = await api.ask("POST", body=new_pod())
    assert (status, refused["reason"]) == (409, "AlreadyExists")
    _, listed = await api.ask("GET")
    assert int(listed["metadata"]["resourceVersion"]) >= int(created["metadata"]["resourceVersion"])


async def test_rights_are_those_of_the_role_and_only_with_its_token(api: Api) -> None:
    """Verbs and resources are told apart (R52)."""
    assert (await api.ask("GET", token="stranger"))[0] == 401
    assert (await api.ask("PATCH", f"pods/{NAME}", {}))[0] == 403
    status, refused = await api.ask("GET", "secrets")
    assert status == 403
    assert 'cannot list resource "secrets"' in refused["message"]


async def test_objects_are_checked_by_the_schemas_of_kubernetes(api: Api) -> None:
    """Unknown fields only if they are looked for (R52)."""
    misspelled = new_pod()
    misspelled["spec"]["restartPolici"] = "Never"
    status, refused = await api.ask("POST", body=misspelled, fieldValidation="Strict")
    assert status == 400
    assert "restartPolici" in refused["message"]
    wrong = new_pod()
    wrong["spec"]["terminationGracePeriodSeconds"] = "soon"
    status, refused = await api.ask("POST", body=wrong)
    assert status == 422
    assert [cause["field"] for cause in refused["details"]["causes"]] == ["spec.terminationGracePeriodSeconds"]
    assert (await api.ask("POST", body=new_pod(), dryRun="All"))[0] == 201
    assert (await api.ask("GET", f"pods/{NAME}"))[0] == 404


async def test_a_deletion_waits_for_the_kubelet_and_is_not_made_longer(api: Api) -> None:
    """The object stays until its processes have ended; another uid is not deleted (R52)."""
    store, namespace = api.server.store, api.server.namespace
    _, created = await api.ask("POST", body=new_pod())
    store.patch("pods", namespace, NAME, {"spec": {"nodeName": "node-9"}})
    assert (await api.ask("DELETE", f"pods/{NAME}", {"preconditions": {"uid": "another"}}))[0] == 409
    for grace, kept in ((20, 20), (30, 20), (1, 1)):
        _, deleting = await api.ask("DELETE", f"pods/{NAME}", {"gracePeriodSeconds": grace})
        assert deleting["metadata"]["deletionGracePeriodSeconds"] == kept
    assert store.get("pods", namespace, NAME)["metadata"]["uid"] == created["metadata"]["uid"]
    await api.ask("DELETE", f"pods/{NAME}", {"gracePeriodSeconds": 0})
    assert api.server.pod(NAME) is None


async def test_a_watch_tells_what_follows_a_version_and_ends_when_that_is_forgotten(api: Api) -> None:
    """Bookmarks carry the version on, and 410 is an event (R52)."""
    _, listed = await api.ask("GET")
    url = f"{api.server.url}/api/v1/namespaces/{api.server.namespace}/pods"
    query = {"watch": "true", "resourceVersion": listed["metadata"]["resourceVersion"], "allowWatchBookmarks": "true"}
    headers = {"Authorization": f"Bearer {api.server.token}"}
    await api.ask("POST", body=new_pod(labels={"a": "b"}))
    await api.ask("DELETE", f"pods/{NAME}", {})
    async with api.session.get(url, params=query | {"labelSelector": "a=b"}, headers=headers) as answer:
        seen = [json.loads(await answer.content.readline()) for _ in range(3)]
    assert [event["type"] for event in seen] == ["ADDED", "DELETED", "BOOKMARK"]
    api.server.store.forget()
    async with api.session.get(url, params=query, headers=headers) as answer:
        expired = json.loads(await answer.content.readline())
    assert (expired["type"], expired["object"]["code"]) == ("ERROR", 410)


def test_an_object_that_has_changed_is_not_overwritten() -> None:
    """Its version tells (R52)."""
    store = Store()
    lease = store.create("leases", "n", {"kind": "Lease", "metadata": {"name": "leader"}, "spec": {}})
    store.replace("leases", "n", lease | {"spec": {"holderIdentity": "a"}})
    with pytest.raises(Refusal) as refused:
        store.replace("leases", "n", lease | {"spec": {"holderIdentity": "b"}})
    assert refused.value.status["reason"] == "Conflict"
    store.patch("leases", "n", "leader", {"spec": {"holderIdentity": None, "leaseDurationSeconds": 15}})
    assert store.get("leases", "n", "leader")["spec"] == {"leaseDurationSeconds": 15}


async def test_what_the_kubelet_writes_are_statuses_that_kubernetes_knows(world: PodWorld) -> None:
    """From the creation to the end (R52)."""
    await world.start()
    world.nodes.kill("tm-000000000001")
    await world.exit()
    pods = [change.object for change in world.server.store.since(world.server.store.oldest, "pods", "minflinkd")]
    assert {pod["status"]["phase"] for pod in pods} == {"Pending", "Running", "Failed"}
    assert [fault for pod in pods for fault in schemas.faults({"kind": "Pod", "apiVersion": "v1", **pod})] == []


async def test_a_secret_is_mounted_as_files(world: PodWorld, tmp_path: Any) -> None:
    """A Pod whose Secret is missing does not start (R52)."""
    place = tmp_path / "secret"
    pod = new_pod()
    pod["spec"]["volumes"] = [{"name": "s", "secret": {"secretName": "cluster"}}]
    pod["spec"]["containers"][0]["volumeMounts"] = [{"name": "s", "mountPath": str(place)}]
    world.server.store.create("pods", "minflinkd", pod)
    await until(lambda: "ContainersNotReady" in json.dumps(world.server.pod(NAME)))
    world.server.store.remove("pods", "minflinkd", NAME)
    world.server.store.create("secrets", "minflinkd", {"metadata": {"name": "cluster"}, "data": {"key": "c2VjcmV0"}})
    world.server.store.create("pods", "minflinkd", pod)
    await until(lambda: (world.server.pod(NAME) or {"status": {}})["status"].get("phase") == "Running")
    assert (place / "key").read_text() == "secret"
