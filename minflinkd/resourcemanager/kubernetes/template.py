"""The Pods of TaskManagers: a template from a file, and what minflinkd adds to it.

The template is checked for what would be in the way of that. Whether it is a Pod at all is the API server's to say.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from minflinkd.resourcemanager.kubernetes.observed import CONTAINER
from minflinkd.resourcemanager.kubernetes.wire import Json, OwnerReference
from minflinkd.resourcemanager.sizes import TaskManagerSize
from minflinkd.runtime.errors import Consequence, MinflinkError
from minflinkd.runtime.ids import ResourceId

CLUSTER = "minflinkd/cluster"  # label: the id of the cluster
EPOCH = "minflinkd/epoch"  # label: of the daemon that created it
POD_IP = "MINFLINKD_POD_IP"  # variable of the container: the address of its Pod
LARGEST = 1 << 20  # bytes of a template


class UnusablePodTemplate(MinflinkError):
    code = "pod-template"
    consequence = Consequence.REFUSED


@dataclass(frozen=True)
class Belonging:
    """What all Pods of one daemon have in common."""

    cluster_id: str
    epoch: int
    namespace: str
    subdomain: str = ""  # a headless Service; empty: TaskManagers reach each other by the addresses of their Pods

    @property
    def select(self) -> str:
        """The selector of all TaskManagers of the cluster."""
        return f"{CLUSTER}={self.cluster_id}"


def read_template(path: Path) -> Json:
    """Return the template. Raises UnusablePodTemplate with every fault and its place in the file."""
    try:
        data = path.read_bytes()
        if len(data) > LARGEST:
            raise UnusablePodTemplate(f"{path} has {len(data)} bytes; a Pod template has at most {LARGEST}")
        value: object = YAML(typ="safe", pure=True).load(data)
    except OSError as error:
        raise UnusablePodTemplate(
            f"the Pod template cannot be read: {error}", hint="kubernetes.pod-template-file.taskmanager names it"
        ) from error
    except (YAMLError, UnicodeError) as error:
        raise UnusablePodTemplate(f"{path} is no YAML: {error}") from error
    if faults := list(faults_of(value)):
        raise UnusablePodTemplate(f"{path}: {'; '.join(faults)}", hint="docs/kubernetes.md has a template")
    assert isinstance(value, dict)  # or it has a fault
    return value


def faults_of(template: object) -> Iterator[str]:
    """Yield what is wrong, each with its path."""
    if not isinstance(template, dict):
        yield "the template is no mapping: it must be a Pod"
        return
    for key, wanted in (("apiVersion", "v1"), ("kind", "Pod")):
        if template.get(key) != wanted:
            yield f"{key}: must be {wanted}"
    yield from _unknown(template, "", ("apiVersion", "kind", "metadata", "spec"))
    yield from _metadata(template.get("metadata", {}))
    spec = template.get("spec")
    if not isinstance(spec, dict):
        yield "spec: is missing, or no mapping"
        return
    for key in ("hostname", "subdomain"):
        if key in spec:
            yield f"spec.{key}: is set by minflinkd (kubernetes.taskmanager.subdomain)"
    if spec.get("restartPolicy", "Never") != "Never":
        yield "spec.restartPolicy: must be Never, since minflinkd starts another TaskManager"
    yield from _containers(spec.get("containers"))


def _metadata(metadata: object) -> Iterator[str]:
    if not isinstance(metadata, dict):
        yield "metadata: is no mapping"
        return
    yield from _unknown(metadata, "metadata.", ("labels", "annotations"))
    for name in ("labels", "annotations"):
        texts = metadata.get(name, {})
        if not isinstance(texts, dict):
            yield f"metadata.{name}: is no mapping"
            continue
        for key, text in texts.items():
            if not isinstance(text, str):
                yield f"metadata.{name}.{key}: is no text; write it in quotes"
            elif key in (CLUSTER, EPOCH):
                yield f"metadata.{name}.{key}: is set by minflinkd"


def _containers(containers: object) -> Iterator[str]:
    if not isinstance(containers, list):
        yield "spec.containers: is missing, or no list"
        return
    names = [container.get("name") if isinstance(container, dict) else None for container in containers]
    if names.count(CONTAINER) != 1:
        yield f"spec.containers: one of them must be named {CONTAINER}"
    for index, container in enumerate(containers):
        path = f"spec.containers[{index}]"
        if not isinstance(container, dict):
            yield f"{path}: is no mapping"
        elif container.get("name") == CONTAINER:
            yield from _container(container, path)


def _container(container: Json, path: str) -> Iterator[str]:
    image = container.get("image")
    if not isinstance(image, str) or not image:
        yield f"{path}.image: is missing"
    if "args" in container:
        yield f"{path}.args: is set by minflinkd; its command may be changed with {path}.command"
    env = container.get("env", [])
    if not isinstance(env, list):
        yield f"{path}.env: is no list"
        return
    for index, variable in enumerate(env):
        if not isinstance(variable, dict) or not isinstance(variable.get("name"), str):
            yield f"{path}.env[{index}].name: is missing"
        elif variable["name"] == POD_IP:
            yield f"{path}.env[{index}]: {POD_IP} is set by minflinkd"


def _unknown(mapping: dict[Any, Any], path: str, known: tuple[str, ...]) -> Iterator[str]:
    for key in mapping:
        if key not in known:
            yield f"{path}{key}: has no place in a template, which may have {', '.join(known)}"


def manifest(
    template: Json,
    resource_id: ResourceId,
    belonging: Belonging,
    owner: OwnerReference | None,
    size: TaskManagerSize | None = None,
) -> Json:
    """Return the Pod of a TaskManager. It has no secret: the template mounts configuration and secret as files.

    What the template says stays, except for what it may not say. `owner`: with it, Kubernetes deletes the Pod. `size`:
    other slots than the configuration has, in a Pod of the same size (R40).
    """
    pod = deepcopy(template)
    metadata, spec = pod.setdefault("metadata", {}), pod["spec"]
    metadata["name"], metadata["namespace"] = resource_id, belonging.namespace
    metadata["labels"] = {
        "app.kubernetes.io/name": "minflinkd",
        "app.kubernetes.io/component": "taskmanager",
        **metadata.get("labels", {}),
        CLUSTER: belonging.cluster_id,
        EPOCH: str(belonging.epoch),
    }
    if owner is not None:
        metadata["ownerReferences"] = [
            {"apiVersion": owner.api_version, "kind": owner.kind, "name": owner.name, "uid": owner.uid}
        ]
    spec["restartPolicy"] = "Never"
    # Code of jobs runs there: it gets no access to the API server, unless the template says otherwise.
    spec.setdefault("automountServiceAccountToken", False)
    spec.setdefault("enableServiceLinks", False)
    host = f"$({POD_IP})"
    if belonging.subdomain:
        spec["hostname"], spec["subdomain"] = resource_id, belonging.subdomain
        host = f"{resource_id}.{belonging.subdomain}.{belonging.namespace}.svc"
    container = next(each for each in spec["containers"] if each["name"] == CONTAINER)
    container["args"] = [
        *("taskmanager", "--managed", "--resource-id", resource_id),
        *("--set", f"taskmanager.bind-host=$({POD_IP})", "--set", f"taskmanager.host={host}"),
        *(() if size is None else _sized(size)),
    ]
    container["env"] = [
        {"name": POD_IP, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        *container.get("env", []),
    ]
    # With it, the Pod's own status tells how its log ends: no right to read logs is needed.
    container.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")
    return pod


def _sized(size: TaskManagerSize) -> Iterator[str]:
    total = size.total
    yield from ("--set", f"taskmanager.numberOfTaskSlots={size.slots}")
    yield from ("--set", f"taskmanager.memory.heap.size={total.memory} b")
    yield from ("--set", f"taskmanager.session.max-memory={total.memory + total.off_heap} b")
