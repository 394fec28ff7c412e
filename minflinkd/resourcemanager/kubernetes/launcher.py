"""TaskManagers as Pods: carries out what the machine of Pods decides (R50). They outlive the daemon (R7)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import structlog

from minflinkd.resourcemanager.kubernetes import pods as p
from minflinkd.resourcemanager.kubernetes.access import UnusableAccess
from minflinkd.resourcemanager.kubernetes.client import ApiRefused, ApiUnknown, KubernetesClient
from minflinkd.resourcemanager.kubernetes.observed import observed, removed
from minflinkd.resourcemanager.kubernetes.owner import owner_of
from minflinkd.resourcemanager.kubernetes.template import (
    CLUSTER,
    Belonging,
    UnusablePodTemplate,
    manifest,
)
from minflinkd.resourcemanager.kubernetes.watch import follow
from minflinkd.resourcemanager.kubernetes.wire import Json, OwnerReference, Pod
from minflinkd.resourcemanager.launcher import Launched, OnExit, StartFailed, StopFailed
from minflinkd.resourcemanager.sizes import TaskManagerSize
from minflinkd.runtime.ids import ResourceId
from minflinkd.runtime.machine import Machine
from minflinkd.runtime.machine_driver import CommandQueue, StateWatch
from minflinkd.runtime.supervision import TaskOwner

FIRST_LIST_TIMEOUT = 10.0  # seconds that a daemon waits for the Pods of the one before; later ones are adopted, too
CREATION_PATIENCE = 75.0  # seconds for which a Pod is asked for: the API server may be away for a minute
KILL_GRACE = 1  # seconds; with 0, the Pod would be forgotten before its processes have ended
STOP_TIMEOUT = 60.0  # seconds from the request to end to the end; a Pod's own grace period is 30 s
DELETION_PAUSE = 10.0  # seconds before a deletion is asked for again that the API server did not answer

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Reports:
    """Who is told what."""

    on_exit: OnExit
    on_waiting: Callable[[ResourceId, str], None]  # why it does not run yet; "": nothing keeps it any more
    on_found: Callable[[ResourceId], None]  # it was started by an earlier daemon, and seen late


class KubernetesLauncher:
    """A TaskManagerLauncher.

    `own_pod` is the name of the daemon's Pod, whose StatefulSet owns the TaskManagers; empty: nobody owns them. While
    `leads` returns False, nothing is created or deleted (A11). With `check`, the machine's invariants are checked after
    every step.
    """

    def __init__(
        self,
        client: KubernetesClient,
        *,
        template: Json,
        belonging: Belonging,
        own_pod: str,
        reports: Reports,
        leads: Callable[[], bool] = lambda: True,
        check: bool = False,
    ) -> None:
        self._client = client
        self._template = template
        self._belonging = belonging
        self._own_pod = own_pod
        self._reports = reports
        self._leads = leads
        self._owner: OwnerReference | None = None
        self._owner_known = not own_pod
        self._machine = Machine[p.Pods, p.Event, p.Command](
            p.Pods(), p.step, p.check_invariants if check else None, name="Pods"
        )
        self._watch = StateWatch(lambda: self._machine.state)
        self._commands = CommandQueue[p.Command](self._carry_out)
        self._tasks = TaskOwner("Pod launcher")
        self._following = False
        self._before: frozenset[str] = frozenset()  # uids that were known when the present list was asked for
        self._creations: dict[ResourceId, asyncio.Future[None]] = {}
        self._sizes: dict[ResourceId, TaskManagerSize | None] = {}  # of those that are being created
        self._creating: dict[ResourceId, asyncio.Task[None]] = {}
        self._deleting: dict[ResourceId, asyncio.Task[None]] = {}
        self._troubled: set[ResourceId] = set()  # they are said to wait for the API server

    async def check(self) -> None:
        """Have the API server check the template, for a daemon that starts. Raises UnusablePodTemplate.

        If the server does not answer, or does not allow it, that is only logged: TaskManagers that run must be adopted.
        """
        try:
            await self._client.create(await self._manifest(ResourceId("tm-template")), dry_run=True)
        except ApiRefused as error:
            if error.status not in (400, 422):
                log.warning("the API server does not check the Pod template", error=str(error))
                return
            faults = "; ".join(f"{field}: {message}" for field, message in error.causes) or error.message
            raise UnusablePodTemplate(
                f"the API server refuses Pods of the template: {faults}",
                hint="kubernetes.pod-template-file.taskmanager",
            ) from error
        except (ApiUnknown, UnusableAccess) as error:
            log.warning("the Pod template could not be checked", error=str(error))

    # --- TaskManagerLauncher -------------------------------------------------------------------------------------

    async def start(self, resource_id: ResourceId, size: TaskManagerSize | None = None) -> None:
        if not self._leads():
            raise StartFailed(f"{resource_id} is not started: it is not certain that this daemon leads")
        self._follow()
        created = self._creations[resource_id] = asyncio.get_running_loop().create_future()
        created.add_done_callback(_look_at)
        self._sizes[resource_id] = size
        self._feed(p.PodWanted(resource_id))
        await asyncio.shield(created)  # a caller that is cancelled does not keep the Pod from being watched

    async def stop(self, resource_id: ResourceId, *, kill: bool = False) -> None:
        if resource_id not in self._machine.state.pods:
            return
        if not self._leads():
            log.warning("a TaskManager is left to the leader", resource_id=resource_id)
            return
        self._feed(p.PodUnwanted(resource_id, kill))
        try:
            await self._watch.until(lambda state: _over(state, resource_id), STOP_TIMEOUT)
        except TimeoutError as error:
            raise StopFailed(
                f"the Pod {resource_id} is still there {STOP_TIMEOUT:g} s after its deletion was asked for",
                hint="its node may be lost, or the API server away; it goes when they are back, or with its node",
            ) from error

    async def adopt(self) -> tuple[Launched, ...]:
        self._follow()
        try:
            await self._watch.until(lambda state: state.synced, FIRST_LIST_TIMEOUT)
        except TimeoutError:
            log.warning("the API server does not list the Pods; they are adopted later", seconds=FIRST_LIST_TIMEOUT)
        return self.living()

    def living(self) -> tuple[Launched, ...]:
        pods = self._machine.state.pods.values()
        return tuple(Launched(pod.resource_id, waiting=pod.why) for pod in pods if pod.wanted)

    async def stop_all(self, *, adopted: bool = True) -> None:
        wanted = [pod for pod in self._machine.state.pods.values() if pod.wanted and (adopted or not pod.adopted)]
        await asyncio.gather(*(self.stop(pod.resource_id) for pod in wanted))

    async def reap_leftovers(self) -> None:
        await self.adopt()
        left = [pod.resource_id for pod in self._machine.state.pods.values() if pod.wanted and pod.adopted]
        for ended in await asyncio.gather(*(self.stop(each, kill=True) for each in left), return_exceptions=True):
            if isinstance(ended, StopFailed):  # it goes as soon as it can
                log.error("a leftover is still there", error=str(ended))
            elif isinstance(ended, BaseException):
                raise ended

    async def aclose(self) -> None:
        await self._tasks.aclose()
        for created in self._creations.values():
            created.cancel()
        await self._client.aclose()

    # --- Follower ------------------------------------------------------------------------------------------------

    def list_begins(self) -> None:
        self._before = frozenset(pod.uid for pod in self._machine.state.pods.values() if pod.uid)

    def listed(self, pods: tuple[Pod, ...]) -> None:
        seen = tuple(found for pod in pods if (found := observed(pod)) is not None)
        self._feed(p.PodsListed(seen, self._before))
        for resource_id in tuple(self._troubled):
            self._trouble_over(resource_id)

    def changed(self, pod: Pod) -> None:
        if (seen := observed(pod)) is not None:
            self._feed(p.PodSeen(seen))

    def deleted(self, pod: Pod) -> None:
        if (seen := observed(pod)) is not None:
            self._feed(p.PodRemoved(seen.resource_id, seen.uid, removed(pod)))

    def trouble(self, why: str) -> None:
        """Pods that do not run yet wait for the API server, too."""
        for pod in self._machine.state.pods.values():
            if pod.phase in (p.PodPhase.REQUESTED, p.PodPhase.PENDING, p.PodPhase.SCHEDULED):
                self._waits_for_server(pod.resource_id, why)

    def _waits_for_server(self, resource_id: ResourceId, why: str) -> None:
        self._troubled.add(resource_id)
        self._reports.on_waiting(resource_id, why)

    def _trouble_over(self, resource_id: ResourceId) -> None:
        """Say again what keeps the Pod from running, or that nothing does."""
        if resource_id in self._troubled:
            self._troubled.discard(resource_id)
            pod = self._machine.state.pods.get(resource_id)
            self._reports.on_waiting(resource_id, pod.why if pod is not None else "")

    # --- the machine and the world -------------------------------------------------------------------------------

    def _follow(self) -> None:
        if not self._following:
            self._following = True
            self._tasks.loop("follow the Pods", lambda: follow(self._client, self))

    def _feed(self, event: p.Event) -> None:
        if self._tasks.closed:
            return
        self._commands.add(self._machine.feed(event, asyncio.get_running_loop().time()))
        self._watch.changed()

    def _carry_out(self, command: p.Command) -> None:
        match command:
            case p.CreatePod(resource_id):
                self._keep(self._creating, resource_id, f"create {resource_id}", self._create(resource_id))
                self._creating[resource_id].add_done_callback(lambda _: self._creation_over(resource_id))
            case p.GiveUpCreation(resource_id):
                self._creating[resource_id].cancel()
            case p.DeletePod(resource_id, uid, kill):
                if (earlier := self._deleting.get(resource_id)) is not None:
                    earlier.cancel()
                name = f"delete {resource_id}"
                self._keep(self._deleting, resource_id, name, self._delete(resource_id, uid, kill))
            case p.TellExit(resource_id, how):
                log.info("the Pod of a TaskManager has ended", resource_id=resource_id, how=how)
                self._reports.on_exit(resource_id, how)
            case p.TellWaiting(resource_id, why):
                if why:
                    log.warning("the Pod of a TaskManager does not run yet", resource_id=resource_id, why=why)
                self._reports.on_waiting(resource_id, why)
            case p.TellFound(resource_id):
                log.info("adopted a TaskManager", resource_id=resource_id)
                self._reports.on_found(resource_id)

    def _keep(
        self,
        kept: dict[ResourceId, asyncio.Task[None]],
        resource_id: ResourceId,
        name: str,
        work: Coroutine[Any, Any, None],
    ) -> None:
        """Keep the task in `kept` until it has ended, or another one takes its place."""
        task = kept[resource_id] = self._tasks.job(name, work)

        def ended(_: object) -> None:
            if kept.get(resource_id) is task:
                del kept[resource_id]

        task.add_done_callback(ended)

    async def _create(self, resource_id: ResourceId) -> None:
        """Create the Pod, and answer whoever waits for it."""
        created = self._creations[resource_id]
        try:
            pod = await self._created(resource_id)
        except (ApiRefused, ApiUnknown, UnusableAccess) as error:
            if (seen := self._machine.state.pods.get(resource_id)) is not None and seen.uid:
                if not created.done():  # the watch shows that it was created
                    created.set_result(None)
                return
            self._feed(p.CreationFailed(resource_id, unknown=isinstance(error, ApiUnknown)))
            failed = StartFailed(f"the Pod {resource_id} could not be created: {error.message}", hint=error.hint)
            failed.__cause__ = error
            if not created.done():
                created.set_exception(failed)
        else:
            self._feed(p.PodCreated(resource_id, pod.metadata.uid))
            if not created.done():
                created.set_result(None)
            self._trouble_over(resource_id)

    def _creation_over(self, resource_id: ResourceId) -> None:
        """If it was given up, or failed in a way that nobody foresaw, it is not known whether the Pod exists."""
        created = self._creations.pop(resource_id, None)
        self._sizes.pop(resource_id, None)
        if created is not None and not created.done() and not self._tasks.closed:
            self._feed(p.CreationFailed(resource_id, unknown=True))
            created.set_exception(StartFailed(f"the Pod {resource_id} is not wanted any more"))

    async def _created(self, resource_id: ResourceId) -> Pod:
        """Raises ApiRefused, ApiUnknown, UnusableAccess."""

        def trouble(error: ApiUnknown) -> None:
            self._waits_for_server(resource_id, str(error))

        wanted = await self._manifest(resource_id)
        try:
            return await self._client.create(wanted, patience=CREATION_PATIENCE, trouble=trouble)
        except ApiRefused as error:
            if error.status != 409:
                raise
            found = await self._client.read(resource_id)
            if found is None or not self._is_own(found):
                raise
            return found  # the answer to an earlier attempt was lost

    def _is_own(self, pod: Pod) -> bool:
        return (pod.metadata.labels or {}).get(CLUSTER) == self._belonging.cluster_id

    async def _manifest(self, resource_id: ResourceId) -> Json:
        """Raises ApiRefused, ApiUnknown, UnusableAccess."""
        if not self._owner_known:
            self._owner = await owner_of(self._client, self._own_pod)
            self._owner_known = True
        return manifest(self._template, resource_id, self._belonging, self._owner, self._sizes.get(resource_id))

    async def _delete(self, resource_id: ResourceId, uid: str, kill: bool) -> None:
        """Ask for the deletion until it is answered. The watch tells when the Pod is gone."""
        while self._leads():
            try:
                there = await self._client.delete(resource_id, uid=uid, grace=KILL_GRACE if kill else None)
            except (ApiUnknown, UnusableAccess) as error:
                log.warning("a Pod could not be deleted, and is tried again", resource_id=resource_id, error=str(error))
                await asyncio.sleep(DELETION_PAUSE)
                continue
            except ApiRefused as error:
                log.error("a Pod may not be deleted", resource_id=resource_id, error=str(error))
                return
            if not there:
                self._feed(p.PodMissing(resource_id))
            return


def _look_at(created: asyncio.Future[None]) -> None:
    """Take note of the error, if nobody else does: its caller may be gone."""
    if not created.cancelled():
        created.exception()


def _over(state: p.Pods, resource_id: ResourceId) -> bool:
    pod = state.pods.get(resource_id)
    return pod is None or pod.phase is p.PodPhase.ENDED
