"""Options of TaskManagers, and of the ResourceManager that starts and keeps them."""
# ruff: noqa: RUF009 - option() is dataclasses.field with the declaration as its metadata

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from minflinkd.config.declaration import Reload, option
from minflinkd.config.values import PortRange
from minflinkd.runtime.units import Duration, MemorySize


class Driver(StrEnum):
    PROCESS = "process"  # children of the daemon
    STANDALONE = "standalone"  # started by somebody else
    KUBERNETES = "kubernetes"  # Pods

    @property
    def starts_here(self) -> bool:
        """Whether TaskManagers run on the daemon's host, with its Java."""
        return self is Driver.PROCESS


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceManager:
    """Who starts TaskManagers, and how many."""

    driver: Driver = option(
        "resourcemanager.driver",
        Driver.PROCESS,
        "Who starts TaskManagers. process: the daemon starts them as its children, and also accepts TaskManagers that "
        "register by themselves (`minflinkd taskmanager`). standalone: the daemon starts none, uses those that "
        "register, and does not control how many there are. kubernetes: each TaskManager is a Pod "
        "(docs/kubernetes.md).",
    )
    standby_taskmanagers: int = option(
        "resourcemanager.standby-taskmanagers",
        1,
        "Number of warm TaskManagers that are kept ready without a job. With them a job starts at once, and a lost "
        "TaskManager is replaced at once.",
        reload=Reload.LIVE,
        at_least=0,
        aliases=("slotmanager.redundant-taskmanager-num",),
    )
    min_taskmanagers: int = option(
        "resourcemanager.min-taskmanagers",
        0,
        "Number of TaskManagers below which idle ones are not stopped.",
        reload=Reload.LIVE,
        at_least=0,
    )
    max_taskmanagers: int = option(
        "resourcemanager.max-taskmanagers",
        8,
        "TaskManagers are started only up to this number. Each needs about taskmanager.memory.heap.size plus 500 MiB.",
        reload=Reload.LIVE,
        at_least=1,
    )
    taskmanager_timeout: Duration = option(
        "resourcemanager.taskmanager-timeout",
        Duration(600),
        "Idle time after which a TaskManager beyond the minimum and the standbys is stopped.",
        reload=Reload.LIVE,
    )
    taskmanager_start_timeout: Duration = option(
        "resourcemanager.taskmanager-registration.timeout",
        Duration(90),
        "A starting TaskManager is given up and started anew if it does not register, or the processes of its session "
        "do nothing, for this long. The time doubles with each start in a row that was given up. A session that makes "
        "progress, however slowly, has ten times this long.",
        reload=Reload.LIVE,
        at_least=1,
        aliases=("taskmanager.start-timeout",),
    )
    largest_taskmanager: dict[str, str] = option(
        "resourcemanager.largest-taskmanager",
        {},
        "The most that a TaskManager may have which is started for a job with `resources`: cpu, memory (its heap), "
        "off-heap, disk, and extras. What is not stated here is what the host has, and of extras what "
        "taskmanager.resources says. A job that needs more is refused.",
        reload=Reload.LIVE,
    )


