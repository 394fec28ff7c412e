"""Turns the configuration into the options of the daemon's components."""

from __future__ import annotations

from pathlib import Path

from minflinkd.blob.server import BlobOptions
from minflinkd.checkpoint.options import CheckpointOptions
from minflinkd.config import Config
from minflinkd.config import directories as where
from minflinkd.config.job_options import ExternalizedCheckpoints, RestartStrategyType, SchedulerType
from minflinkd.config.quotas import Quotas
from minflinkd.config.resources import largest_of, resources_of
from minflinkd.config.taskmanager_options import Driver
from minflinkd.dispatcher.options import DispatcherOptions
from minflinkd.jobgraph.archives import ArchiveLimits
from minflinkd.jobgraph.model import OnDamage, RestartKind, RestartStrategy
from minflinkd.jobmaster.job_master import JobMasterOptions
from minflinkd.resourcemanager.options import ResourceManagerOptions
from minflinkd.runtime.resource_profile import NO_PROFILE, ResourceProfile


def blob_options(config: Config, state: Path, cluster_id: str) -> BlobOptions:
    return BlobOptions(
        directory=where.blob_directory(config, state, cluster_id),
        host=config.jobmanager.bind_host,
        address=config.jobmanager.rpc_address,
        ports=tuple(config.blob.server_port),
        max_size=config.blob.max_size,
        transfers=config.blob.fetch_num_concurrent,
        backlog=config.blob.fetch_backlog,
        cleanup_interval=config.blob.cleanup_interval,
        retention=config.blob.retention_interval,
    )


def resource_manager_options(config: Config, host: ResourceProfile) -> ResourceManagerOptions:
    """`host`: what the host has on which TaskManagers are started."""
    rm, slots = config.resourcemanager, config.taskmanager.number_of_task_slots
    can_start = rm.driver is not Driver.STANDALONE
    if rm.driver is Driver.KUBERNETES:
        host = NO_PROFILE  # this host says nothing about the Pods: they have what the options state
    return ResourceManagerOptions(
        slots_per_tm=slots,
        profile=resources_of(config, host).share(slots) if can_start else NO_PROFILE,
        largest=largest_of(config, host) if can_start else None,
        can_start=can_start,
        min=rm.min_taskmanagers,
        standby=rm.standby_taskmanagers,
        max=rm.max_taskmanagers,
        taskmanager_timeout=rm.taskmanager_timeout,
        start_timeout=rm.taskmanager_start_timeout,
        heartbeat_interval=config.heartbeat.interval,
        heartbeat_timeout=config.heartbeat.timeout,
    )


def dispatcher_options(config: Config, state: Path, epoch: int) -> DispatcherOptions:
    checkpoints = config.checkpointing
    return DispatcherOptions(
        checkpoint_root=where.checkpoint_uri(config, state),
        savepoint_dir=where.savepoint_uri(config, state),
        session_timeout=config.resourcemanager.taskmanager_start_timeout,
        result_expiration=config.cluster.job_expiration_time,
        result_capacity=config.cluster.job_capacity,
        on_stop=config.cluster.on_stop,
        on_stop_timeout=config.cluster.on_stop_timeout,
        archives=ArchiveLimits(
            unpacked=config.artifacts.max_unpacked_size,
            members=config.artifacts.max_members,
            ratio=config.artifacts.max_ratio,
        ),
        quotas=Quotas.parse(config.security.quotas),
        hot_restart_timeout=config.hot_restart.timeout,
        hot_restart_trial=config.hot_restart.trial,
        job_master=JobMasterOptions(
            heartbeat_interval=config.heartbeat.interval,
            heartbeat_timeout=config.heartbeat.timeout,
            slot_request_timeout=config.slot.request_timeout,
            slot_idle_timeout=config.slot.idle_timeout,
            adaptive=config.scheduler.type is SchedulerType.ADAPTIVE,
            resource_wait_timeout=config.scheduler.resource_wait_timeout,
            resource_stabilization_timeout=config.scheduler.resource_stabilization_timeout,
            cooldown_after_rescaling=config.scheduler.cooldown_after_rescaling,
            cancellation_timeout=config.taskmanager.cancellation_timeout,
            restart_strategy=restart_strategy(config),
            warn_after_failures=config.restart_strategy.warn_after_failures,
            checkpoints=CheckpointOptions(
                interval=checkpoints.interval,
                timeout=checkpoints.timeout,
                min_pause=checkpoints.min_pause,
                max_concurrent=checkpoints.max_concurrent_checkpoints,
                num_retained=checkpoints.num_retained,
                scrub_interval=checkpoints.scrub_interval,
                scrub_rate=float(checkpoints.scrub_max_rate),
                on_damage=OnDamage(checkpoints.on_damage.value),
                retain_on_cancellation=checkpoints.externalized is ExternalizedCheckpoints.RETAIN,
                tolerable_failed=checkpoints.tolerable_failed_checkpoints,
                alignment_timeout=checkpoints.aligned_checkpoint_timeout,
                epoch=epoch,
                orphan_grace=checkpoints.orphan_grace,
                hooks=master_hooks(config),
            ),
        ),
    )


def master_hooks(config: Config) -> tuple[str, ...]:
    return tuple(name.strip() for name in config.checkpointing.master_hooks.split(",") if name.strip())


def restart_strategy(config: Config) -> RestartStrategy:
    """Return the daemon's default, for jobs that name none."""
    chosen = config.restart_strategy
    match chosen.type:
        case RestartStrategyType.FIXED_DELAY:
            fixed = chosen.fixed_delay
            return RestartStrategy(kind=RestartKind.FIXED_DELAY, attempts=fixed.attempts, delay=fixed.delay)
        case RestartStrategyType.FAILURE_RATE:
            rate = chosen.failure_rate
            return RestartStrategy(
                kind=RestartKind.FAILURE_RATE,
                max_failures_per_interval=rate.max_failures_per_interval,
                failure_rate_interval=rate.interval,
                delay=rate.delay,
            )
        case RestartStrategyType.EXPONENTIAL_DELAY:
            backoff = chosen.exponential_delay
            return RestartStrategy(
                kind=RestartKind.EXPONENTIAL_DELAY,
                attempts=backoff.attempts,
                initial_backoff=backoff.initial_backoff,
                max_backoff=backoff.max_backoff,
                backoff_multiplier=backoff.backoff_multiplier,
                jitter_factor=backoff.jitter_factor,
                reset_backoff_threshold=backoff.reset_backoff_threshold,
            )
        case _:
            return RestartStrategy(kind=RestartKind.NONE)
