"""The composition root of the daemon: creates every component once and passes it on. Decides nothing."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import structlog

from minflinkd import __version__
from minflinkd.blob.access import access_token
from minflinkd.blob.exchange import DaemonExchange
from minflinkd.blob.offloading import OffloadingNetwork
from minflinkd.blob.server import BlobServer
from minflinkd.checkpoint import hooks
from minflinkd.checkpoint.store import require_fit
from minflinkd.config import Config
from minflinkd.config import directories as where
from minflinkd.config.resources import resources_of
from minflinkd.config.taskmanager_options import Driver
from minflinkd.config.tls_options import tls_of
from minflinkd.daemon_access import Door, bind_local, new_door
from minflinkd.daemon_kubernetes import kubernetes_launcher
from minflinkd.daemon_options import blob_options, dispatcher_options, master_hooks, resource_manager_options
from minflinkd.diagnosis.facts import silent_after
from minflinkd.dispatcher.dispatcher import Dispatcher
from minflinkd.dispatcher.job_store import JobStore
from minflinkd.ha.embedded import StateDirectory, cluster_id, cluster_secret
from minflinkd.ha.meeting_point import FILE as MEETING_FILE
from minflinkd.ha.meeting_point import MeetingPoint, last_meeting_point
from minflinkd.ha.service import Member
from minflinkd.ha.standing import Standing, member_name
from minflinkd.listeners.registry import new_listeners
from minflinkd.listeners.telling import Listeners
from minflinkd.metrics.loop_lag import LoopLag
from minflinkd.metrics.registry import Metrics
from minflinkd.metrics.samples import LeadershipSample
from minflinkd.resourcemanager.kubernetes.launcher import Reports
from minflinkd.resourcemanager.launcher import TaskManagerLauncher
from minflinkd.resourcemanager.process import ProcessLauncher
from minflinkd.resourcemanager.resource_manager import ResourceManager
from minflinkd.resourcemanager.sizes import TaskManagerSize
from minflinkd.resourcemanager.standalone import StandaloneLauncher
from minflinkd.rest.backend import Backend
from minflinkd.rest.cluster import About
from minflinkd.rest.guard import limits_with, own_names
from minflinkd.rest.history.keeper import HistoryKeeper
from minflinkd.rest.history.sampler import Sampler
from minflinkd.rest.identity.audit import AuditLog
from minflinkd.rest.server import Entrance, Listening, LogSources, RestServer, place
from minflinkd.rpc.door import RpcDoor
from minflinkd.rpc.local import LocalNetwork
from minflinkd.rpc.network import Address
from minflinkd.rpc.tcp import RpcServer
from minflinkd.runtime import listening
from minflinkd.runtime import log as logging
from minflinkd.runtime.clock import SystemClock
from minflinkd.runtime.component import Component
from minflinkd.runtime.host_resources import host_resources
from minflinkd.runtime.ids import Chance, IdSource, ResourceId
from minflinkd.runtime.local_socket import LocalSocket
from minflinkd.runtime.supervisor import Supervisor
from minflinkd.runtime.tls import Clients
from minflinkd.storage.location import Location
from minflinkd.storage.registry import Storages
from minflinkd.taskmanager.child.java import check_java
from minflinkd.taskmanager.child.run_as import check_run_as
from minflinkd.taskmanager.settings import DaemonAddress, settings_of, write_settings

CHILD_REGISTRATION_TIMEOUT = 600.0  # seconds; a TaskManager of ours does not stay behind forever (R15)
READY_FILE = "daemon.json"

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class DaemonInfo:
    """The addresses of a daemon that is ready."""

    url: str
    blob_url: str
    state_directory: Path
    pid: int
    elected: bool = False  # it takes part in an election, and may be a standby
    asks: bool = True  # HTTP asks for a token


@dataclass(frozen=True, kw_only=True)
class Mandate:
    """A leadership that an election gave to this daemon."""

    epoch: int
    leads: Callable[[], bool]  # whether it is certain at this moment that no other daemon leads
    cluster_id: str
    records: Location  # of the job store; accepts writes only while this leadership lasts
    sockets: Sequence[socket.socket]  # of the HTTP endpoint, already listening
    http: Door  # who is let in there
    url: str  # of the endpoint, for the other daemons and for clients
    door: RpcDoor  # through which TaskManagers connect
    members: Callable[[], Sequence[Member]]  # who takes part in the election, the leader first
    trouble: Callable[[], str]  # why the coordination service cannot be used at present
    without_leader: float  # seconds without a known leader before this leadership


class Daemon(Component):
    """All components of one daemon. `start` returns when it leads and answers HTTP; TaskManagers start afterwards.

    Without a `mandate` it leads as long as it holds its state directory.
    """

    def __init__(self, config: Config, environ: Mapping[str, str], mandate: Mandate | None = None) -> None:
        super().__init__("daemon")
        self.config = config
        self.state_directory = where.state_directory(config, environ)
        self._environ = environ
        self._mandate = mandate
        self._directory = StateDirectory(self.state_directory)
        self._leads = mandate.leads if mandate is not None else lambda: self._directory.held
        self._clock = SystemClock()
        self._parts: list[Component] = []
        self._storages = Storages(config.storage.options, leads=self._leads)
        hooks.require(master_hooks(config))
        self._network = LocalNetwork(leads=lambda: self._leads())
        self.launcher: TaskManagerLauncher | None = None
        self._rest_sockets: list[socket.socket] = []
        self._local: LocalSocket | None = None
        self._came_up = False
        self._leads_since_ms = 0
        self._hands_over = False
        self.handover_asked = asyncio.Event()  # over HTTP

    @property
    def info(self) -> DaemonInfo:
        asks = self._door.access.asks
        return DaemonInfo(self.rest.url, self.blobs.url, self.state_directory, os.getpid(), asks=asks)

    async def _start(self) -> None:
        mandate = self._mandate
        epoch = self._epoch = self._directory.take() if mandate is None else mandate.epoch
        self._leads_since_ms = self._clock.epoch_ms()
        ids = self._ids = IdSource(epoch=epoch)
        config, state = self.config, self.state_directory
        told = new_listeners(config.listeners.options)
        if mandate is None:
            self._ready_file.unlink(missing_ok=True)  # left by a daemon that was killed
        # Check for Java and the port of the endpoint first: without them a TaskManager would be started in vain.
        if config.resourcemanager.driver.starts_here:
            java = await asyncio.to_thread(check_java, os.environ)  # TaskManagers inherit it
            log.info("Java was found", program=str(java.program), version=java.version)
            await asyncio.to_thread(check_run_as, config.taskmanager.run_as, config.taskmanager.local_state_dir)
        self._door = new_door(config, self._environ, state) if mandate is None else mandate.http
        self._rest_sockets = await self._listening_sockets()
        self._secret_file = where.secret_file(config, state)
        secret = cluster_secret(self._secret_file)
        tls, rest_tls = tls_of(config.internal_tls), tls_of(config.rest_tls)
        self._cluster_id = cluster_id(state) if mandate is None else mandate.cluster_id
        self.rpc = RpcServer(
            self._network,
            secret=secret,
            place=listening.Place(
                config.jobmanager.bind_host, self._rpc_ports(), "jobmanager.bind-host", "jobmanager.rpc.port"
            ),
            tls=tls,
            heartbeat_timeout=config.heartbeat.timeout,
            on_disconnect=self._task_manager_disconnected,
            door=None if mandate is None else mandate.door,
        )
        ha_store = self._storages.at(self._blob_store)
        await self._storages.require_writable(ha_store)
        self.blobs = BlobServer(
            options=blob_options(config, state, self._cluster_id),
            token=access_token(secret),
            clock=self._clock,
            leads=self._leads,
            ha_store=ha_store,
            # Clients of the HTTP endpoint have no certificate, but its token. One that is shown must be good.
            tls=tls.server(Clients.MAY_HAVE_ONE) if tls else None,
            admit=lambda user, size: self.dispatcher.admit_upload(user, size),
        )
        self.offloading = OffloadingNetwork(
            self._network, DaemonExchange(self.blobs), minsize=config.blob.offload_minsize
        )
        options = dispatcher_options(config, state, epoch)
        checkpoints = self._storages.at(options.checkpoint_root)
        require_fit(checkpoints)
        await self._storages.require_writable(checkpoints)
        local = Path(config.taskmanager.local_state_dir or state)
        self._host = await asyncio.to_thread(host_resources, local.absolute())
        self.launcher = await self._new_launcher()
        self.resource_managers = Supervisor("ResourceManager", self._new_resource_manager, clock=self._clock)
        self.dispatcher = Dispatcher(
            network=self.offloading,
            store=JobStore(self._records, shared=mandate is not None),
            storages=self._storages,
            blobs=self.blobs,
            clock=self._clock,
            chance=Chance(ids, random.SystemRandom()),
            options=options,
            leads=self._leads,
        )
        self.metrics = Metrics(
            version=__version__,
            heartbeat_timeout=config.heartbeat.timeout,
            rpc=self._network.figures,
            storage_requests=self._storages.statistics,
            leadership=self._leadership_sample,
        )
        audit_file = where.audit_log(config, state)
        audit = None if audit_file is None else AuditLog(audit_file)
        backend = Backend(
            self._network,
            submit_timeout=lambda: self.dispatcher.submission_timeout,
            hand_over=self.handover_asked.set,
            stop=lambda: os.kill(os.getpid(), signal.SIGTERM),
            uploads=state / "uploads",
        )
        self.rest = RestServer(
            backend,
            listening=Listening(
                host=config.rest.bind_address,
                port=config.rest.port,
                allowed_hosts=own_names(config.rest.address, config.security.allowed_hosts),
                sockets=self._rest_sockets,
                tls=rest_tls.server(config.rest_tls.clients) if rest_tls else None,
            ),
            about=About(
                version=__version__,
                config_items=lambda: self.config.as_items(),
                blob_url=lambda: self.blobs.url,
                standing=self._standing,
                directories=(self.state_directory,),
                silent_after=silent_after(config.heartbeat.interval, config.heartbeat.timeout),
                log_tail=logging.tail,
            ),
            entrance=Entrance(access=self._door.access, audit=audit),
            metrics=self.metrics,
            limits=limits_with(
                largest_body=config.rest.max_content_length, event_streams=config.rest.max_event_streams
            ),
            blobs=self.blobs,
            logs=LogSources(
                blobs=self.blobs,
                offload_minsize=config.blob.offload_minsize,
                ended=where.task_managers(self.state_directory),
            ),
        )
        lag = LoopLag(self.metrics.registry, self._clock)
        past = self.metrics.history
        keeper = HistoryKeeper(past, self._storages.at(self._history_store), epoch=epoch, clock=self._clock)
        sampler = Sampler(backend, past, lag=lag.most, rpc=self._network.figures, tell=self.rest.events.sampled)
        listeners = Listeners(network=self._network, clock=self._clock, listeners=told)
        # In the order in which they start; they stop in reverse order.
        await self._begin(lag, self.rpc)
        await self._meet_task_managers()
        await self._begin(self.blobs, self.offloading, self.resource_managers, self.dispatcher)
        await self._begin(*(() if audit is None else (audit,)), listeners, self.rest, keeper, sampler)
        if mandate is None:
            # Tells whoever started a daemon on a free port where it is, once it is ready.
            await self._storages.at(str(self._ready_file)).write_bytes(self._ready())
        self._came_up = True

    async def _begin(self, *parts: Component) -> None:
        for part in parts:
            self._parts.append(part)
            await part.start()

    @property
    def starting(self) -> str:
        """The component that is being started, or the last one that was."""
        return self._parts[-1].name if self._parts else "storage"

    async def _listening_sockets(self) -> list[socket.socket]:
        if self._mandate is not None:
            return [each.dup() for each in self._mandate.sockets]
        sockets = await listening.bind(place(self.config.rest.bind_address, self.config.rest.port))
        self._local = bind_local(self.config, self._environ, sockets[0].getsockname()[1], self._door.local)
        return sockets if self._local is None else [*sockets, self._local.socket]

    @property
    def _records(self) -> Location:
        return self._storages.at(str(self.state_directory / "jobs")) if self._mandate is None else self._mandate.records

    def _rpc_ports(self) -> tuple[int, ...]:
        """Return the ports to try: first the earlier daemon's, if the options allow it (A6)."""
        configured, last = self.config.jobmanager.rpc_port, last_meeting_point(self.state_directory)
        if last is None or not (last.port in configured or 0 in configured):
            return tuple(configured)
        return (last.port, *configured)

    async def _meet_task_managers(self) -> None:
        """Let an earlier daemon's TaskManagers register with this one (R7). If they cannot find it, end them."""
        assert self.launcher is not None
        last = last_meeting_point(self.state_directory)
        here = MeetingPoint.of_this_version(self.rpc.endpoint[1], tls=self.config.internal_tls.enabled)
        if last is None or not last.finds(here):
            if last is not None:
                log.warning(
                    "TaskManagers of the previous daemon cannot find this one or cannot speak with it: those that are "
                    "left are ended, and their jobs restart",
                    port_before=last.port,
                    port=here.port,
                    version_before=last.version,
                )
            await self.launcher.reap_leftovers()
        if here != last:
            await self._storages.at(str(self.state_directory / MEETING_FILE)).write_bytes(msgspec.json.encode(here))

    async def _stop(self) -> None:
        ends = [part.aclose for part in reversed(self._parts)]
        if self._mandate is not None and not self._leads():
            # This comes first, so that TaskManagers look for the next leader now, however long the rest takes to close.
            ends = [*(part.aclose for part in self._parts if isinstance(part, RpcServer)), *ends]
        if self._parts:  # otherwise the directory and its content belong to another daemon
            ends.insert(0, self._withdraw)
        self._parts = []
        if self.launcher is not None:
            ends += [self._end_task_managers, self.launcher.aclose]
        for end in (*ends, self._network.aclose, self._storages.aclose):
            try:
                await end()
            except Exception:  # the other parts must end all the same, above all TaskManagers
                log.exception("a part of the daemon did not end well")
        listening.close(self._rest_sockets)  # the endpoint has not taken them over if the start failed
        if self._local is not None:
            self._local.close()
        self._directory.release()

    async def before_stop(self) -> None:
        """Take the `on-stop` action for all jobs, while everything still runs. Raises nothing."""
        await self.dispatcher.before_stop()

    def hand_over(self) -> None:
        """Leave TaskManagers and tasks running for the next daemon when this one is closed (A15)."""
        self._hands_over = True

    async def _withdraw(self) -> None:
        if self._mandate is None:
            self._ready_file.unlink(missing_ok=True)

    async def _end_task_managers(self) -> None:
        """End all TaskManagers.

        A daemon that hands over leaves all of them running. A daemon that did not come up leaves those of an earlier
        daemon to the next one (A6).
        """
        assert self.launcher is not None
        if self._hands_over:
            return
        await self.launcher.stop_all(adopted=self._came_up)

    def apply(self, config: Config) -> None:
        """Apply the options that can change at run time. Running jobs keep the options they started with."""
        self.config = config
        if (resource_manager := self.resource_managers.current) is not None:  # otherwise the next one starts with them
            resource_manager.reconfigure(resource_manager_options(config, self._host))
        self.dispatcher.options = dispatcher_options(config, self.state_directory, self._epoch)

    async def read_tokens_again(self) -> None:
        """Raises nothing."""
        await self._door.read_tokens_again()

    def _standing(self) -> Standing:
        url = self.rest.url if self._mandate is None else self._mandate.url
        this = Member(name=member_name(), url=url, leading_since_ms=self._leads_since_ms, epoch=self._epoch)
        if self._mandate is None:
            return Standing(this)
        others = tuple(each for each in self._mandate.members() if (each.name, each.url) != (this.name, this.url))
        return Standing(this, others, self._mandate.trouble())

    def _leadership_sample(self) -> LeadershipSample:
        standing = self._standing()
        return LeadershipSample(
            since_ms=self._leads_since_ms,
            epoch=self._epoch,
            standbys=len(standing.standbys),
            without_leader=0.0 if self._mandate is None else self._mandate.without_leader,
            adopted_tasks=self.dispatcher.adopted_tasks,
        )

    @property
    def _ready_file(self) -> Path:
        return self.state_directory / READY_FILE

    def _ready(self) -> bytes:
        info = self.info
        return msgspec.json.encode({"url": info.url, "blob_url": info.blob_url, "pid": info.pid})

    @property
    def _blob_store(self) -> str:
        """Below the cluster's id: the cleanup deletes what it does not know, so that must be this cluster's (B19)."""
        return f"{where.ha_storage_uri(self.config, self.state_directory).rstrip('/')}/{self._cluster_id}/blobs"

    @property
    def _history_store(self) -> str:
        """In the storage for recovery, so that another leader finds it."""
        return f"{where.ha_storage_uri(self.config, self.state_directory).rstrip('/')}/{self._cluster_id}/history"

    def _task_manager_exited(self, resource_id: ResourceId, reason: str) -> None:
        if (resource_manager := self.resource_managers.current) is not None:  # otherwise the next one finds out
            resource_manager.task_manager_exited(resource_id, reason)

    def _task_manager_waits(self, resource_id: ResourceId, why: str) -> None:
        if (resource_manager := self.resource_managers.current) is not None:
            resource_manager.task_manager_waits(resource_id, why)

    def _task_manager_found(self, resource_id: ResourceId) -> None:
        if (resource_manager := self.resource_managers.current) is not None:  # otherwise the next one adopts it
            resource_manager.task_manager_found(resource_id)

    def _task_manager_disconnected(self, address: Address) -> None:
        if (resource_manager := self.resource_managers.current) is not None:  # otherwise it registers with the next one
            resource_manager.task_manager_disconnected(ResourceId(address.removeprefix("taskmanager/")))

    def _new_resource_manager(self) -> ResourceManager:
        assert self.launcher is not None
        return ResourceManager(
            network=self._network,
            launcher=self.launcher,
            clock=self._clock,
            ids=self._ids,
            options=resource_manager_options(self.config, self._host),
            blob_url=lambda: self.blobs.url,
            blob_store=self._blob_store,
        )

    async def _new_launcher(self) -> TaskManagerLauncher:
        config = self.config
        if config.resourcemanager.driver is Driver.STANDALONE:
            return StandaloneLauncher()
        if config.resourcemanager.driver is Driver.KUBERNETES:
            reports = Reports(self._task_manager_exited, self._task_manager_waits, self._task_manager_found)
            return await kubernetes_launcher(
                config.kubernetes,
                self._environ,
                cluster_id=self._cluster_id,
                epoch=self._epoch,
                reports=reports,
                leads=self._leads,
            )
        return ProcessLauncher(
            directory=where.task_managers(self.state_directory),
            command=self._task_manager_command,
            on_exit=self._task_manager_exited,
            extra_directories=lambda tm: [local] if (local := where.local_state(config, tm)) else [],
            run_as=config.taskmanager.run_as,
            leads=self._leads,
        )

    def _task_manager_command(
        self, resource_id: ResourceId, directory: Path, size: TaskManagerSize | None = None
    ) -> list[str]:
        """Write the TaskManager's settings and return its command line, which holds no secret."""
        slots = self.config.taskmanager.number_of_task_slots
        host, port = self.rpc.endpoint
        if self.config.internal_tls.enabled:
            host = self.config.jobmanager.rpc_address or host  # the name that the certificate has
        settings = settings_of(
            self.config,
            resource_id=resource_id,
            daemon=DaemonAddress(
                host=host,
                port=port,
                secret_file=self._secret_file,
                blob_url=self.blobs.url,
                blob_store=self._blob_store,
            ),
            directory=directory,
            class_archives=where.class_archives(self.config, self.state_directory),
            registration_timeout=CHILD_REGISTRATION_TIMEOUT,
            slots=None if size is None else size.slots,
            profile=resources_of(self.config, self._host).share(slots) if size is None else size.profile,
        )
        file = directory / "taskmanager.json"
        write_settings(settings, file)
        return [sys.executable, "-m", "minflinkd.taskmanager", "--config", str(file)]
