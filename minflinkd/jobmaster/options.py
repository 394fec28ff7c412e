"""The settings of a JobMaster. Times are in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from minflinkd.checkpoint.options import CheckpointOptions
from minflinkd.jobgraph.model import RestartStrategy
from minflinkd.rpc.messages import Library
from minflinkd.runtime.resource_profile import ResourceProfile


@dataclass(frozen=True, kw_only=True)
class JobMasterOptions:
    heartbeat_interval: float = 1.0
    heartbeat_timeout: float = 5.0
    slot_request_timeout: float = 300.0
    slot_idle_timeout: float = 50.0
    cancellation_timeout: float = 30.0
    restart_strategy: RestartStrategy = field(default_factory=RestartStrategy)
    warn_after_failures: int = 3  # in a row; from then on the job is reported to restart repeatedly
    checkpoints: CheckpointOptions = field(default_factory=CheckpointOptions)
    adaptive: bool = True  # start with fewer slots than wanted, and grow (R20)
    min_parallelism: int = 1  # of every task, if adaptive
    max_parallelism: int | None = None  # of every task, and the number of its partitions; None: the job states none
    resource_wait_timeout: float = 30.0  # to wait for all wanted slots, before fewer suffice
    resource_stabilization_timeout: float = 10.0  # without further slots, before a job grows to fewer than it wants
    cooldown_after_rescaling: float = 30.0  # after a deployment, before the job grows
    on_trial: bool = False  # the version has no checkpoint of its own yet: if it fails, it stands down (H7)
    exclusive: bool = False  # the job has its own TaskManagers (R24)
    hot_standby: bool = False  # a spare TaskManager is kept ready to go on with the tasks (R32)
    libraries: tuple[Library, ...] = ()  # that one session cannot load in two versions (B31)
    profiles: Mapping[str, ResourceProfile] = field(default_factory=dict)  # of slots, by slot sharing group (R40)
