"""Options that are the defaults of jobs: checkpoints, restarts, slots. A job file overrides them for its job."""
# ruff: noqa: RUF009 - option() is dataclasses.field with the declaration as its metadata

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from minflinkd.config.declaration import Reload, option
from minflinkd.runtime.units import Duration, MemorySize


class ExternalizedCheckpoints(StrEnum):
    DELETE = "delete"
    RETAIN = "retain"


class OnDamage(StrEnum):
    REFUSE = "refuse"
    FALL_BACK_AND_REPEAT = "fall-back-and-repeat"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpointing:
    """Checkpoints, unless a job file says otherwise."""

    dir: str = option(
        "execution.checkpointing.dir",
        "",
        "URI under which checkpoints are stored, such as s3://bucket/checkpoints. Empty: in the state directory.",
    )
    interval: Duration = option(
        "execution.checkpointing.interval",
        Duration(10),
        "Time between two checkpoint triggers; 0 turns periodic checkpoints off.",
        reload=Reload.LIVE,
    )
    timeout: Duration = option(
        "execution.checkpointing.timeout",
        Duration(600),
        "A checkpoint that is not complete after this time is aborted.",
        reload=Reload.LIVE,
        at_least=0.01,
    )
    min_pause: Duration = option(
        "execution.checkpointing.min-pause",
        Duration(0),
        "Shortest time between the end of one checkpoint and the trigger of the next.",
        reload=Reload.LIVE,
    )
    max_concurrent_checkpoints: int = option(
        "execution.checkpointing.max-concurrent-checkpoints",
        1,
        "How many checkpoints of a job may be in progress at the same time.",
        reload=Reload.LIVE,
        at_least=1,
    )
    num_retained: int = option(
        "execution.checkpointing.num-retained",
        3,
        "How many completed checkpoints of a job are kept. If the latest one turns out to be damaged, a job can go on "
        "from an earlier one.",
        reload=Reload.LIVE,
        at_least=1,
    )
    tolerable_failed_checkpoints: int = option(
        "execution.checkpointing.tolerable-failed-checkpoints",
        3,
        "How many checkpoints in a row may fail before the job is restarted.",
        reload=Reload.LIVE,
        at_least=0,
    )
    aligned_checkpoint_timeout: Duration = option(
        "execution.checkpointing.aligned-checkpoint-timeout",
        Duration(0),
        "How long the barriers of a checkpoint may align before it becomes unaligned; 0: without limit. An unaligned "
        "checkpoint takes the unread entries of exchanges into the snapshot and completes without processing them. "
        "At-least-once checkpoints do not align, and ignore this option.",
        reload=Reload.LIVE,
    )
    master_hooks: str = option(
        "execution.checkpointing.master-hooks",
        "",
        "Names of installed master hooks, separated by commas, that take part in the checkpoints of every job.",
    )
    orphan_grace: Duration = option(
        "execution.checkpointing.file-merging.orphan-grace",
        Duration(3600),
        "Grace period for checkpoint files to which nothing refers, such as files that could not be deleted. A file "
        "is deleted when two checks, half of this time apart, have found it unreferenced. `minflinkd orphans` leaves "
        "alone files that are younger than this.",
        reload=Reload.LIVE,
        at_least=0.01,
        aliases=("file-merging.orphan-grace",),
    )
    savepoint_dir: str = option(
        "execution.checkpointing.savepoint-dir",
        "",
        "URI under which savepoints are written if the request names no directory. Empty: `savepoints` below "
        "execution.checkpointing.dir if that is set, otherwise below the state directory.",
        reload=Reload.LIVE,
        aliases=("state.savepoints.dir",),
    )
    externalized: ExternalizedCheckpoints = option(
        "execution.checkpointing.externalized-checkpoint-retention",
        ExternalizedCheckpoints.DELETE,
        "What happens to the checkpoints of a job that is cancelled or fails. retain: they are kept, belong to the "
        "user, and jobs can be started from them. delete: they are deleted, after a failure only together with the "
        "job's result.",
        reload=Reload.LIVE,
    )
    on_damage: OnDamage = option(
        "execution.state-recovery.on-damage",
        OnDamage.REFUSE,
        "What a job does if its latest checkpoint is damaged, an earlier one is whole, but an exactly-once sink has "
        "published rows since then, which would come a second time. refuse: the job fails, and says what to do. "
        "fall-back-and-repeat: it goes on from the earlier checkpoint. If nothing would come twice, jobs go on in "
        "either case.",
        reload=Reload.LIVE,
    )
    scrub_interval: Duration = option(
        "execution.checkpointing.scrub.interval",
        Duration(3600),
        "Pause between two rounds in which the daemon reads the retained checkpoints of a job and compares them with "
        "their checksums, so that damage is known before they are needed; 0: never. Only one job is read at a time.",
        reload=Reload.LIVE,
    )
    scrub_max_rate: MemorySize = option(
        "execution.checkpointing.scrub.max-rate",
        MemorySize(16 << 20),
        "How much the daemon reads in a second to verify checkpoints.",
        reload=Reload.LIVE,
        at_least=1024,
    )
    file_merging: bool = option(
        "execution.checkpointing.file-merging.enabled",
        True,
        "Whether state files share physical files. With false, each is a file of its own that is never rewritten, and "
        "the other options of file merging have no effect, except orphan-grace. A job restores from either kind.",
        aliases=("file-merging.enabled",),
    )
    max_file_size: MemorySize = option(
        "execution.checkpointing.file-merging.max-file-size",
        MemorySize(256 << 20),
        "Size of a physical file. The state files of a checkpoint are written into it one after another until it has "
        "this size.",
        at_least=1,
        aliases=("file-merging.max-file-size",),
    )
    max_file_age: Duration = option(
        "execution.checkpointing.file-merging.max-file-age",
        Duration(10),
        "Tasks of a job on one TaskManager share a checkpoint's physical files. A task that has written its state "
        "waits at most this long for tasks that reach the checkpoint later. Those then write to a file of their own.",
        aliases=("file-merging.max-file-age",),
    )
    max_space_amplification: float = option(
        "execution.checkpointing.file-merging.max-space-amplification",
        1.3,
        "How many bytes a job's checkpoints may take in the storage for each byte that is still needed. Above this, a "
        "checkpoint rewrites what it needs from the worst files, so that these can be deleted.",
        at_least=1,
        aliases=("file-merging.max-space-amplification",),
    )


