"""The objects of the emulated API server, and what has happened to them: what etcd is for the real one."""

from __future__ import annotations

import asyncio
import uuid
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

Object = dict[str, Any]
Key = tuple[str, str, str]  # resource, namespace, name


@dataclass
class Refusal(Exception):
    """An answer that is no success."""

    code: int
    reason: str
    message: str
    causes: list[tuple[str, str]] = field(default_factory=list)

    @property
    def status(self) -> Object:
        causes = [{"field": where, "message": message} for where, message in self.causes]
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
            **({"details": {"causes": causes}} if causes else {}),
        }


@dataclass(frozen=True)
class Change:
    version: int
    type: str  # ADDED, MODIFIED or DELETED
    resource: str
    namespace: str
    object: Object


class Store:
    """Every change gets the next version, as in etcd. `forget` drops what has happened, so that watches expire."""

    def __init__(self) -> None:
        self.version = 1000
        self.oldest = 1000  # changes up to this version are forgotten
        self._objects: dict[Key, Object] = {}
        self._changes: list[Change] = []
        self._changed = asyncio.Event()
        self.turn = 0  # grows with every change, and with every `wake`

    def all(self, resource: str, namespace: str | None = None) -> list[Object]:
        found = (each for key, each in self._objects.items() if key[0] == resource and namespace in (None, key[1]))
        return [deepcopy(each) for each in found]

    def get(self, resource: str, namespace: str, name: str) -> Object:
        found = self._objects.get((resource, namespace, name))
        if found is None:
            raise Refusal(404, "NotFound", f'{resource} "{name}" not found')
        return deepcopy(found)

    def find(self, resource: str, name: str) -> Object | None:
        return next((each for each in self.all(resource) if each["metadata"]["name"] == name), None)

    def create(self, resource: str, namespace: str, new: Object, *, dry_run: bool = False) -> Object:
        name = new["metadata"]["name"]
        if (resource, namespace, name) in self._objects:
            raise Refusal(409, "AlreadyExists", f'{resource} "{name}" already exists')
        created = deepcopy(new)
        created["metadata"] |= {"namespace": namespace, "uid": str(uuid.uuid4()), "creationTimestamp": _time()}
        if resource == "pods":
            created["status"] = {"phase": "Pending"}
            created["spec"].setdefault("terminationGracePeriodSeconds", 30)
        return created if dry_run else self._put("ADDED", resource, created)

    def replace(self, resource: str, namespace: str, new: Object) -> Object:
        """Replace an object, unless it has changed since its version was read."""
        name = new["metadata"]["name"]
        found, version = self.get(resource, namespace, name), new["metadata"].get("resourceVersion")
        if version is not None and version != found["metadata"]["resourceVersion"]:
            raise Refusal(409, "Conflict", f'{resource} "{name}": the object has been modified; try again')
        new["metadata"] = found["metadata"] | new["metadata"]
        return self._put("MODIFIED", resource, deepcopy(new))

    def patch(self, resource: str, namespace: str, name: str, changes: Object) -> Object:
        """Apply a merge patch (RFC 7396)."""
        return self._put("MODIFIED", resource, _merged(self.get(resource, namespace, name), changes))

    def delete(
        self, resource: str, namespace: str, name: str, *, grace: int | None = None, uid: str | None = None
    ) -> Object:
        """Delete an object. A Pod on a node gets `grace` seconds, and is gone when its kubelet says so (`remove`)."""
        found = self.get(resource, namespace, name)
        if uid not in (None, found["metadata"]["uid"]):
            message = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {found['metadata']['uid']}"
            raise Refusal(409, "Conflict", f'Operation cannot be fulfilled on {resource} "{name}": {message}')
        if resource != "pods" or not found["spec"].get("nodeName"):
            return self.remove(resource, namespace, name)
        grace = found["spec"]["terminationGracePeriodSeconds"] if grace is None else grace
        if grace == 0:
            return self.remove(resource, namespace, name)
        metadata = found["metadata"]
        if "deletionTimestamp" in metadata and metadata["deletionGracePeriodSeconds"] <= grace:
            return found
        metadata |= {"deletionTimestamp": _time(grace), "deletionGracePeriodSeconds": grace}
        return self._put("MODIFIED", resource, found)

    def remove(self, resource: str, namespace: str, name: str) -> Object:
        found = self.get(resource, namespace, name)
        del self._objects[resource, namespace, name]
        return self._note("DELETED", resource, found)

    def since(self, version: int, resource: str, namespace: str) -> list[Change]:
        """Return what happened after this version. Raises Refusal 410 if that is forgotten."""
        if version < self.oldest:
            raise Refusal(410, "Expired", f"too old resource version: {version} ({self.oldest})")
        wanted = (resource, namespace)
        return [each for each in self._changes if each.version > version and (each.resource, each.namespace) == wanted]

    def forget(self) -> None:
        self.oldest = self.version
        self._changes.clear()
        self.wake()

    def wake(self) -> None:
        """Let everybody who waits for a change look again."""
        self.turn += 1
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def change(self, turn: int, timeout: float) -> None:
        """Wait until something has changed after this `turn`, or for so many seconds."""
        if self.turn != turn:
            return
        try:
            async with asyncio.timeout(timeout):
                await self._changed.wait()
        except TimeoutError:
            pass

    def _put(self, kind: str, resource: str, found: Object) -> Object:
        metadata = found["metadata"]
        self._objects[resource, metadata["namespace"], metadata["name"]] = found
        return self._note(kind, resource, found)

    def _note(self, kind: str, resource: str, found: Object) -> Object:
        self.version += 1
        found["metadata"]["resourceVersion"] = str(self.version)
        copy = deepcopy(found)
        self._changes.append(Change(self.version, kind, resource, found["metadata"]["namespace"], copy))
        self.wake()
        return deepcopy(found)


def _merged(found: Any, changes: Any) -> Any:
    if not isinstance(changes, dict) or not isinstance(found, dict):
        return deepcopy(changes)
    merged = dict(found)
    for key, value in changes.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merged(merged.get(key, {}), value)
    return merged


def _time(later: float = 0.0) -> str:
    return (datetime.now(UTC) + timedelta(seconds=later)).strftime("%Y-%m-%dT%H:%M:%SZ")
