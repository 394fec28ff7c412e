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


class OnStop(StrEnum):
    CHECKPOINT = "checkpoint"
    SAVEPOINT = "savepoint"
    SUSPEND = "suspend"
    CANCEL = "cancel"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The cluster and its files."""

    working_dir: str = option(
        "process.working-dir",
        "",
        "The state directory, for the job store, blobs, checkpoints and the working directories of TaskManagers, "
        "unless an option of their own names another place. Empty: systemd's state directory, otherwise minflinkd "
        "under $XDG_STATE_HOME (~/.local/state).",
    )
    storage_dir: str = option(
        "high-availability.storageDir",
        "",
        "URI under which the artifacts of jobs and large messages to TaskManagers are kept for recovery, in a "
        "directory named by the cluster's id. Empty: in the state directory.",
    )
    orphan_timeout: Duration = option(
        "high-availability.orphan-timeout",
        Duration(600),
        "How long tasks go on without a JobMaster, for the next one to take them over. Their slots are held for as "
        "long. Then they end, and their job restarts from its last checkpoint.",
        at_least=0.1,
    )
    on_stop: OnStop = option(
        "on-stop",
        OnStop.CHECKPOINT,
        "What the daemon does for each job before it stops. checkpoint: take a last checkpoint, so that the next start "
        "repeats no work. savepoint: take a savepoint in execution.checkpointing.savepoint-dir, then a last "
        "checkpoint. suspend: nothing. cancel: cancel the job. A handover, such as `systemctl restart`, does not stop "
        "the jobs.",
        reload=Reload.LIVE,
    )
    on_stop_timeout: Duration = option(
        "on-stop.timeout",
        Duration(30),
        "How long on-stop may take for all jobs together. After that the daemon stops anyway, and a job that was not "
        "ready in time resumes from an earlier checkpoint. A second SIGTERM ends the wait at once.",
        at_least=0.1,
        reload=Reload.LIVE,
    )
    job_expiration_time: Duration = option(
        "jobstore.expiration-time",
        Duration(3600),
        "How long a finished job stays listed with its result.",
        reload=Reload.LIVE,
    )
    job_capacity: int = option(
        "jobstore.max-capacity",
        1000,
        "How many finished jobs are listed. The oldest are deleted, together with the checkpoints that were kept for "
        "them.",
        reload=Reload.LIVE,
        at_least=1,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """Access to the daemon."""

    secret_file: str = option(
        "security.secret-file",
        "",
        "File with the cluster's secret (at least 32 bytes), with which the daemon and TaskManagers prove to each "
        "other that they belong together. Empty: a file in the state directory, created at the first start.",
    )
    allow_unauthenticated: bool = option(
        "security.allow-unauthenticated",
        False,
        "Whether the HTTP endpoint asks nobody who they are, and everything may listen on an address other than "
        "loopback. With false, HTTP asks for a token, and such an address is refused: for the HTTP endpoint without "
        "security.ssl.rest.enabled, for the others without security.ssl.internal.enabled. Whoever can submit a job can "
        "run code: set this only if the host and the network let nobody else in.",
    )
    tokens_file: str = option(
        "security.tokens-file",
        "",
        "File of the tokens that `minflinkd token create` makes, with names, roles and hashes. It is read again on "
        "SIGHUP. Empty: the credential `tokens` of systemd (LoadCredential=), otherwise tokens.json in the state "
        "directory. The daemon's own token, http.token in the state directory, is valid besides.",
    )
    auth: dict[str, str] = option(
        "security.auth",
        {},
        "Other ways to prove who one is, written as security.auth.<scheme>.<option>. docs/security.md lists them.",
        sensitive=True,
    )
    socket_directory: str = option(
        "security.socket-directory",
        "",
        "Directory of the Unix socket over which the command line reaches the HTTP endpoint without a token. Its name "
        "has the endpoint's port. Empty: systemd's runtime directory, otherwise minflinkd in $XDG_RUNTIME_DIR, "
        "otherwise /tmp/minflinkd-<uid>. none: there is no socket.",
    )
    socket_group: str = option(
        "security.socket-group",
        "",
        "Group whose members may do everything over the Unix socket, as root and the daemon's user may. Empty: the "
        "group of the daemon's user, if it has the user's name; a shared group, such as users, does not count.",
    )
    audit_log: str = option(
        "security.audit-log",
        "",
        "File in which each change that is asked for over HTTP is written down: who, from where, what, and with which "
        "result. Empty: audit.log in the state directory. none: nothing is written down.",
    )
    quotas: dict[str, str] = option(
        "security.quotas",
        {},
        "How much each user may have at a time, written as security.quotas.<user>.<limit>. The user is the name of a "
        "token, `uid N` over the Unix socket, or * for everybody without a limit of their own. The limit is jobs (that "
        "have not ended), slots (that these jobs want at their full parallelism) or artifacts (bytes of their "
        "files, and of uploads); none lifts it. What is there already stays if a limit is lowered.",
        reload=Reload.LIVE,
    )
    allowed_hosts: str = option(
        "security.allowed-hosts",
        "",
        "More names under which clients reach the HTTP endpoint, separated by commas: those of a reverse proxy or an "
        "SSH tunnel. rest.address, the name of this host, loopback names, and on a network any address are accepted "
        "without this. Other names are refused, since a web page may let its own name point to this machine.",
    )


class Standby(StrEnum):
    REDIRECT = "redirect"
    PROXY = "proxy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """The HTTP endpoint."""

    address: str = option("rest.address", "localhost", "Host name or address at which clients reach the HTTP endpoint.")
    port: int = option("rest.port", 8081, "Port of the HTTP endpoint; 0: any free port.", at_least=0, at_most=65535)
    bind_address: str = option("rest.bind-address", "127.0.0.1", "Address on which the HTTP endpoint listens.")
    max_content_length: MemorySize = option(
        "rest.server.max-content-length",
        MemorySize(100 << 20),
        "Largest request body that the HTTP endpoint accepts.",
        at_least=1024,
    )
    max_event_streams: int = option(
        "rest.server.max-event-streams",
        500,
        "How many clients may listen to events at once: each open page is one. More are refused until one has gone.",
        at_least=0,
    )
    standby: Standby = option(
        "rest.standby",
        Standby.REDIRECT,
        "What a standby does with requests. redirect: it answers 307 with the address of the leader, which clients "
        "must be able to reach. proxy: it forwards them to the leader. In both cases, clients upload artifacts to the "
        "leader's BlobServer.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobManager:
    """How TaskManagers reach the daemon."""

    bind_host: str = option(
        "jobmanager.bind-host",
        "127.0.0.1",
        "Address on which the daemon listens for TaskManagers and serves blobs. TaskManagers must know the cluster's "
        "secret; other clients need the token from the HTTP endpoint to get blobs. Both connections are encrypted if "
        "security.ssl.internal.enabled is set.",
    )
    rpc_address: str = option(
        "jobmanager.rpc.address",
        "",
        "Host name or address at which TaskManagers that the daemon did not start reach it. While this daemon leads, "
        "standbys send TaskManagers to this address. Empty: jobmanager.bind-host.",
    )
    rpc_addresses: str = option(
        "jobmanager.rpc.addresses",
        "",
        "host:port of all daemons of the cluster, separated by commas. TaskManagers try all of them until they find "
        "the leader. A standby tells them where the leader is, even if the leader is not listed. Empty: there is one "
        "daemon, at jobmanager.rpc.address.",
    )
    rpc_port: PortRange = option(
        "jobmanager.rpc.port",
        PortRange(),
        "Port for connections from TaskManagers. TaskManagers that the daemon did not start find it only if this is "
        "one port.",
    )
    slot_hold_timeout: Duration = option(
        "jobmanager.slot-hold-timeout",
        Duration(30),
        "How long TaskManagers hold the slots of a job that has lost its JobMaster. The next JobMaster can then bring "
        "the job back on its warm TaskManagers.",
        at_least=0.1,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    """Blobs: artifacts and other files sent between the daemon and TaskManagers."""

    server_port: PortRange = option("blob.server.port", PortRange(), "Port of the BlobServer.")
    storage_directory: str = option(
        "blob.storage.directory",
        "",
        "Directory in which the BlobServer keeps its files, below its cluster's id. Empty: in the state directory.",
    )
    max_size: MemorySize = option(
        "blob.max-size", MemorySize(2 << 30), "Largest file that the BlobServer accepts.", at_least=1
    )
    fetch_num_concurrent: int = option(
        "blob.fetch.num-concurrent", 50, "How many transfers the BlobServer serves at a time.", at_least=1
    )
    fetch_backlog: int = option(
        "blob.fetch.backlog",
        1000,
        "How many transfers may wait for their turn; any more are told to try again later.",
        at_least=0,
    )
    fetch_retries: int = option(
        "blob.fetch.retries", 5, "How often a TaskManager retries a failed download.", at_least=0
    )
    cleanup_interval: Duration = option(
        "blob.service.cleanup.interval",
        Duration(3600),
        "How often the BlobServer and TaskManagers look for blobs that nobody needs.",
        at_least=0.1,
    )
    retention_interval: Duration = option(
        "blob.retention.interval",
        Duration(3600),
        "Shortest time for which a blob that nobody needs is kept. The longest is twice this.",
        at_least=0.1,
    )
    offload_minsize: MemorySize = option(
        "blob.offload.minsize",
        MemorySize(1 << 20),
        "Messages between the daemon and TaskManagers that are larger than this are sent as blobs.",
        at_least=1024,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifacts:
    """Limits of the archives of jobs, so that none fills a disk when it is unpacked."""

    max_unpacked_size: MemorySize = option(
        "artifacts.max-unpacked-size",
        MemorySize(4 << 30),
        "Largest size of all files of one archive together.",
        reload=Reload.LIVE,
        at_least=1024,
    )
    max_members: int = option(
        "artifacts.max-members", 100_000, "How many files one archive may hold.", reload=Reload.LIVE, at_least=1
    )
    max_ratio: int = option(
        "artifacts.max-ratio",
        200,
        "How many times its own size an archive may unpack to. It counts above 64 MiB.",
        reload=Reload.LIVE,
        at_least=1,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageBackends:
    """Storage backends and their options."""

    options: dict[str, str] = option(
        "storage",
        {},
        "Options of the storage backends, written as storage.<scheme>.<option>. docs/storage.md lists them.",
        sensitive=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Listeners:
    """Who is told of jobs' changes, such as OpenLineage."""

    options: dict[str, str] = option(
        "listeners",
        {},
        "Options of listeners, written as listeners.<listener>.<option>, such as listeners.openlineage.url. A listener "
        "is used if it has an option. docs/monitoring.md lists them.",
        sensitive=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """Heartbeats, and when a component counts as lost."""

    interval: Duration = option(
        "heartbeat.interval",
        Duration(1),
        "Time between two heartbeats of TaskManagers, JobMasters and the ResourceManager.",
        at_least=0.01,
    )
    timeout: Duration = option(
        "heartbeat.timeout",
        Duration(5),
        "How long a component may be silent before it counts as lost. Its slots, tasks or requests are then given up.",
        at_least=0.01,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """The log."""

    level: LogLevel = option("log.level", LogLevel.INFO, "Lowest level of the log lines that the daemon writes.")
    format: LogFormat = option(
        "log.format", LogFormat.AUTO, "Format of log lines; auto: console on a terminal, otherwise json."
    )
