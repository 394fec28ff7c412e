"""What a Pod's object says about its TaskManager, in words for people. Pure.

Kubernetes tells in many places why a Pod does not run or has ended: conditions, states of containers, reasons of the
Pod itself. This is the one place that reads them.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from minflinkd.resourcemanager.kubernetes.wire import ContainerStatus, Pod, Terminated
from minflinkd.resourcemanager.launcher import with_last_words
from minflinkd.runtime.errors import InvalidId
from minflinkd.runtime.ids import ResourceId, parse_resource_id

CONTAINER = "taskmanager"  # the container with the TaskManager
_USUAL = ("ContainerCreating", "PodInitializing")  # reasons to wait that need no word


class Stage(IntEnum):
    """How far a Pod has come. It never goes back."""

    PENDING = 0  # on no node
    SCHEDULED = 1
    RUNNING = 2
    ENDED = 3


@dataclass(frozen=True)
class Observed:
    resource_id: ResourceId
    uid: str
    stage: Stage
    why: str = ""  # why it does not run yet, or how it ended
    deleting: bool = False  # somebody has asked for its deletion


def observed(pod: Pod) -> Observed | None:
    """Return what is known about the Pod, or None if its name is no TaskManager's."""
    try:
        resource_id = parse_resource_id(pod.metadata.name)
    except InvalidId:
        return None
    stage, why = _stage(pod)
    return Observed(resource_id, pod.metadata.uid, stage, why, pod.metadata.deletion_timestamp is not None)


def removed(pod: Pod) -> str:
    """Return how a TaskManager ended whose Pod is gone. `pod`: the last that was seen of it."""
    stage, why = _stage(pod)
    return why if stage is Stage.ENDED else "; ".join(["its Pod was deleted", *_disruption(pod)])


def _stage(pod: Pod) -> tuple[Stage, str]:
    if (how := _end(pod)) is not None:
        return Stage.ENDED, "; ".join([how, *_disruption(pod)])
    state = next((status.state for status in pod.status.container_statuses or () if status.name == CONTAINER), None)
    if state is not None and state.running is not None:
        return Stage.RUNNING, ""
    return (Stage.SCHEDULED if pod.spec.node_name else Stage.PENDING), next(_obstacles(pod), "")


def _obstacles(pod: Pod) -> Iterator[str]:
    """Yield why the Pod does not run yet, in Kubernetes' own words."""
    for condition in pod.status.conditions or ():
        if condition.type == "PodScheduled" and condition.status == "False":
            yield f"its Pod is not scheduled: {condition.message or condition.reason or 'no reason is given'}"
    for status in _containers(pod):
        waiting = status.state.waiting if status.state is not None else None
        if waiting is not None and waiting.reason and waiting.reason not in _USUAL:
            said = f": {waiting.message}" if waiting.message else ""
            yield f"its container {status.name} waits: {waiting.reason}{said}"
    if pod.status.reason and pod.status.phase == "Pending":
        yield f"its Pod waits: {pod.status.reason}{f': {pod.status.message}' if pod.status.message else ''}"


def _containers(pod: Pod) -> tuple[ContainerStatus, ...]:
    return (*(pod.status.init_container_statuses or ()), *(pod.status.container_statuses or ()))


def _end(pod: Pod) -> str | None:
    """Return how the TaskManager ended, or None if it has not. Other containers of its Pod may still run."""
    status = pod.status
    over = status.phase in ("Failed", "Succeeded")
    if over and status.reason:  # Evicted, NodeShutdown, Preempting, DeadlineExceeded: the exit code says less
        return f"its Pod failed: {status.reason}{f': {status.message}' if status.message else ''}"
    for container in status.container_statuses or ():
        if container.name == CONTAINER and container.state is not None and container.state.terminated is not None:
            return _exit("its container", container.state.terminated)
    for container in status.init_container_statuses or ():
        ended = container.state.terminated if container.state is not None else None
        if over and ended is not None and ended.exit_code != 0:
            return _exit(f"its init container {container.name}", ended)
    return "its Pod ended, and Kubernetes does not say why" if over else None


def _exit(what: str, ended: Terminated) -> str:
    exit_code = ended.exit_code
    if ended.reason == "OOMKilled":
        return with_last_words(
            f"{what} was killed because it needed more memory than its limit (OOMKilled, exit code {exit_code}): raise "
            "resources.limits.memory in the Pod template, or lower taskmanager.memory.heap.size",
            ended.message or "",
        )
    number = ended.signal or (exit_code - 128 if 128 < exit_code < 160 else 0)
    how = (
        f"{what} was killed by {_signal_name(number)} (exit code {exit_code})"
        if number
        else f"{what} ended with exit code {exit_code}"
    )
    if ended.reason and ended.reason not in ("Error", "Completed"):
        how += f" ({ended.reason})"  # ContainerCannotRun, StartError, DeadlineExceeded
    return how if exit_code == 0 else with_last_words(how, ended.message or "")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have none
        return f"signal {number}"


def _disruption(pod: Pod) -> list[str]:
    """Return why Kubernetes itself ended the Pod: its node was lost or drained, or a more important Pod came."""
    return [
        f"{condition.reason}: {condition.message}" if condition.message else str(condition.reason)
        for condition in pod.status.conditions or ()
        if condition.type == "DisruptionTarget" and condition.status == "True" and condition.reason
    ]