class RestartStrategyType(StrEnum):
    NONE = "none"
    FIXED_DELAY = "fixed-delay"
    FAILURE_RATE = "failure-rate"
    EXPONENTIAL_DELAY = "exponential-delay"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialDelay:
    initial_backoff: Duration = option(
        "restart-strategy.exponential-delay.initial-backoff",
        Duration(1),
        "Delay before the first restart.",
        reload=Reload.LIVE,
    )
    max_backoff: Duration = option(
        "restart-strategy.exponential-delay.max-backoff",
        Duration(60),
        "Limit up to which the delay grows.",
        reload=Reload.LIVE,
    )
    backoff_multiplier: float = option(
        "restart-strategy.exponential-delay.backoff-multiplier",
        1.5,
        "Factor by which each further failure lengthens the delay.",
        reload=Reload.LIVE,
        at_least=1,
    )
    jitter_factor: float = option(
        "restart-strategy.exponential-delay.jitter-factor",
        0.1,
        "Largest fraction of the delay that is added or subtracted at random, so that jobs do not all restart at once.",
        reload=Reload.LIVE,
        at_least=0,
        at_most=1,
    )
    reset_backoff_threshold: Duration = option(
        "restart-strategy.exponential-delay.reset-backoff-threshold",
        Duration(3600),
        "After running this long without a failure, a job begins again with the first delay.",
        reload=Reload.LIVE,
    )
    attempts: int | None = option(
        "restart-strategy.exponential-delay.attempts-before-reset-backoff",
        None,
        "How often a job is restarted before it is FAILED, counted since its delay was last reset; null: without "
        "limit.",
        reload=Reload.LIVE,
        at_least=0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedDelay:
    attempts: int = option(
        "restart-strategy.fixed-delay.attempts",
        3,
        "How often a job is restarted before it is FAILED.",
        reload=Reload.LIVE,
        at_least=0,
    )
    delay: Duration = option(
        "restart-strategy.fixed-delay.delay", Duration(1), "Delay before a restart.", reload=Reload.LIVE
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRate:
    max_failures_per_interval: int = option(
        "restart-strategy.failure-rate.max-failures-per-interval",
        3,
        "How many failures a job may have within the interval. With more, it is FAILED.",
        reload=Reload.LIVE,
        at_least=0,
    )
    interval: Duration = option(
        "restart-strategy.failure-rate.failure-rate-interval",
        Duration(60),
        "Length of the interval in which failures are counted.",
        reload=Reload.LIVE,
        at_least=0.001,
    )
    delay: Duration = option(
        "restart-strategy.failure-rate.delay", Duration(1), "Delay before a restart.", reload=Reload.LIVE
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartStrategy:
    """Restarts after a failure, unless a job file says otherwise."""

    type: RestartStrategyType = option(
        "restart-strategy.type",
        RestartStrategyType.EXPONENTIAL_DELAY,
        "When a failed job is restarted.",
        reload=Reload.LIVE,
    )
    warn_after_failures: int = option(
        "restart-strategy.warn-after-failures",
        3,
        "Number of failures in a row after which a job is shown as restarting repeatedly: in the log, in `minflinkd "
        "list` and `info`, over HTTP and in the metrics. The count starts again when the job has completed a "
        "checkpoint and has run twice as long as before its last failure (at least 10 seconds, at most 10 minutes).",
        reload=Reload.LIVE,
        at_least=1,
    )
    exponential_delay: ExponentialDelay = field(default_factory=ExponentialDelay)
    fixed_delay: FixedDelay = field(default_factory=FixedDelay)
    failure_rate: FailureRate = field(default_factory=FailureRate)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """How jobs request slots."""

    request_timeout: Duration = option(
        "slot.request.timeout",
        Duration(300),
        "How long a request for slots may wait. After that it fails, and says why no TaskManager could serve it.",
        at_least=0.1,
    )
    idle_timeout: Duration = option(
        "slot.idle.timeout",
        Duration(50),
        "A running job gives back slots that it has not used for this long.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HotRestart:
    """Hot restarts: a new version of a running job."""

    timeout: Duration = option(
        "hot-restart.timeout",
        Duration(60),
        "How long a new version of a job may take to become RUNNING, and then again to finish its first micro-batch. "
        "If it takes longer, it is given up, and the version before it continues.",
        at_least=0.1,
        reload=Reload.LIVE,
    )
    trial: Duration = option(
        "hot-restart.trial",
        Duration(0),
        "How long a new version of a job that has no input is on trial, counted from the request; 0: until there is "
        "input. On trial it takes no checkpoint until it has processed rows, and if it fails before that, the old "
        "version comes back. After this time it is accepted without input.",
        reload=Reload.LIVE,
    )


class SchedulerType(StrEnum):
    ADAPTIVE = "adaptive"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduler:
    """Jobs that get fewer slots than they want."""

    type: SchedulerType = option(
        "jobmanager.scheduler",
        SchedulerType.ADAPTIVE,
        "What a job does if there are fewer slots than it wants. adaptive: it starts with the slots that there are, "
        "at least its min-parallelism, and grows when there are more. default: it waits for all of them.",
    )
    resource_wait_timeout: Duration = option(
        "jobmanager.adaptive-scheduler.submission.resource-wait-timeout",
        Duration(30),
        "How long a job waits for all its slots before it starts with fewer. This should be longer than a TaskManager "
        "takes to start. Otherwise jobs start small and are rescaled seconds later.",
        aliases=("jobmanager.adaptive-scheduler.resource-wait-timeout",),
    )
    resource_stabilization_timeout: Duration = option(
        "jobmanager.adaptive-scheduler.executing.resource-stabilization-timeout",
        Duration(10),
        "How long a running job waits for more slots if it could grow, but not yet to its full parallelism.",
    )
    cooldown_after_rescaling: Duration = option(
        "jobmanager.adaptive-scheduler.executing.cooldown-after-rescaling",
        Duration(30),
        "Shortest time between a deployment, or a failed attempt to grow, and the next rescale of a job.",
    )