class ResolveOrder(StrEnum):
    CHILD_FIRST = "child-first"
    PARENT_FIRST = "parent-first"


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """The session child of a TaskManager: the Python driver and its JVM."""

    memory_heap_size: MemorySize = option(
        "taskmanager.memory.heap.size",
        MemorySize(1 << 30),
        "Heap of the session's JVM, and of each executor on a Spark cluster.",
        at_least=256 << 20,
    )
    spark_master: str = option(
        "taskmanager.spark.master",
        "",
        "Where the session's executors run: spark://..., yarn, k8s://... or local[n]. Empty: local[slots]. A cluster "
        "needs taskmanager.state.local.root-dir on storage that its executors share.",
    )
    resolve_order: ResolveOrder = option(
        "classloader.resolve-order",
        ResolveOrder.CHILD_FIRST,
        "Which module is used if a job's artifacts bring one that is also installed. child-first: the job's, except "
        "for pyspark, minflinkd and the standard library. parent-first: the installed one.",
    )
    spark_conf: dict[str, str] = option(
        "taskmanager.spark.conf",
        {},
        "Additional Spark settings for every session, set before its JVM starts.",
        sensitive=True,
    )
    timeout: Duration = option(
        "taskmanager.session.timeout",
        Duration(60),
        "How long a running session child may leave pings unanswered before it is killed and replaced. User code that "
        "holds the interpreter keeps it from answering.",
        at_least=1,
    )
    stopped_timeout: Duration = option(
        "taskmanager.session.stopped-timeout",
        Duration(5),
        "How long a session child's process or JVM may be stopped (SIGSTOP) before the child is killed and replaced.",
        at_least=0.1,
    )
    max_threads: int = option(
        "taskmanager.session.max-threads",
        1000,
        "Number of threads, including those of its JVM, above which a session child has aged. It then gets no new "
        "work if another TaskManager can take it, and is replaced when it is idle. A fresh session has about 110, one "
        "with 4 tasks 310.",
        at_least=1,
    )
    max_open_files: int = option(
        "taskmanager.session.max-open-files",
        2000,
        "Number of open descriptors above which a session child has aged, as with max-threads. A fresh session has "
        "about 350, one with 4 tasks of parallelism 4 about 500.",
        at_least=1,
    )
    max_memory: MemorySize | None = option(
        "taskmanager.session.max-memory",
        None,
        "Resident memory, without Python workers, above which a session child has aged, as with max-threads; null: "
        "taskmanager.memory.heap.size plus 2 GiB.",
        at_least=1,
    )
    class_archive: bool = option(
        "taskmanager.session.class-archive",
        True,
        "Whether sessions share the classes that they load, as a file that their JVMs map into memory. A session then "
        "starts with 40 % less processor time. Once a session is ready and there is no such file, a process of the "
        "lowest priority makes it: about 25 s of processor time, 600 MB of memory, 200 MB of disk. It is made anew for "
        "another Java or another Spark.",
    )
    class_archive_dir: str = option(
        "taskmanager.session.class-archive.dir",
        "",
        "Directory of these files. Only the user of the sessions may be able to write there: they are code. Empty: a "
        "directory in the state directory.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskManager:
    """A TaskManager and its session."""

    number_of_task_slots: int = option(
        "taskmanager.numberOfTaskSlots",
        4,
        "Number of slots of a TaskManager: how many Spark tasks its session runs at a time.",
        at_least=1,
    )
    resources: dict[str, str] = option(
        "taskmanager.resources",
        {},
        "What a TaskManager has besides its heap, for all its slots together: cpu, disk, and extras such as gpu. Each "
        "slot has its share. cpu and disk that are not stated are those of the host. docs/resources.md tells more.",
    )
    bind_host: str = option(
        "taskmanager.bind-host",
        "127.0.0.1",
        "Address on which TaskManagers serve the exchanges of their tasks to each other. A request must carry a token "
        "made from the cluster's secret. It is encrypted if security.ssl.internal.enabled is set.",
    )
    host: str = option(
        "taskmanager.host",
        "",
        "Host name or address at which other TaskManagers reach this one. Empty: taskmanager.bind-host. A job with "
        "tasks on TaskManagers of several hosts needs both options.",
    )
    data_port: PortRange = option(
        "taskmanager.data.port", PortRange(), "Port on which a TaskManager serves the exchanges of its tasks."
    )
    exchange_max_backlog: MemorySize = option(
        "taskmanager.exchange.max-backlog",
        MemorySize(256 << 20),
        "A task starts no micro-batch while the slowest reader of its exchange has more than this left to read. An "
        "exchange takes at most this on disk, plus the output of one micro-batch and "
        "taskmanager.exchange.replay-size. Its copy on another TaskManager takes the same without the latter.",
        at_least=1,
    )
    exchange_replay_size: MemorySize = option(
        "taskmanager.exchange.replay-size",
        MemorySize(512 << 20),
        "How much of an exchange is kept on disk after its readers have read it, until a checkpoint covers it. So a "
        "task that fails can read it again: only the task and those that read from it restart. If more has come since "
        "the latest checkpoint, the tasks that it reads from restart as well. 0: nothing is kept.",
    )
    exchange_timeout: Duration = option(
        "taskmanager.exchange.timeout",
        Duration(30),
        "How long a task may be unable to read its exchange from another TaskManager. After that it fails and is "
        "restarted.",
        at_least=0.1,
    )
    slot_timeout: Duration = option(
        "taskmanager.slot.timeout",
        Duration(10),
        "How long a slot stays reserved for a job that has not accepted it. After that the slot is free again.",
        at_least=0.1,
    )
    registration_timeout: Duration | None = option(
        "taskmanager.registration.timeout",
        None,
        "How long a TaskManager tries to register before it exits; null: without limit, or 10 min for a TaskManager "
        "that the daemon started.",
        at_least=1,
    )
    secrets_dir: str = option(
        "taskmanager.secrets.dir",
        "",
        "Directory of the secrets that jobs name in options as ${secret:<name>}: one file each, mode 0600 or 0640. "
        "Secrets are also credentials of the systemd unit (LoadCredential=), and variables MINFLINKD_SECRET_<NAME> of "
        "the TaskManager.",
    )
    run_as: str = option(
        "taskmanager.run-as",
        "",
        "System user that sessions run as: user code, its JVM and all that they start. It then cannot read files of "
        "the daemon, or send signals to it. The daemon must be root, or have CAP_SETUID, CAP_SETGID and CAP_KILL. "
        "taskmanager.state.local.root-dir must belong to the user. docs/security.md tells more. Empty: as the daemon.",
    )
    local_state_dir: str = option(
        "taskmanager.state.local.root-dir",
        "",
        "Directory on a local disk or a memory file system for the state of running tasks and the copies of their "
        "snapshots. On a Spark cluster all executors must have it at the same path. Empty: the TaskManager's working "
        "directory.",
        aliases=("taskmanager.state.local.root-dirs",),
    )
    local_recovery: bool = option(
        "execution.state-recovery.from-local",
        True,
        "Whether a TaskManager keeps the files of its snapshots for the retained checkpoints and restores from them "
        "before it turns to the storage. They are hard links, which take disk space only after their task has deleted "
        "the files.",
    )
    local_recovery_max_size: MemorySize = option(
        "taskmanager.state.local.max-size",
        MemorySize(10 << 30),
        "Disk space that the kept copies of snapshots may take on a TaskManager, including files that running tasks "
        "still have. Above it, the oldest copies are deleted.",
        at_least=0,
    )
    min_free_space: MemorySize = option(
        "taskmanager.state.local.min-free-space",
        MemorySize(256 << 20),
        "A task starts no micro-batch while less than this is free on the disk with its state, or on the disk of a "
        "sink with a local path. On a small disk, 10 % free is enough. The limit keeps staged output from filling a "
        "disk while no checkpoint completes and publishes it. 0: never wait.",
        at_least=0,
    )
    cancellation_timeout: Duration = option(
        "task.cancellation.timeout",
        Duration(30),
        "How long a task may take to end after its cancellation. After that it is ended by replacing its session "
        "child.",
        at_least=0.1,
    )
    session: Session = field(default_factory=Session)
