"""The settings of a JobMaster. Times in seconds."""

from __future__ import annotations

from dataclasses import dataclass, field

from minflinkd.checkpoint.options import CheckpointOptions
from minflinkd.jobgraph.model import RestartStrategy
from minflinkd.rpc.messages import Library


@dataclass(frozen=True, kw_only=True)
class JobMasterOptions:
    heartbeat_interval: float = 1.0
    heartbeat_timeout: float = 5.0
    slot_request_timeout: float = 300.0
    slot_idle_timeout: float = 50.0
    cancellation_timeout: float = 30.0
    restart_strategy: RestartStrategy = field(default_factory=RestartStrategy)
    warn_after_failures: int = 3  # in a row: from then on the job is said to restart repeatedly
    checkpoints: CheckpointOptions = field(default_factory=CheckpointOptions)
    adaptive: bool = True  # start with fewer slots than wanted, and grow (R20)
    min_parallelism: int = 1  # with adaptive: of every task
    resource_wait_timeout: float = 30.0  # for all slots that are wanted, before fewer will do
    resource_stabilization_timeout: float = 10.0  # in which no more slots come, before a job grows to fewer than wanted
    cooldown_after_rescaling: float = 30.0  # between a deployment and growth
    on_trial: bool = False  # a version without a checkpoint of its own: where it fails it stands down (H7)
    exclusive: bool = False  # TaskManagers of the job's own (R24)
    libraries: tuple[Library, ...] = ()  # that a session cannot hold in two versions (B31)
