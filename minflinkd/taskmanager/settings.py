"""What a TaskManager process is told when it starts. It comes from a configuration: its own, or the daemon's.

A TaskManager of the daemon gets it as one JSON file.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from minflinkd.config import Config
from minflinkd.config import directories as where
from minflinkd.config.resources import BESIDE_HEAP
from minflinkd.config.values import socket_addresses
from minflinkd.runtime import homes
from minflinkd.runtime.errors import MALFORMED, MinflinkError
from minflinkd.runtime.ids import ResourceId, parse_resource_id
from minflinkd.runtime.resource_profile import NO_PROFILE, ResourceProfile
from minflinkd.runtime.tls import Tls, TlsFiles
from minflinkd.runtime.units import MemorySize, encode_unit


class InvalidSettings(MinflinkError):
    code = "taskmanager-settings"


class TaskManagerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings. Times are in seconds, sizes in bytes, all paths absolute."""

    resource_id: ResourceId
    daemon_host: str
    daemon_port: int
    daemon_addresses: list[tuple[str, int]] = []  # of all daemons of the cluster, if there may be several
    secret_file: str
    tls_certificate: str = ""  # files for TLS with the daemon and other TaskManagers; empty: there is no TLS
    tls_key: str = ""
    tls_ca: str = ""
    slots: int
    slot_profile: ResourceProfile = NO_PROFILE  # what each of them has (R40)
    working_directory: str  # used by this TaskManager only; removed with it
    log_directory: str
    state_directory: str  # queries' checkpoint directories and local snapshots; one file system, for hard links
    standalone: bool = False  # nobody restarts it
    blob_url: str = ""  # of the BlobServer, until the ResourceManager names another one
    blob_fetch_retries: int = 5
    blob_store: str = ""  # URI of the HA store of blobs, until the ResourceManager names another one
    blob_cleanup_interval: float = 3600.0
    blob_retention_interval: float = 3600.0
    offload_minsize: int = 1024**2  # bytes; larger messages travel as blobs
    storage: dict[str, str] = {}  # options of the storage backends, by <scheme>.<option>
    resolve_order: str = "child-first"  # which module wins: the job's, or the installed one (parent-first)
    spark_master: str = ""
    heap_bytes: int = 1024**3
    spark_conf: dict[str, str] = {}
    class_archives: str = ""  # the directory of class archives; empty: none is used
    secrets_directory: str = ""  # of secrets that jobs name; empty: none
    run_as: str = ""  # the user of sessions; empty: that of the TaskManager
    heartbeat_timeout: float = 5.0
    session_start_timeout: float = 90.0
    session_timeout: float = 60.0  # after so long without an answer to a ping, a session child is replaced
    session_stopped_timeout: float = 5.0  # the same, while a signal has stopped its process or its JVM
    session_max_threads: int = 1000
    session_max_open_files: int = 2000
    session_max_memory: int = 3 * 1024**3
    slot_timeout: float = 10.0  # for a reservation that no JobMaster accepts
    slot_hold_timeout: float = 30.0
    orphan_timeout: float = 600.0
    bind_host: str = "127.0.0.1"  # of the data endpoint
    host: str = ""  # host name for other TaskManagers; empty: bind_host
    data_ports: tuple[int, int] = (0, 0)  # the first and the last port to try
    exchange_max_backlog: int = 256 * 1024**2
    exchange_replay_size: int = 512 * 1024**2
    exchange_timeout: float = 30.0  # without an answer from another TaskManager's data endpoint
    registration_timeout: float = 0.0  # 0: never gives up
    task_cancellation_timeout: float = 30.0
    file_merging_enabled: bool = True
    file_merging_max_file_size: int = 256 * 1024**2
    file_merging_max_file_age: float = 10.0
    file_merging_max_space_amplification: float = 1.3
    checkpoints_retained: int = 1  # for a job that does not set it
    local_recovery_max_size: int = 10 * 1024**3  # bytes of copies of snapshots; 0: none
    min_free_space: int = 256 * 1024**2  # bytes on the disks that a task writes to
    log_json: bool = False
    log_level: str = "INFO"


@dataclass(frozen=True, kw_only=True)
class DaemonAddress:
    """Where a TaskManager finds its daemon, and the secret that they share."""

    host: str
    port: int
    secret_file: Path
    blob_url: str = ""  # of the BlobServer, until the ResourceManager names another one
    blob_store: str = ""  # URI of the HA store of blobs, until the ResourceManager names another one


