"""What Pods say about TaskManagers, in Kubernetes' words."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from minflinkd.resourcemanager.kubernetes.observed import Observed, Stage, observed, removed
from minflinkd.resourcemanager.kubernetes.wire import Pod


def pod(status: dict[str, Any], *, node: str = "node-1", **metadata: Any) -> Pod:
    """Return a Pod as the API server would send it."""
    found = {
        "metadata": {"name": "tm-0123456789ab", "uid": "u1", **metadata},
        "spec": {"nodeName": node} if node else {},
        "status": status,
    }
    return msgspec.json.decode(msgspec.json.encode(found), type=Pod)


def container(state: dict[str, Any], name: str = "taskmanager") -> list[dict[str, Any]]:
    return [{"name": name, "image": "x", "imageID": "", "ready": False, "restartCount": 0, "state": state}]


def seen(status: dict[str, Any], *, node: str = "node-1", **metadata: Any) -> Observed:
    found = observed(pod(status, node=node, **metadata))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("status", "node", "stage", "why"),
    [
        ({"phase": "Pending"}, "", Stage.PENDING, ""),
        (
            {
                "phase": "Pending",
                "conditions": [
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": "0/3 nodes are available: 3 Insufficient cpu.",
                    }
                ],
            },
            "",
            Stage.PENDING,
            "its Pod is not scheduled: 0/3 nodes are available: 3 Insufficient cpu.",
        ),
        (
            {"phase": "Pending", "containerStatuses": container({"waiting": {"reason": "ContainerCreating"}})},
            "node-1",
            Stage.SCHEDULED,
            "",
        ),
        (
            {
                "phase": "Pending",
                "containerStatuses": container({"waiting": {"reason": "ErrImagePull", "message": "no such image"}}),
            },
            "node-1",
            Stage.SCHEDULED,
            "its container taskmanager waits: ErrImagePull: no such image",
        ),
        (
            {"phase": "Running", "containerStatuses": container({"running": {"startedAt": "2026-11-29T18:00:00Z"}})},
            "node-1",
            Stage.RUNNING,
            "",
        ),
        (
            {
                "phase": "Failed",
                "containerStatuses": container({"terminated": {"exitCode": 2, "reason": "Error", "message": "a\nb"}}),
            },
            "node-1",
            Stage.ENDED,
            "its container ended with exit code 2; its log ends:\na\nb",
        ),
        (
            {
                "phase": "Running",
                "containerStatuses": container({"terminated": {"exitCode": 0, "reason": "Completed"}}),
            },
            "node-1",
            Stage.ENDED,
            "its container ended with exit code 0",
        ),
        (
            {
                "phase": "Failed",
                "containerStatuses": container(
                    {"terminated": {"exitCode": 128, "reason": "StartError", "message": "exec: not found"}}
                ),
            },
            "node-1",
            Stage.ENDED,
            "its container ended with exit code 128 (StartError); its log ends:\nexec: not found",
        ),
        (
            {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."},
            "node-1",
            Stage.ENDED,
            "its Pod failed: Evicted: The node was low on resource: memory.",
        ),
        (
            {
                "phase": "Failed",
                "initContainerStatuses": container({"terminated": {"exitCode": 1, "message": "no volume"}}, "prepare"),
            },
            "node-1",
            Stage.ENDED,
            "its init container prepare ended with exit code 1; its log ends:\nno volume",
        ),
        ({"phase": "Failed"}, "node-1", Stage.ENDED, "its Pod ended, and Kubernetes does not say why"),
    ],
)
def test_each_state_of_a_pod_has_its_words(status: dict[str, Any], node: str, stage: Stage, why: str) -> None:
    """The words are Kubernetes' own, so that they can be looked up (R50)."""
    found = seen(status, node=node)
    assert (found.stage, found.why) == (stage, why)


def test_other_containers_of_the_pod_do_not_count() -> None:
    """A template may add some, which run on when the TaskManager has ended (R50)."""
    running = container({"running": {}}, "log-shipper")
    ended = container({"terminated": {"exitCode": 1, "reason": "Error"}})
    assert seen({"phase": "Running", "containerStatuses": [*running, *ended]}).stage is Stage.ENDED
    assert seen({"phase": "Pending", "containerStatuses": running}).stage is Stage.SCHEDULED
    left, works = container({"terminated": {"exitCode": 1}}, "log-shipper"), container({"running": {}})
    assert seen({"phase": "Running", "containerStatuses": [*left, *works]}).stage is Stage.RUNNING


def test_a_pod_that_kubernetes_ended_says_for_whom() -> None:
    """A drain, a lost node and a more important Pod look alike otherwise (R50)."""
    target = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "PreemptionByScheduler",
        "message": "preempting to accommodate a higher priority pod",
    }
    status = {"phase": "Running", "conditions": [target], "containerStatuses": container({"running": {}})}
    words = "PreemptionByScheduler: preempting to accommodate a higher priority pod"
    assert removed(pod(status)) == f"its Pod was deleted; {words}"
    ended = status | {"containerStatuses": container({"terminated": {"exitCode": 0}})}
    assert seen(ended).why == f"its container ended with exit code 0; {words}"


def test_a_pod_of_another_name_is_no_taskmanager() -> None:
    """The labels may have been given to it by mistake (R50)."""
    assert observed(pod({"phase": "Running"}, name="web-0")) is None


def test_a_pod_that_is_being_deleted_is_known_as_such() -> None:
    """It is not asked for again, and not adopted (R50)."""
    assert seen({"phase": "Running"}, deletionTimestamp="2026-11-29T18:00:00Z").deleting
