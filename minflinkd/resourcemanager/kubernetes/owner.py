"""Who owns the Pods of TaskManagers: the StatefulSet of the daemon.

Kubernetes deletes them with it. The daemon's own Pod cannot be their owner: they would go whenever it is restarted.
"""

from __future__ import annotations

import structlog

from minflinkd.resourcemanager.kubernetes.client import KubernetesClient
from minflinkd.resourcemanager.kubernetes.wire import OwnerReference

KIND = "StatefulSet"

log = structlog.get_logger(__name__)


async def owner_of(client: KubernetesClient, pod: str) -> OwnerReference | None:
    """Return the StatefulSet of this Pod, or None if it has none. Raises ApiRefused, ApiUnknown, UnusableAccess."""
    found = await client.read(pod)
    owners = (found.metadata.owner_references or ()) if found is not None else ()
    owner = next((each for each in owners if each.controller), None)
    if owner is not None and owner.kind == KIND:
        return owner
    log.warning(
        "the Pods of TaskManagers have no owner, and stay if the daemon is deleted: its Pod belongs to no StatefulSet",
        pod=pod,
        owner=owner.kind if owner is not None else None,
    )
    return None