def settings_of(
    config: Config,
    *,
    resource_id: ResourceId,
    daemon: DaemonAddress,
    directory: Path,
    registration_timeout: float,
    class_archives: Path | None = None,
    standalone: bool = False,
    slots: int | None = None,
    profile: ResourceProfile = NO_PROFILE,
) -> TaskManagerSettings:
    """Return the settings of one TaskManager from its configuration.

    `directory` is the TaskManager's own. `class_archives` is shared by all; None: none is used.
    `registration_timeout` is used if the configuration has none; 0 never gives up. `profile`: what each slot has. With
    `slots`, the TaskManager has so many, and its memory is that of their profile (R40).
    """
    local, run_as = where.local_state(config, resource_id), config.taskmanager.run_as
    options, session, tls = config.taskmanager, config.taskmanager.session, config.internal_tls
    heap = session.memory_heap_size if slots is None else profile.memory * slots
    most = session.max_memory or session.memory_heap_size + BESIDE_HEAP
    settings = TaskManagerSettings(
        resource_id=resource_id,
        daemon_host=daemon.host,
        daemon_port=daemon.port,
        daemon_addresses=socket_addresses(config.jobmanager.rpc_addresses),
        secret_file=str(daemon.secret_file),
        tls_certificate=os.path.abspath(tls.certificate) if tls.enabled else "",
        tls_key=os.path.abspath(tls.key) if tls.enabled else "",
        tls_ca=os.path.abspath(tls.ca) if tls.enabled else "",
        slots=slots or options.number_of_task_slots,
        slot_profile=profile,
        # Sessions of another user do not reach the state directory.
        working_directory=str(local / "work" if run_as and local else directory),
        log_directory=str(directory / homes.LOGS),
        state_directory=str(local / "state" if run_as and local else local or directory / "state"),
        run_as=run_as,
        standalone=standalone,
        blob_url=daemon.blob_url,
        blob_fetch_retries=config.blob.fetch_retries,
        blob_store=daemon.blob_store,
        blob_cleanup_interval=config.blob.cleanup_interval,
        blob_retention_interval=config.blob.retention_interval,
        offload_minsize=config.blob.offload_minsize,
        storage=dict(config.storage.options),
        resolve_order=session.resolve_order.value,
        spark_master=session.spark_master,
        heap_bytes=heap,
        spark_conf=dict(session.spark_conf),
        class_archives=str(class_archives or ""),
        secrets_directory=options.secrets_dir,
        heartbeat_timeout=config.heartbeat.timeout,
        session_start_timeout=config.resourcemanager.taskmanager_start_timeout,
        session_timeout=session.timeout,
        session_stopped_timeout=session.stopped_timeout,
        session_max_threads=session.max_threads,
        session_max_open_files=session.max_open_files,
        session_max_memory=most if slots is None else heap + profile.off_heap * slots,
        slot_timeout=options.slot_timeout,
        slot_hold_timeout=config.jobmanager.slot_hold_timeout,
        orphan_timeout=config.cluster.orphan_timeout,
        bind_host=options.bind_host,
        host=options.host,
        data_ports=(options.data_port.first, options.data_port.last),
        exchange_max_backlog=options.exchange_max_backlog,
        exchange_replay_size=options.exchange_replay_size,
        exchange_timeout=options.exchange_timeout,
        registration_timeout=options.registration_timeout or registration_timeout,
        task_cancellation_timeout=options.cancellation_timeout,
        file_merging_enabled=config.checkpointing.file_merging,
        file_merging_max_file_size=config.checkpointing.max_file_size,
        file_merging_max_file_age=config.checkpointing.max_file_age,
        file_merging_max_space_amplification=config.checkpointing.max_space_amplification,
        checkpoints_retained=config.checkpointing.num_retained,
        local_recovery_max_size=options.local_recovery_max_size if options.local_recovery else 0,
        min_free_space=options.min_free_space,
        log_json=config.log.format.value == "json",
        log_level=config.log.level.value,
    )
    return _decoded(_encoded(settings))  # turns durations and sizes into plain numbers, which any reader understands


def _encoded(settings: TaskManagerSettings) -> bytes:
    return msgspec.json.encode(settings, enc_hook=encode_unit)


def _decoded(data: bytes) -> TaskManagerSettings:
    return msgspec.json.decode(data, type=TaskManagerSettings)


def tls_of(settings: TaskManagerSettings) -> Tls | None:
    """Raises UnusableCertificate."""
    if not settings.tls_certificate:
        return None
    files = TlsFiles(certificate=Path(settings.tls_certificate), key=Path(settings.tls_key), ca=Path(settings.tls_ca))
    return Tls(files)


def check_memory(settings: TaskManagerSettings, machine: int) -> None:
    """Check that the heap fits into `machine` bytes: a JVM may start with a larger one, and die later.

    Raises InvalidSettings.
    """
    if settings.heap_bytes > machine:
        raise InvalidSettings(
            f"taskmanager.memory.heap.size ({MemorySize(settings.heap_bytes)}) is more than this machine's memory "
            f"({machine / 1024**3:.1f} GiB)",
            hint="make it smaller; Python workers and RocksDB need memory beside it",
        )


def write_settings(settings: TaskManagerSettings, path: Path) -> None:
    path.write_bytes(msgspec.json.format(_encoded(settings), indent=2))


def read_settings(path: Path) -> TaskManagerSettings:
    """Read the settings from a file. Raises InvalidSettings."""
    try:
        settings = _decoded(path.read_bytes())
    except (OSError, *MALFORMED) as error:
        raise InvalidSettings(
            f"{path}: {error}", hint="the daemon writes this file; start TaskManagers by it"
        ) from error
    parse_resource_id(settings.resource_id)
    return settings


def read_secret(path: Path) -> bytes:
    """Return the cluster's secret. Raises InvalidSettings."""
    try:
        secret = path.read_bytes().strip()
    except OSError as error:
        raise InvalidSettings(
            f"the cluster's secret cannot be read: {error}",
            hint="copy the daemon's (cluster.secret in its state directory), and name the copy: security.secret-file",
        ) from error
    if len(secret) < 32:
        raise InvalidSettings(f"{path} holds {len(secret)} bytes; a cluster's secret has at least 32")
    return secret
