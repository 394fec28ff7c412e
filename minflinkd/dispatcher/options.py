"""The options of the Dispatcher, and what they and a job's own settings come to."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import msgspec

from minflinkd.checkpoint.options import CheckpointOptions
from minflinkd.config.cluster_options import OnStop
from minflinkd.config.quotas import Quotas
from minflinkd.jobgraph.archives import ArchiveLimits
from minflinkd.jobgraph.model import Checkpointing, Externalized, JobGraph
from minflinkd.jobmaster.options import JobMasterOptions
from minflinkd.runtime.units import Duration


@dataclass(frozen=True, kw_only=True)
class DispatcherOptions:
    """Times in seconds."""

    checkpoint_root: str  # URI; every job has its own directory below it
    savepoint_dir: str  # URI, if a request names none
    session_timeout: float = 60.0  # for a TaskManager that can analyse a submission
    result_expiration: float = 3600.0
    result_capacity: int = 1000
    on_stop: OnStop = OnStop.SUSPEND
    on_stop_timeout: float = 30.0
    archives: ArchiveLimits = field(default_factory=ArchiveLimits)
    quotas: Quotas = field(default_factory=Quotas)
    hot_restart_timeout: float = 60.0  # for a new version to become RUNNING (H7)
    hot_restart_trial: float = 0.0  # after which a version that has found no input is accepted; 0: never
    job_master: JobMasterOptions


def checkpoint_options(defaults: CheckpointOptions, graph: JobGraph) -> CheckpointOptions:
    """Return the daemon's options, with the job's own settings in place of them."""
    job = graph.checkpointing
    return replace(
        defaults,
        mode=job.mode,
        interval=defaults.interval if job.interval is None else float(job.interval),
        timeout=defaults.timeout if job.timeout is None else float(job.timeout),
        min_pause=defaults.min_pause if job.min_pause is None else float(job.min_pause),
        max_concurrent=(
            defaults.max_concurrent if job.max_concurrent_checkpoints is None else job.max_concurrent_checkpoints
        ),
        hooks=tuple(dict.fromkeys((*defaults.hooks, *job.master_hooks))),
        alignment_timeout=defaults.alignment_timeout if job.alignment_timeout is None else float(job.alignment_timeout),
        retain_on_cancellation=(
            defaults.retain_on_cancellation if job.externalized is None else job.externalized is Externalized.RETAIN
        ),
        on_damage=defaults.on_damage if job.on_damage is None else job.on_damage,
        num_retained=defaults.num_retained if job.num_retained is None else job.num_retained,
        tolerable_failed=(
            defaults.tolerable_failed if job.tolerable_failed_checkpoints is None else job.tolerable_failed_checkpoints
        ),
    )


def checkpointing_of_tasks(defaults: CheckpointOptions, graph: JobGraph) -> Checkpointing:
    """Return the job's settings, plus those options of the daemon that tasks act on."""
    settled = checkpoint_options(defaults, graph)
    return msgspec.structs.replace(
        graph.checkpointing, alignment_timeout=Duration(settled.alignment_timeout), on_damage=None
    )
