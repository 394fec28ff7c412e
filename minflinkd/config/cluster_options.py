"""Options of the daemon itself: its directories, addresses, BlobServer, heartbeats and log."""
# ruff: noqa: RUF009 - option() is dataclasses.field with the declaration as its metadata

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from minflinkd.config.declaration import Reload, option
from minflinkd.config.values import PortRange
from minflinkd.runtime.units import Duration, MemorySize


class LogLevel(StrEnum):
    DEBUG = "DEBUG"
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"


class LogFormat(StrEnum):
    AUTO = "auto"  # console on a terminal, otherwise json
    CONSOLE = "console"
    JSON = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The cluster, and where its files lie."""

    working_dir: str = option(
        "process.working-dir",
        "",
        "The state directory: job store, blobs, checkpoints and the working directories of TaskManagers, unless an "
        "option of their own says otherwise. Empty: systemd's state directory, else minflinkd under $XDG_STATE_HOME "
        "(~/.local/state).",
    )
    storage_dir: str = option(
        "high-availability.storageDir",
        "",
        "URI under which the artifacts of jobs, and large messages to TaskManagers, are kept for recovery, in a "
        "directory of this cluster's id. Empty: in the state directory.",
    )
    job_expiration_time: Duration = option(
        "jobstore.expiration-time",
        Duration(3600),
        "How long a finished job is still listed with its result.",
        reload=Reload.LIVE,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """Who may reach the daemon."""

    secret_file: str = option(
        "security.secret-file",
        "",
        "File with the cluster's secret (at least 32 bytes), by which daemon and TaskManagers prove to each other that "
        "they belong together. Empty: made in the state directory at the first start.",
    )
    allow_unauthenticated: bool = option(
        "security.allow-unauthenticated",
        False,
        "Whoever can submit a job can run code: an address other than loopback is refused for the HTTP endpoint and "
        "the BlobServer, unless this says that the network lets nobody else in.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """The HTTP endpoint."""

    address: str = option(
        "rest.address", "localhost", "Host name or address under which clients reach the HTTP endpoint."
    )
    port: int = option("rest.port", 8081, "Port of the HTTP endpoint; 0 takes any free one.", at_least=0, at_most=65535)
    bind_address: str = option("rest.bind-address", "127.0.0.1", "Address on which the HTTP endpoint listens.")
    max_content_length: MemorySize = option(
        "rest.server.max-content-length",
        MemorySize(100 << 20),
        "Largest body of a request that the HTTP endpoint accepts.",
        at_least=1024,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobManager:
    """The daemon, as TaskManagers reach it."""

    bind_host: str = option(
        "jobmanager.bind-host",
        "127.0.0.1",
        "Address on which the daemon listens for TaskManagers, who must know the cluster's secret, and serves blobs to "
        "them, and to those whom the HTTP endpoint gave the token. Neither is encrypted.",
    )
    rpc_address: str = option(
        "jobmanager.rpc.address",
        "",
        "Host name or address under which TaskManagers that were not started by the daemon reach it. Empty: "
        "jobmanager.bind-host.",
    )
    rpc_port: PortRange = option(
        "jobmanager.rpc.port",
        PortRange(),
        "Port for the connections of TaskManagers. Those that were not started by the daemon find it only where this "
        "is one port.",
    )
    slot_hold_timeout: Duration = option(
        "jobmanager.slot-hold-timeout",
        Duration(30),
        "How long TaskManagers hold the slots of a job whose JobMaster is lost for its next one, so that the job comes "
        "back on its warm TaskManagers.",
        at_least=0.1,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    """Blobs: artifacts and other files that travel between daemon and TaskManagers."""

    server_port: PortRange = option("blob.server.port", PortRange(), "Port of the BlobServer.")
    storage_directory: str = option(
        "blob.storage.directory", "", "Where the BlobServer keeps its files. Empty: in the state directory."
    )
    max_size: MemorySize = option("blob.max-size", MemorySize(2 << 30), "Largest file that is accepted.", at_least=1)
    fetch_num_concurrent: int = option(
        "blob.fetch.num-concurrent", 50, "Transfers that the BlobServer serves at a time.", at_least=1
    )
    fetch_backlog: int = option(
        "blob.fetch.backlog", 1000, "Transfers that may wait for their turn; more are told to come again.", at_least=0
    )
    fetch_retries: int = option(
        "blob.fetch.retries", 5, "How often a TaskManager tries a failed download again.", at_least=0
    )
    cleanup_interval: Duration = option(
        "blob.service.cleanup.interval",
        Duration(3600),
        "How often BlobServer and TaskManagers look for blobs that nobody needs.",
        at_least=0.1,
    )
    retention_interval: Duration = option(
        "blob.retention.interval",
        Duration(3600),
        "How long a blob that nobody needs is kept at least; at most it is twice as long.",
        at_least=0.1,
    )
    offload_minsize: MemorySize = option(
        "blob.offload.minsize",
        MemorySize(1 << 20),
        "Messages between daemon and TaskManagers that are larger travel as blobs.",
        at_least=1024,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageBackends:
    """Storage backends, each with options of its own."""

    options: dict[str, str] = option(
        "storage",
        {},
        "Options of the storage backends, as storage.<scheme>.<option>; docs/storage.md lists them.",
        sensitive=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """Heartbeats: who is still there."""

    interval: Duration = option(
        "heartbeat.interval",
        Duration(1),
        "Time between two heartbeats of TaskManagers, JobMasters and the ResourceManager.",
        at_least=0.01,
    )
    timeout: Duration = option(
        "heartbeat.timeout",
        Duration(5),
        "A party that was not heard of for this long is lost: its slots, tasks or requests are given up.",
        at_least=0.01,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """The log."""

    level: LogLevel = option("log.level", LogLevel.INFO, "Least level of the daemon's log lines.")
    format: LogFormat = option(
        "log.format", LogFormat.AUTO, "Form of log lines; auto is console on a terminal, else json."
    )
