"""The composition root of a TaskManager's supervisor process: makes every part once, and passes it on."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import psutil
import structlog

from minflinkd import __version__
from minflinkd.blob.access import access_token
from minflinkd.blob.cache import BlobCache
from minflinkd.blob.client import BlobClient
from minflinkd.blob.exchange import TaskManagerExchange
from minflinkd.blob.keys import BlobKind
from minflinkd.blob.offloading import OffloadingNetwork
from minflinkd.filemerging.compaction import CompactionLimits
from minflinkd.filemerging.policy import FileMerging
from minflinkd.rpc.local import LocalNetwork
from minflinkd.rpc.messages import Hardware, Registered, RegisterTaskManager, TaskManagerReport
from minflinkd.rpc.network import task_manager
from minflinkd.rpc.tcp import RpcUplink
from minflinkd.runtime.clock import SystemClock
from minflinkd.runtime.component import Component
from minflinkd.runtime.ids import IdSource
from minflinkd.runtime.system_user import system_user
from minflinkd.runtime.tls import Clients
from minflinkd.storage.own_thread import in_own_thread
from minflinkd.storage.registry import Storages
from minflinkd.taskmanager import log_rotation
from minflinkd.taskmanager.attempts.deployment import Deployer, exchanges
from minflinkd.taskmanager.attempts.local_snapshots import LocalSnapshots
from minflinkd.taskmanager.child import protocol as sp
from minflinkd.taskmanager.child.age import Figures
from minflinkd.taskmanager.child.archive_maker import ArchiveMaker
from minflinkd.taskmanager.child.figures import process_metrics
from minflinkd.taskmanager.child.health import Limits
from minflinkd.taskmanager.child.keeper import SessionKeeper
from minflinkd.taskmanager.exchange.access import data_token
from minflinkd.taskmanager.exchange.endpoint import DataEndpoint
from minflinkd.taskmanager.exchange.mirrors import Mirrors
from minflinkd.taskmanager.logs import Logs
from minflinkd.taskmanager.metrics import disk_metrics, storage_metrics
from minflinkd.taskmanager.settings import TaskManagerSettings, read_secret, tls_of
from minflinkd.taskmanager.slots.core import TaskManagerCore, TaskManagerOptions
from minflinkd.taskmanager.slots.state import SlotOptions
from minflinkd.taskmanager.task_executor import ExecutorOptions, TaskExecutor
from minflinkd.taskmanager.threads import Threads

log = structlog.get_logger(__name__)


class TaskManager(Component):
    """One TaskManager.

    `exit_requested` is set when the process should end; `failure` says why it cannot go on, if so.
    """

    def __init__(self, settings: TaskManagerSettings) -> None:
        super().__init__("taskmanager")
        self.settings = settings
        self.exit_requested = asyncio.Event()
        self.failure = ""
        clock = SystemClock()
        address = task_manager(settings.resource_id)
        state = Path(settings.state_directory)
        self._network = LocalNetwork()
        secret, tls = read_secret(Path(settings.secret_file)), tls_of(settings)
        self._uplink = RpcUplink(
            self._network,
            address=address,
            secret=secret,
            daemon=(settings.daemon_host, settings.daemon_port),
            others=settings.daemon_addresses,
            heartbeat_timeout=settings.heartbeat_timeout,
            tls=tls,
        )
        self._storages = Storages(settings.storage)
        self._client = BlobClient(
            settings.blob_url,
            token=access_token(secret),
            retries=settings.blob_fetch_retries,
            tls=tls.client if tls else None,
        )
        self._blobs = BlobCache(
            directory=Path(settings.working_directory) / "blobs",
            client=self._client,
            ha_store=self._storages.at(settings.blob_store) if settings.blob_store else None,
            retention=settings.blob_retention_interval,
            cleanup_interval=settings.blob_cleanup_interval,
        )
        self._offloading = OffloadingNetwork(
            self._network, TaskManagerExchange(self._client, self._blobs), minsize=settings.offload_minsize
        )
        self._keeper = SessionKeeper(
            config=self._session_config(),
            limits=Limits(silent=settings.session_timeout, stopped=settings.session_stopped_timeout),
            bounds=Figures(
                threads=settings.session_max_threads,
                open_files=settings.session_max_open_files,
                memory=settings.session_max_memory,
            ),
            start_timeout=settings.session_start_timeout,
            clock=clock,
            listener=lambda: self.executor,
            on_start_failed=self._session_start_failed,
        )
        user = system_user(settings.run_as) if settings.run_as else None
        copies = LocalSnapshots(state / "snapshots", settings.local_recovery_max_size, user)
        self._endpoint = DataEndpoint(
            root=exchanges(state),
            token=data_token(secret),
            host=settings.bind_host,
            ports=range(settings.data_ports[0], settings.data_ports[1] + 1),
            reached_as=settings.host,
            tls=tls.server(Clients.NEED_A_CERTIFICATE) if tls else None,
        )
        self._mirrors = Mirrors(
            resource_id=settings.resource_id,
            token=data_token(secret),
            tls=tls.client if tls else None,
            max_backlog=settings.exchange_max_backlog,
            patience=settings.exchange_timeout,
            on_lost=lambda attempt_id, error: self.executor.input_lost(attempt_id, error),
        )
        self.executor = TaskExecutor(
            self._core(clock.monotonic()),
            self,
            network=self._offloading,
            clock=clock,
            keeper=self._keeper,
            deployer=Deployer(
                self._storages,
                self._blobs,
                copies,
                self._mirrors,
                min_free=settings.min_free_space,
                replay=settings.exchange_replay_size,
            ),
            merging=FileMerging(
                limits=CompactionLimits(
                    max_file_size=settings.file_merging_max_file_size,
                    max_amplification=settings.file_merging_max_space_amplification,
                ),
                max_file_age=settings.file_merging_max_file_age,
                enabled=settings.file_merging_enabled,
            ),
            options=ExecutorOptions(
                state_directory=state,
                cancellation_timeout=settings.task_cancellation_timeout,
                num_retained=settings.checkpoints_retained,
            ),
        )
        logs = Logs(
            Path(settings.log_directory), upload=lambda data: self._client.put_bytes(None, data, BlobKind.TRANSIENT)
        )
        logs.serve(self.executor.mailbox)
        Threads(self._keeper, runs=self.executor.require).serve(self.executor.mailbox)
        archives = ArchiveMaker(
            self._session_config(),
            ready=self._keeper.first_ready.wait,
            directory=Path(settings.working_directory) / "archive",
        )
        # They start in this order and stop in the reverse order.
        self._parts: tuple[Component, ...] = (
            self._blobs,
            self._offloading,
            self._endpoint,
            self._mirrors,
            self.executor,
            self._uplink,
            self._keeper,
            archives,
        )

    async def _start(self) -> None:
        for part in self._parts:
            await part.start()
        self.tasks.loop("rotation of logs", self._rotate_logs)

    async def _stop(self) -> None:
        for part in reversed(self._parts):
            await part.aclose()
        await self._client.aclose()
        await self._network.aclose()
        await self._storages.aclose()
        await asyncio.to_thread(shutil.rmtree, self.settings.state_directory, ignore_errors=True)

    async def _rotate_logs(self) -> None:
        while True:
            await in_own_thread(lambda: log_rotation.rotate(Path(self.settings.log_directory)), "rotation of logs")
            await asyncio.sleep(log_rotation.INTERVAL)

    # --- what the executor needs ---------------------------------------------------------------------------------

    @property
    def data_url(self) -> str:
        return self._endpoint.url

    def end(self, reason: str, *, failed: bool) -> None:
        if failed:
            self.failure = self.failure or reason
        if not self.exit_requested.is_set():
            log.info("the TaskManager exits", reason=reason)
            self.exit_requested.set()

    def _session_start_failed(self, why: str) -> None:
        """End the process at once if its first session did not start, so that whoever started it learns why.

        A standalone TaskManager tries again itself, because nobody would restart it.
        """
        if self._keeper.generation == 1 and not self.settings.standalone:
            self.end(f"its session does not start: {why}", failed=True)

    def _session_config(self) -> sp.SessionConfig:
        settings = self.settings
        return sp.SessionConfig(
            name=f"minflinkd {settings.resource_id}",
            slots=settings.slots,
            working_directory=str(Path(settings.working_directory) / "session"),
            log_directory="" if settings.run_as else settings.log_directory,  # only our own user writes there
            printed=str(Path(settings.log_directory) / sp.LOG),
            run_as=settings.run_as,
            state_directory=settings.state_directory,
            master=settings.spark_master,
            heap_bytes=settings.heap_bytes,
            conf=settings.spark_conf,
            resolve_order=settings.resolve_order,
            class_archives=settings.class_archives,
            secrets_directory=settings.secrets_directory,
        )

    def _core(self, now: float) -> TaskManagerCore:
        settings = self.settings
        hello = RegisterTaskManager(
            address=task_manager(settings.resource_id),
            pid=os.getpid(),
            hardware=Hardware(cpu_cores=os.cpu_count() or 1, memory_bytes=psutil.virtual_memory().total),
            log_directory=settings.log_directory,
            report=TaskManagerReport(resource_id=settings.resource_id, slots=(), session=self._keeper.phase),
            standalone=settings.standalone,
            nonce=IdSource().hex(),
            build=__version__,
            slot_profile=settings.slot_profile,
        )
        waits = SlotOptions(
            heartbeat_timeout=settings.heartbeat_timeout,
            hold_timeout=settings.slot_hold_timeout,
            orphan_timeout=settings.orphan_timeout,
            reservation_timeout=settings.slot_timeout,
        )
        options = TaskManagerOptions(waits, registration_timeout=settings.registration_timeout)
        return TaskManagerCore(hello, slots=settings.slots, options=options, now=now)

    def registered(self, answer: Registered) -> None:
        """Note where the present leader's BlobServer is. It may be another one than before."""
        if answer.blob_url:
            self._client.url = answer.blob_url
        if answer.blob_store:
            self._blobs.look_in(self._storages.at(answer.blob_store))

    def metrics(self) -> dict[str, float]:
        child, jvm = self._keeper.pids()
        processes = process_metrics({"supervisor": os.getpid(), "session": child, "jvm": jvm})
        pids = {"session.pid": float(child or 0), "jvm.pid": float(jvm or 0)}
        requests = storage_metrics(self._storages.statistics())
        used = {f"jvm.{name}": value for name, value in self._keeper.jvm.items()}
        return (
            processes
            | pids
            | used
            | self._keeper.workers
            | disk_metrics(Path(self.settings.state_directory))
            | self._blobs.statistics().metrics()
            | requests
            | self.executor.merging_metrics()
        )
