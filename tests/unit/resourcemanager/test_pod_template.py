"""The Pod template: what it may say, and what minflinkd adds."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from minflinkd.resourcemanager.kubernetes.template import (
    Belonging,
    UnusablePodTemplate,
    faults_of,
    manifest,
    read_template,
)
from minflinkd.resourcemanager.kubernetes.wire import OwnerReference
from minflinkd.resourcemanager.sizes import TaskManagerSize
from minflinkd.runtime.ids import ResourceId
from minflinkd.runtime.resource_profile import ResourceProfile

TM = ResourceId("tm-0123456789ab")
BELONGING = Belonging("c" * 32, 7, "flows")
OWNER = OwnerReference(api_version="apps/v1", kind="StatefulSet", name="minflinkd", uid="u-1", controller=True)
TEMPLATE: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"labels": {"team": "flights"}, "annotations": {"a": "b"}},
    "spec": {
        "nodeSelector": {"disk": "nvme"},
        "containers": [
            {"name": "log-shipper", "image": "shipper"},
            {"name": "taskmanager", "image": "minflinkd", "env": [{"name": "HOME", "value": "/tmp"}]},
        ],
    },
}


def changed(path: str, value: object) -> dict[str, Any]:
    """Return the template with another value at a path."""
    found: Any = deepcopy(TEMPLATE)
    *above, last = path.split(".")
    at = found
    for step in above:
        at = at[int(step)] if step.isdecimal() else at.setdefault(step, {})
    at[int(last) if last.isdecimal() else last] = value
    return found  # type: ignore[no-any-return]


def test_the_template_is_kept_and_completed() -> None:
    """Name, labels, owner and arguments are minflinkd's; the rest is the template's (R50)."""
    before = deepcopy(TEMPLATE)
    pod = manifest(TEMPLATE, TM, BELONGING, OWNER)
    assert before == TEMPLATE
    assert pod["metadata"]["name"] == TM
    assert pod["metadata"]["labels"].items() >= {
        "team": "flights", "minflinkd/cluster": "c" * 32, "minflinkd/epoch": "7"
    }.items()  # fmt: skip
    assert pod["metadata"]["ownerReferences"] == [
        {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "minflinkd", "uid": "u-1"}
    ]
    assert (pod["spec"]["restartPolicy"], pod["spec"]["nodeSelector"]) == ("Never", {"disk": "nvme"})
    shipper, own = pod["spec"]["containers"]
    assert shipper == {"name": "log-shipper", "image": "shipper"}
    assert [variable["name"] for variable in own["env"]] == ["MINFLINKD_POD_IP", "HOME"]
    assert own["args"] == [
        "taskmanager", "--managed", "--resource-id", TM,
        "--set", "taskmanager.bind-host=$(MINFLINKD_POD_IP)", "--set", "taskmanager.host=$(MINFLINKD_POD_IP)",
    ]  # fmt: skip
    assert own["terminationMessagePolicy"] == "FallbackToLogsOnError"


def test_other_slots_than_the_default_are_told_to_the_pod() -> None:
    """It has the same memory, divided by fewer slots (R40)."""
    size = TaskManagerSize(2, ResourceProfile(memory=512 << 20, off_heap=1 << 30))
    own = manifest(TEMPLATE, TM, BELONGING, OWNER, size)["spec"]["containers"][1]
    assert own["args"][8:] == [
        "--set", "taskmanager.numberOfTaskSlots=2",
        "--set", f"taskmanager.memory.heap.size={1 << 30} b",
        "--set", f"taskmanager.session.max-memory={3 << 30} b",
    ]  # fmt: skip


def test_with_a_subdomain_taskmanagers_have_names_that_one_certificate_covers() -> None:
    """Addresses of Pods are not known beforehand (R50)."""
    pod = manifest(TEMPLATE, TM, Belonging("c" * 32, 7, "flows", "workers"), None)
    assert (pod["spec"]["hostname"], pod["spec"]["subdomain"]) == (TM, "workers")
    assert pod["spec"]["containers"][1]["args"][-1] == f"taskmanager.host={TM}.workers.flows.svc"
    assert "ownerReferences" not in pod["metadata"]


@pytest.mark.parametrize(
    ("template", "fault"),
    [
        ([], "the template is no mapping"),
        (changed("kind", "Deployment"), "kind: must be Pod"),
        (changed("status", {}), "status: has no place in a template"),
        (changed("metadata.name", "tm"), "metadata.name: has no place"),
        (changed("metadata.labels", ["a"]), "metadata.labels: is no mapping"),
        (changed("metadata.labels", {"on": True}), "metadata.labels.on: is no text"),
        (changed("metadata.labels", {"minflinkd/epoch": "1"}), "metadata.labels.minflinkd/epoch: is set by minflinkd"),
        (changed("spec", None), "spec: is missing"),
        (changed("spec.hostname", "a"), "spec.hostname: is set by minflinkd"),
        (changed("spec.restartPolicy", "Always"), "spec.restartPolicy: must be Never"),
        (changed("spec.containers", {}), "spec.containers: is missing, or no list"),
        (changed("spec.containers.1.name", "tm"), "spec.containers: one of them must be named taskmanager"),
        (changed("spec.containers.0", "x"), "spec.containers[0]: is no mapping"),
        (changed("spec.containers.1.image", ""), "spec.containers[1].image: is missing"),
        (changed("spec.containers.1.args", []), "spec.containers[1].args: is set by minflinkd"),
        (changed("spec.containers.1.env", {}), "spec.containers[1].env: is no list"),
        (changed("spec.containers.1.env.0", {"value": "x"}), "spec.containers[1].env[0].name: is missing"),
        (changed("spec.containers.1.env.0.name", "MINFLINKD_POD_IP"), "spec.containers[1].env[0]: MINFLINKD_POD_IP is"),
    ],
)
def test_a_fault_of_the_template_is_told_with_its_path(template: object, fault: str) -> None:
    """The daemon does not start with it (R50)."""
    assert [told for told in faults_of(template) if told.startswith(fault)]
    assert list(faults_of(TEMPLATE)) == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (None, "cannot be read"),
        ("a: [", "is no YAML"),
        ("kind: Pod\nkind: Pod\n", "is no YAML"),
        ("apiVersion: v1\nkind: Job\n", "kind: must be Pod; spec: is missing"),
    ],
)
def test_a_template_that_cannot_be_used_is_refused(tmp_path: Path, text: str | None, fault: str) -> None:
    """All faults at once (R50)."""
    file = tmp_path / "template.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(UnusablePodTemplate, match=fault):
        read_template(file)
