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


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceManager:
    """How many TaskManagers there are."""

    driver: Driver = option(
        "resourcemanager.driver",
        Driver.PROCESS,
        "Who starts TaskManagers. process: the daemon, as its children. standalone: the daemon starts none, and uses "
        "those that register by themselves (`minflinkd taskmanager`); how many there are to be is then not its matter. "
        "Such TaskManagers are taken with process, too, beside its own.",
    )
    standby_taskmanagers: int = option(
        "resourcemanager.standby-taskmanagers",
        1,
        "Warm TaskManagers without a job that are kept ready, so that a job starts at once and a lost TaskManager is "
        "replaced at once.",
        reload=Reload.LIVE,
        at_least=0,
        aliases=("slotmanager.redundant-taskmanager-num",),
    )
    min_taskmanagers: int = option(
        "resourcemanager.min-taskmanagers",
        0,
        "Idle TaskManagers are not stopped below this number.",
        reload=Reload.LIVE,
        at_least=0,
    )
    max_taskmanagers: int = option(
        "resourcemanager.max-taskmanagers",
        8,
        "No more TaskManagers than this are started; each needs about taskmanager.memory.heap.size and 500 MiB.",
        reload=Reload.LIVE,
        at_least=1,
    )
    taskmanager_timeout: Duration = option(
        "resourcemanager.taskmanager-timeout",
        Duration(600),
        "A TaskManager beyond the minimum and the standbys that was idle for this long is stopped.",
        reload=Reload.LIVE,
    )
    taskmanager_start_timeout: Duration = option(
        "resourcemanager.taskmanager-registration.timeout",
        Duration(90),
        "A starting TaskManager is given up and started anew if nothing happens for this long: it does not register, "
        "or the processes of its session do nothing. The time doubles with each start in a row that was given up. A "
        "session that makes progress, however slowly, has ten times this long.",
        reload=Reload.LIVE,
        at_least=1,
        aliases=("taskmanager.start-timeout",),
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
        "Where the session's executors run: spark://..., yarn, k8s://..., local[n]. Empty: local[slots]. A cluster "
        "needs taskmanager.state.local.root-dir on storage that its executors share.",
    )
    resolve_order: ResolveOrder = option(
        "classloader.resolve-order",
        ResolveOrder.CHILD_FIRST,
        "Which module wins where a job's artifacts bring one that is installed too: child-first is the job's, except "
        "for pyspark, minflinkd and the standard library; parent-first the installed one.",
    )
    spark_conf: dict[str, str] = option(
        "taskmanager.spark.conf",
        {},
        "Further Spark settings of every session, set before its JVM starts.",
        sensitive=True,
    )
    timeout: Duration = option(
        "taskmanager.session.timeout",
        Duration(60),
        "A session child that runs, but has answered no ping for this long, is killed and replaced. User code that "
        "holds the interpreter keeps it from answering.",
        at_least=1,
    )
    stopped_timeout: Duration = option(
        "taskmanager.session.stopped-timeout",
        Duration(5),
        "A session child whose process or JVM is stopped (SIGSTOP) for this long is killed and replaced.",
        at_least=0.1,
    )
    max_threads: int = option(
        "taskmanager.session.max-threads",
        1000,
        "A session child that has more threads, together with its JVM, has aged: it gets no new work where another "
        "TaskManager can take it, and is replaced when it is idle. A fresh one has about 110, one with 4 tasks 310.",
        at_least=1,
    )
    max_open_files: int = option(
        "taskmanager.session.max-open-files",
        2000,
        "Likewise for open descriptors. A fresh session has about 350, one with 4 tasks of parallelism 4 about 500.",
        at_least=1,
    )
    max_memory: MemorySize | None = option(
        "taskmanager.session.max-memory",
        None,
        "Likewise for resident memory, without Python workers; null: taskmanager.memory.heap.size and 2 GiB.",
        at_least=1,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskManager:
    """A TaskManager and its session."""

    number_of_task_slots: int = option(
        "taskmanager.numberOfTaskSlots",
        4,
        "Slots of a TaskManager: how many Spark tasks its session runs at a time.",
        at_least=1,
    )
    bind_host: str = option(
        "taskmanager.bind-host",
        "127.0.0.1",
        "Address on which TaskManagers serve the exchanges of their tasks to each other; a request must carry a token "
        "that is made of the cluster's secret. It is not encrypted.",
    )
    host: str = option(
        "taskmanager.host",
        "",
        "Host name or address under which other TaskManagers reach this one. Empty: taskmanager.bind-host. A job whose "
        "tasks run on TaskManagers of several hosts needs both.",
    )
    data_port: PortRange = option(
        "taskmanager.data.port", PortRange(), "Port on which a TaskManager serves the exchanges of its tasks."
    )
    exchange_max_backlog: MemorySize = option(
        "taskmanager.exchange.max-backlog",
        MemorySize(256 << 20),
        "A task starts no micro-batch while the slowest reader of its exchange has more than this still to read; so "
        "much, and the output of one micro-batch, lies on disk at most, on another TaskManager as well.",
        at_least=1,
    )
    exchange_timeout: Duration = option(
        "taskmanager.exchange.timeout",
        Duration(30),
        "A task that could not read its exchange from another TaskManager for this long fails, and is restarted.",
        at_least=0.1,
    )
    slot_timeout: Duration = option(
        "taskmanager.slot.timeout",
        Duration(10),
        "A slot that was reserved for a job, and that the job has not accepted within this time, is free again.",
        at_least=0.1,
    )
    registration_timeout: Duration | None = option(
        "taskmanager.registration.timeout",
        None,
        "A TaskManager that could not register for this long exits; null: it tries without end, and a TaskManager that "
        "the daemon started exits after 10 min.",
        at_least=1,
    )
    local_state_dir: str = option(
        "taskmanager.state.local.root-dir",
        "",
        "Directory on a local disk or a memory file system for the state of running tasks and the copies of their "
        "snapshots; on a Spark cluster one that all executors have at the same path. Empty: the TaskManager's working "
        "directory.",
        aliases=("taskmanager.state.local.root-dirs",),
    )
    local_recovery: bool = option(
        "execution.state-recovery.from-local",
        True,
        "A TaskManager keeps the files of the snapshots that it took, for the retained checkpoints, and restores from "
        "them; from the storage otherwise. They are hard links: they cost disk once their task has deleted the files.",
    )
    local_recovery_max_size: MemorySize = option(
        "taskmanager.state.local.max-size",
        MemorySize(10 << 30),
        "Disk that these copies may take on a TaskManager, files that running tasks still have included: beyond it the "
        "oldest copies go.",
        at_least=0,
    )
    cancellation_timeout: Duration = option(
        "task.cancellation.timeout",
        Duration(30),
        "A task that has not ended this long after its cancellation is ended by replacing its session child.",
        at_least=0.1,
    )
    session: Session = field(default_factory=Session)
