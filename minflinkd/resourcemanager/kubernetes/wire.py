"""The parts of Kubernetes' objects that minflinkd reads, as the API server writes them. Fields that are not named here
are skipped.
"""

from __future__ import annotations

from typing import Any

import msgspec

Json = dict[str, Any]


class _Object(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    pass


class OwnerReference(_Object, frozen=True, kw_only=True):
    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool | None = None


class Metadata(_Object, frozen=True, kw_only=True):
    name: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None
    owner_references: tuple[OwnerReference, ...] | None = None
    deletion_timestamp: str | None = None


class Waiting(_Object, frozen=True, kw_only=True):
    reason: str | None = None
    message: str | None = None


class Terminated(_Object, frozen=True, kw_only=True):
    exit_code: int
    signal: int | None = None
    reason: str | None = None
    message: str | None = None  # the end of its log, as terminationMessagePolicy asks for it


class ContainerState(_Object, frozen=True, kw_only=True):
    waiting: Waiting | None = None
    running: Json | None = None
    terminated: Terminated | None = None


class ContainerStatus(_Object, frozen=True, kw_only=True):
    name: str
    state: ContainerState | None = None


class Condition(_Object, frozen=True, kw_only=True):
    type: str
    status: str
    reason: str | None = None
    message: str | None = None


class PodStatus(_Object, frozen=True, kw_only=True):
    phase: str | None = None
    reason: str | None = None
    message: str | None = None
    conditions: tuple[Condition, ...] | None = None
    container_statuses: tuple[ContainerStatus, ...] | None = None
    init_container_statuses: tuple[ContainerStatus, ...] | None = None


class PodSpec(_Object, frozen=True, kw_only=True):
    node_name: str | None = None


class Pod(_Object, frozen=True, kw_only=True):
    metadata: Metadata
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class ListMetadata(_Object, frozen=True, kw_only=True):
    resource_version: str = ""


class PodList(_Object, frozen=True, kw_only=True):
    metadata: ListMetadata
    items: tuple[Pod, ...] | None = None


class WatchEvent(_Object, frozen=True, kw_only=True):
    """ADDED, MODIFIED, DELETED, BOOKMARK or ERROR. The object of an ERROR is a Status."""

    type: str
    object: msgspec.Raw


class Cause(_Object, frozen=True, kw_only=True):
    field: str | None = None
    message: str | None = None


class StatusDetails(_Object, frozen=True, kw_only=True):
    causes: tuple[Cause, ...] | None = None
    retry_after_seconds: int | None = None


class Status(_Object, frozen=True, kw_only=True):
    """What the API server answers if it does not do what it was asked for."""

    number: int | None = msgspec.field(default=None, name="code")  # of the HTTP status
    reason: str | None = None
    message: str | None = None
    details: StatusDetails | None = None
