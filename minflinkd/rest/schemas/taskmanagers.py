"""TaskManagers and their logs."""

from __future__ import annotations

from minflinkd.rest.schemas.answer import Answer


class ResourceProfile(Answer, frozen=True, kw_only=True, rename="camel"):
    """Memory in MiB; -1: not known. The heap is the share of the session's heap, which its slots have in common."""

    cpu_cores: float = -1.0
    task_heap_memory: int = -1
    task_off_heap_memory: int = -1
    managed_memory: int = -1
    network_memory: int = -1
    extended_resources: dict[str, float] = {}


class HardwareInfo(Answer, frozen=True, kw_only=True, rename="camel"):
    cpu_cores: int
    physical_memory: int
    free_memory: int = 0
    managed_memory: int = 0


class MemoryConfiguration(Answer, frozen=True, kw_only=True, rename="camel"):
    framework_heap: int = 0
    task_heap: int = 0
    framework_off_heap: int = 0
    task_off_heap: int = 0
    network_memory: int = 0
    managed_memory: int = 0
    jvm_metaspace: int = 0
    jvm_overhead: int = 0
    total_flink_memory: int = 0
    total_process_memory: int = 0


class SlotHolder(Answer, frozen=True, kw_only=True, rename="kebab"):
    index: int
    job_id: str | None
    allocation_id: str | None


class SessionInfo(Answer, frozen=True, kw_only=True, rename="kebab"):
    """A TaskManager in minflinkd's terms."""

    session: str
    session_generation: int
    session_slow: str = ""  # a warning that the current start takes longer than it should
    session_error: str = ""  # why the last start of its session failed
    pid: int
    version: str = ""  # of minflinkd; after a restart of the daemon it may differ from the daemon's
    instance_id: str
    registered: int
    standalone: bool = False  # not started by the daemon, which does not replace it either
    draining: bool = False  # it gives out no slots, its jobs move away, and it ends when all slots are free
    held_by: dict[str, str] = {}  # while it is draining: the jobs on it, and why they are still there; "": they move
    slots: tuple[SlotHolder, ...]
    start_phases: dict[str, float]  # seconds from process start
    metrics: dict[str, float]
    each_slot: dict[str, float] = {}  # cpu, memory, off-heap and disk in bytes, and extras; empty: not known


class TaskManager(Answer, frozen=True, kw_only=True, rename="camel"):
    id: str
    path: str
    data_port: int = 0
    jmx_port: int = -1
    time_since_last_heartbeat: int  # Flink's name; it is the time of the last heartbeat
    slots_number: int
    free_slots: int
    assigned_tasks: int = 0  # tasks that run on it
    total_resource: ResourceProfile
    free_resource: ResourceProfile
    hardware: HardwareInfo
    memory_configuration: MemoryConfiguration = MemoryConfiguration()
    blocked: bool = False
    minflinkd: SessionInfo


class TaskManagers(Answer, frozen=True, kw_only=True):
    taskmanagers: tuple[TaskManager, ...]


class AllocatedSlot(Answer, frozen=True, kw_only=True, rename="camel"):
    job_id: str
    resource: ResourceProfile
    assigned_tasks: int = 0  # tasks that run in it; a task may need several slots


class GarbageCollector(Answer, frozen=True, kw_only=True):
    name: str
    count: int
    time: int


class TaskManagerMetrics(Answer, frozen=True, kw_only=True, rename="camel"):
    """Of the session's JVM. Flink's network memory does not exist here. All figures are in `minflinkd.metrics`."""

    heap_used: int = 0
    heap_committed: int = 0
    heap_max: int = 0
    non_heap_used: int = 0
    non_heap_committed: int = 0
    non_heap_max: int = 0
    direct_count: int = 0
    direct_used: int = 0
    direct_max: int = 0
    mapped_count: int = 0
    mapped_used: int = 0
    mapped_max: int = 0
    netty_shuffle_memory_segments_available: int = 0
    netty_shuffle_memory_segments_used: int = 0
    netty_shuffle_memory_segments_total: int = 0
    netty_shuffle_memory_available: int = 0
    netty_shuffle_memory_used: int = 0
    netty_shuffle_memory_total: int = 0
    garbage_collectors: tuple[GarbageCollector, ...] = ()


class TaskManagerDetails(TaskManager, frozen=True, kw_only=True, rename="camel"):
    allocated_slots: tuple[AllocatedSlot, ...]
    metrics: TaskManagerMetrics = TaskManagerMetrics()


class Drain(Answer, frozen=True, kw_only=True, rename="kebab"):
    id: str
    draining: bool


class Log(Answer, frozen=True, kw_only=True):
    name: str
    size: int
    mtime: int = 0  # 0: not known


class Logs(Answer, frozen=True, kw_only=True):
    logs: tuple[Log, ...]
