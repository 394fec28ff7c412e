"""The composition root of a TaskManager's supervisor process: makes every part once, and hands it down."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import psutil
import structlog

from minflinkd.blob.cache import BlobCache
from minflinkd.blob.client import BlobClient
from minflinkd.rpc.local import LocalNetwork
from minflinkd.rpc.messages import Hardware, RegisterTaskManager
from minflinkd.rpc.network import task_manager
from minflinkd.rpc.tcp import RpcUplink
from minflinkd.runtime.clock import SystemClock
from minflinkd.runtime.component import Component
from minflinkd.storage.registry import Storages
from minflinkd.taskmanager import session_protocol as sp
from minflinkd.taskmanager.deployment import Deployer
from minflinkd.taskmanager.local_snapshots import LocalSnapshots
from minflinkd.taskmanager.logs import Logs
from minflinkd.taskmanager.process_metrics import process_metrics
from minflinkd.taskmanager.registration import Registration
from minflinkd.taskmanager.session_health import Limits
from minflinkd.taskmanager.session_keeper import SessionKeeper
from minflinkd.taskmanager.settings import TaskManagerSettings, read_secret
from minflinkd.taskmanager.task_executor import TaskExecutor

log = structlog.get_logger(__name__)


class TaskManager(Component):
    """`exit_requested` is set, with `exit_reason`, when the process should end."""

    def __init__(self, settings: TaskManagerSettings) -> None:
        super().__init__("taskmanager")
        self.settings = settings
        self.exit_requested = asyncio.Event()
        self.exit_reason = ""
        clock = SystemClock()
        address = task_manager(settings.resource_id)
        state = Path(settings.state_directory)
        self._network = LocalNetwork()
        self._uplink = RpcUplink(
            self._network,
            address=address,
            secret=read_secret(Path(settings.secret_file)),
            host=settings.daemon_host,
            port=settings.daemon_port,
        )
        self._storages = Storages()
        self._client = BlobClient(settings.blob_url, retries=settings.blob_fetch_retries)
        self._blobs = BlobCache(
            directory=Path(settings.working_directory) / "blobs",
            client=self._client,
            ha_store=self._storages.at(settings.blob_store) if settings.blob_store else None,
        )
        self._keeper = SessionKeeper(
            config=self._session_config(),
            limits=Limits(silent=settings.session_timeout, stopped=settings.session_stopped_timeout),
            start_timeout=settings.session_start_timeout,
            clock=clock,
            listener=lambda: self.executor,
        )
        self.executor = TaskExecutor(
            resource_id=settings.resource_id,
            network=self._network,
            clock=clock,
            slots=settings.slots,
            keeper=self._keeper,
            deployer=Deployer(self._storages, self._blobs, LocalSnapshots(state / "snapshots")),
            state_directory=state,
            max_file_size=settings.file_merging_max_file_size,
            cancellation_timeout=settings.task_cancellation_timeout,
            heartbeat_timeout=settings.heartbeat_timeout,
            slot_hold_timeout=settings.slot_hold_timeout,
            on_change=lambda: self._registration.report_now(),
            resource_manager=lambda: self._registration.leader,
            on_exit=self._exit,
            metrics=self._metrics,
        )
        Logs(Path(settings.log_directory)).serve(self.executor.mailbox)
        self._registration = Registration(
            self._network,
            clock=clock,
            hello=self._hello,
            report=self.executor.report,
            start_phases=lambda: self._keeper.phases,
            give_up_after=settings.registration_timeout,
            on_give_up=self._exit,
        )
        # In the order in which they start; they stop in the opposite one.
        self._parts: tuple[Component, ...] = (
            self._blobs,
            self.executor,
            self._uplink,
            self._registration,
            self._keeper,
        )

    async def _start(self) -> None:
        for part in self._parts:
            await part.start()

    async def _stop(self) -> None:
        for part in reversed(self._parts):
            await part.aclose()
        await self._client.aclose()
        await self._network.aclose()
        await self._storages.aclose()
        await asyncio.to_thread(shutil.rmtree, self.settings.state_directory, ignore_errors=True)

    def _exit(self, reason: str) -> None:
        if not self.exit_requested.is_set():
            log.info("the TaskManager exits", reason=reason)
            self.exit_reason = reason
            self.exit_requested.set()

    def _session_config(self) -> sp.SessionConfig:
        settings = self.settings
        return sp.SessionConfig(
            name=f"minflinkd {settings.resource_id}",
            slots=settings.slots,
            working_directory=str(Path(settings.working_directory) / "session"),
            log_directory=settings.log_directory,
            master=settings.spark_master,
            heap_bytes=settings.heap_bytes,
            conf=settings.spark_conf,
        )

    def _hello(self) -> RegisterTaskManager:
        return RegisterTaskManager(
            address=task_manager(self.settings.resource_id),
            pid=os.getpid(),
            hardware=Hardware(cpu_cores=os.cpu_count() or 1, memory_bytes=psutil.virtual_memory().total),
            log_directory=self.settings.log_directory,
            report=self.executor.report(),
        )

    def _metrics(self) -> dict[str, float]:
        child, jvm = self._keeper.pids()
        return process_metrics({"supervisor": os.getpid(), "session": child, "jvm": jvm}) | {
            "session.pid": float(child or 0),
            "jvm.pid": float(jvm or 0),
        }
