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


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpointing:
    """Checkpoints, where a job file does not say otherwise."""

    dir: str = option(
        "execution.checkpointing.dir",
        "",
        "URI under which checkpoints are stored, such as s3://bucket/checkpoints. Empty: in the state directory.",
    )
    interval: Duration = option(
        "execution.checkpointing.interval",
        Duration(10),
        "Time between the triggers of two checkpoints; 0 turns periodic checkpoints off.",
        reload=Reload.LIVE,
    )
    timeout: Duration = option(
        "execution.checkpointing.timeout",
        Duration(600),
        "A checkpoint that is not complete after this time is given up.",
        reload=Reload.LIVE,
        at_least=0.01,
    )
    min_pause: Duration = option(
        "execution.checkpointing.min-pause",
        Duration(0),
        "Least time between the end of one checkpoint and the trigger of the next.",
        reload=Reload.LIVE,
    )
    max_concurrent_checkpoints: int = option(
        "execution.checkpointing.max-concurrent-checkpoints",
        1,
        "How many checkpoints of a job may be in flight at the same time.",
        reload=Reload.LIVE,
        at_least=1,
    )
    num_retained: int = option(
        "execution.checkpointing.num-retained",
        1,
        "How many completed checkpoints of a job are kept.",
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
        "A checkpoint whose barriers align for longer than this takes the unread entries of exchanges into the "
        "snapshot and completes without them being processed; 0: never. At-least-once checkpoints do not align, "
        "and ignore it.",
        reload=Reload.LIVE,
    )
    master_hooks: str = option(
        "execution.checkpointing.master-hooks",
        "",
        "Names of installed master hooks that take part in the checkpoints of every job, separated by commas.",
    )
    orphan_grace: Duration = option(
        "execution.checkpointing.file-merging.orphan-grace",
        Duration(3600),
        "A file of checkpoints to which nothing refers, such as one that could not be deleted, is deleted when it was "
        "found so twice, half of this time apart. `minflinkd orphans` leaves alone what is younger than this.",
        reload=Reload.LIVE,
        at_least=0.01,
        aliases=("file-merging.orphan-grace",),
    )
    savepoint_dir: str = option(
        "execution.checkpointing.savepoint-dir",
        "",
        "URI under which savepoints are written whose request names no directory. Empty: `savepoints` below "
        "execution.checkpointing.dir if that is set, else below the state directory.",
        reload=Reload.LIVE,
        aliases=("state.savepoints.dir",),
    )
    externalized: ExternalizedCheckpoints = option(
        "execution.checkpointing.externalized-checkpoint-retention",
        ExternalizedCheckpoints.DELETE,
        "What becomes of the checkpoints of a job that is cancelled or fails: with retain they are their user's, and "
        "jobs can be started from them. With delete those of a failed job stay as long as its result.",
        reload=Reload.LIVE,
    )
    file_merging: bool = option(
        "execution.checkpointing.file-merging.enabled",
        True,
        "State files share physical files. With false each is a file of its own, never rewritten, and the other "
        "options of file merging but orphan-grace do nothing. A job restores from either kind.",
        aliases=("file-merging.enabled",),
    )
    max_file_size: MemorySize = option(
        "execution.checkpointing.file-merging.max-file-size",
        MemorySize(256 << 20),
        "The state files of a checkpoint are written one after another into one physical file, until it has this size.",
        at_least=1,
        aliases=("file-merging.max-file-size",),
    )
    max_file_age: Duration = option(
        "execution.checkpointing.file-merging.max-file-age",
        Duration(10),
        "Tasks of a job on one TaskManager share a checkpoint's physical files. One that has written its state waits "
        "no longer than this for those that reach the checkpoint later; they then write to a file of their own.",
        aliases=("file-merging.max-file-age",),
    )
    max_space_amplification: float = option(
        "execution.checkpointing.file-merging.max-space-amplification",
        1.3,
        "Bytes that a job's checkpoints take in the storage, over those of them that are still needed. Where it would "
        "be more, a checkpoint writes what it needs of the worst files anew, and these can be deleted.",
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
        "The delay grows no longer than this.",
        reload=Reload.LIVE,
    )
    backoff_multiplier: float = option(
        "restart-strategy.exponential-delay.backoff-multiplier",
        1.5,
        "Every further failure makes the delay this many times longer.",
        reload=Reload.LIVE,
        at_least=1,
    )
    jitter_factor: float = option(
        "restart-strategy.exponential-delay.jitter-factor",
        0.1,
        "Part of the delay that is added or taken at random, so that jobs do not restart all at once.",
        reload=Reload.LIVE,
        at_least=0,
        at_most=1,
    )
    reset_backoff_threshold: Duration = option(
        "restart-strategy.exponential-delay.reset-backoff-threshold",
        Duration(3600),
        "A job that ran this long without a failure begins again with the first delay.",
        reload=Reload.LIVE,
    )
    attempts: int | None = option(
        "restart-strategy.exponential-delay.attempts-before-reset-backoff",
        None,
        "How often a job is restarted, since its delay was last reset, before it is FAILED; null: without limit.",
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
        "A job that fails more often than this within the interval is FAILED.",
        reload=Reload.LIVE,
        at_least=0,
    )
    interval: Duration = option(
        "restart-strategy.failure-rate.failure-rate-interval",
        Duration(60),
        "The time in which failures are counted.",
        reload=Reload.LIVE,
        at_least=0.001,
    )
    delay: Duration = option(
        "restart-strategy.failure-rate.delay", Duration(1), "Delay before a restart.", reload=Reload.LIVE
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartStrategy:
    """Restarts after a failure, where a job file does not say otherwise."""

    type: RestartStrategyType = option(
        "restart-strategy.type",
        RestartStrategyType.EXPONENTIAL_DELAY,
        "When a failed job is restarted.",
        reload=Reload.LIVE,
    )
    warn_after_failures: int = option(
        "restart-strategy.warn-after-failures",
        3,
        "After this many failures in a row a job is shown as restarting repeatedly: in the log, in `minflinkd list` "
        "and `info`, over HTTP and in the metrics. A row ends when the job has completed a checkpoint and has run "
        "twice as long as before its last failure, at least 10 seconds and at most 10 minutes.",
        reload=Reload.LIVE,
        at_least=1,
    )
    exponential_delay: ExponentialDelay = field(default_factory=ExponentialDelay)
    fixed_delay: FixedDelay = field(default_factory=FixedDelay)
    failure_rate: FailureRate = field(default_factory=FailureRate)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """How jobs ask for slots."""

    request_timeout: Duration = option(
        "slot.request.timeout",
        Duration(300),
        "A request for slots that is not served within this time fails, and says why no TaskManager could serve it.",
        at_least=0.1,
    )
    idle_timeout: Duration = option(
        "slot.idle.timeout",
        Duration(50),
        "A job that runs gives slots back that it has not used for this time.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HotRestart:
    """A new version of a job that runs."""

    timeout: Duration = option(
        "hot-restart.timeout",
        Duration(60),
        "A new version of a job that is not RUNNING within this time, or then not through its first micro-batch within "
        "it, is given up, and the version before it goes on.",
        at_least=0.1,
        reload=Reload.LIVE,
    )
    trial: Duration = option(
        "hot-restart.trial",
        Duration(0),
        "A new version of a job that has no input is on trial: it takes no checkpoint until it has processed rows, and "
        "if it fails before that, the old version comes back. When this time has passed since the request, it is "
        "accepted all the same; 0: the trial lasts until there is input.",
        reload=Reload.LIVE,
    )


class SchedulerType(StrEnum):
    ADAPTIVE = "adaptive"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduler:
    """What a job does that does not get all the slots that it wants."""

    type: SchedulerType = option(
        "jobmanager.scheduler",
        SchedulerType.ADAPTIVE,
        "adaptive: a job starts with the slots that there are, at least its min-parallelism, and grows when there are "
        "more. default: it waits for all of them.",
    )
    resource_wait_timeout: Duration = option(
        "jobmanager.adaptive-scheduler.submission.resource-wait-timeout",
        Duration(30),
        "How long a job waits for all its slots before fewer will do. Longer than a TaskManager takes to start, or "
        "jobs would start small and be rescaled seconds later.",
        aliases=("jobmanager.adaptive-scheduler.resource-wait-timeout",),
    )
    resource_stabilization_timeout: Duration = option(
        "jobmanager.adaptive-scheduler.executing.resource-stabilization-timeout",
        Duration(10),
        "A running job that could grow, but not yet to its full parallelism, waits this long for further slots.",
    )
    cooldown_after_rescaling: Duration = option(
        "jobmanager.adaptive-scheduler.executing.cooldown-after-rescaling",
        Duration(30),
        "Least time between a deployment, or a failed try to grow, and the next rescale of a job.",
    )
