"""Options of TaskManagers, and of the ResourceManager that starts and keeps them."""
# ruff: noqa: RUF009 - option() is dataclasses.field with the declaration as its metadata

from __future__ import annotations

from dataclasses import dataclass, field

from minflinkd.config.declaration import Reload, option
from minflinkd.runtime.units import Duration, MemorySize


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceManager:
    """How many TaskManagers there are."""

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
        "A TaskManager that has not registered this long after its start is given up and started anew.",
        reload=Reload.LIVE,
        at_least=1,
        aliases=("taskmanager.start-timeout",),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """The session child of a TaskManager: the Python driver and its JVM."""

    memory_heap_size: MemorySize = option(
        "taskmanager.memory.heap.size",
        MemorySize(1 << 30),
        "Heap of the session's JVM.",
        at_least=256 << 20,
    )
    spark_master: str = option(
        "taskmanager.spark.master",
        "",
        "Where the session's executors run: spark://..., yarn, k8s://..., local[n]. Empty: local[slots].",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskManager:
    """A TaskManager and its session."""

    number_of_task_slots: int = option(
        "taskmanager.numberOfTaskSlots",
        4,
        "Slots of a TaskManager: how many Spark tasks its session runs at a time.",
        at_least=1,
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
        "snapshots. Empty: the TaskManager's working directory.",
        aliases=("taskmanager.state.local.root-dirs",),
    )
    cancellation_timeout: Duration = option(
        "task.cancellation.timeout",
        Duration(30),
        "A task that has not ended this long after its cancellation is ended by replacing its session child.",
        at_least=0.1,
    )
    session: Session = field(default_factory=Session)
