"""Follows the Pods of a cluster: lists them, then watches from there, and lists again if the watch lost its place."""

from __future__ import annotations

import asyncio
import random
from typing import Protocol

import structlog

from minflinkd.resourcemanager.kubernetes.access import UnusableAccess
from minflinkd.resourcemanager.kubernetes.client import ApiRefused, ApiUnknown, KubernetesClient, WatchExpired
from minflinkd.resourcemanager.kubernetes.wire import Pod

FIRST_PAUSE = 0.2  # seconds before the server is asked again after a failure
LONGEST_PAUSE = 15.0
MOST_WATCHES = 3  # that fail in a row, before all Pods are listed again
SHORT = 1.0  # seconds; a server, or a proxy before it, that ends watches so soon would be asked without a pause

log = structlog.get_logger(__name__)


class Follower(Protocol):
    """Is told of all Pods, and then of each change. It raises nothing."""

    def list_begins(self) -> None: ...

    def listed(self, pods: tuple[Pod, ...]) -> None:
        """All Pods that there are. Some that came since `list_begins` may be missing."""
        ...

    def changed(self, pod: Pod) -> None: ...

    def deleted(self, pod: Pod) -> None: ...

    def trouble(self, why: str) -> None:
        """The API server does not tell at present."""
        ...


async def follow(client: KubernetesClient, follower: Follower) -> None:
    """Run until it is cancelled. The pauses between failures grow; a watch that ends in time is no failure."""
    failures = 0
    while True:
        try:
            follower.list_begins()
            found = await client.list_pods()
            follower.listed(found.items or ())
            failures = 0
            await _watch(client, follower, found.metadata.resource_version)
        except WatchExpired:
            log.info("the watch of Pods lost its place; they are listed again")
            await asyncio.sleep(_pause(0))
        except (ApiUnknown, ApiRefused, UnusableAccess) as error:
            log.warning("the Pods cannot be followed at present", error=str(error))
            follower.trouble(str(error))
            await asyncio.sleep(_pause(failures))
            failures += 1


async def _watch(client: KubernetesClient, follower: Follower, version: str) -> None:
    """Watch from this version on.

    Raises WatchExpired if it must be listed again; ApiUnknown, ApiRefused and UnusableAccess after several failures in
    a row.
    """
    failures, short, loop = 0, 0, asyncio.get_running_loop()
    while True:
        began = loop.time()
        try:
            async for kind, pod in client.watch(version):
                failures = 0
                version = pod.metadata.resource_version or version
                if kind == "DELETED":
                    follower.deleted(pod)
                elif kind in ("ADDED", "MODIFIED"):
                    follower.changed(pod)
        except (ApiUnknown, ApiRefused, UnusableAccess):
            failures += 1
            if failures == MOST_WATCHES:
                raise
            await asyncio.sleep(_pause(failures))
        else:
            short = short + 1 if loop.time() - began < SHORT else 0
            if short:
                await asyncio.sleep(_pause(short))


def _pause(failures: int) -> float:
    """Return seconds. They are random, so that not all clients of a server that was away come at once."""
    longest = min(FIRST_PAUSE * 2.0 ** min(failures, 10), LONGEST_PAUSE)
    return longest * random.uniform(0.5, 1.0)  # noqa: S311  # nobody need be unable to guess it
