"""How a job is checkpointed: the daemon's options, and those that the job overrides."""

from __future__ import annotations

from dataclasses import asdict

from minflinkd.checkpoint.options import CheckpointOptions
from minflinkd.config.load import parse_config
from minflinkd.daemon_options import master_hooks
from minflinkd.dispatcher.options import checkpoint_options, checkpointing_of_tasks
from minflinkd.jobgraph.model import Checkpointing, CheckpointMode, JobGraph
from minflinkd.runtime.units import Duration

DEFAULTS = CheckpointOptions(
    interval=10.0, min_pause=3.0, max_concurrent=2, tolerable_failed=4, alignment_timeout=2.0, hooks=("a",), epoch=7
)


def test_a_job_that_says_nothing_is_checkpointed_as_the_daemon_says() -> None:
    """J3, C20."""
    assert checkpoint_options(DEFAULTS, JobGraph(name="j", vertices=())) == DEFAULTS


def test_what_a_job_says_takes_the_place_of_the_daemons_options() -> None:
    """The job's hooks come after those of all jobs, and each runs once (J3, C20, C27)."""
    own = Checkpointing(
        interval=Duration(1.0),
        mode=CheckpointMode.AT_LEAST_ONCE,
        timeout=Duration(9.0),
        min_pause=Duration(0.0),
        max_concurrent_checkpoints=1,
        num_retained=5,
        tolerable_failed_checkpoints=0,
        master_hooks=("b", "a"),
        alignment_timeout=Duration(4.0),
    )
    found = checkpoint_options(DEFAULTS, JobGraph(name="j", vertices=(), checkpointing=own))
    assert asdict(found) == asdict(DEFAULTS) | {
        "interval": 1.0,
        "mode": CheckpointMode.AT_LEAST_ONCE,
        "timeout": 9.0,
        "min_pause": 0.0,
        "max_concurrent": 1,
        "num_retained": 5,
        "tolerable_failed": 0,
        "alignment_timeout": 4.0,
        "hooks": ("a", "b"),
    }


def test_tasks_are_told_after_what_time_checkpoints_become_unaligned() -> None:
    """A job may say that they never do (C5)."""
    mode, never = CheckpointMode.AT_LEAST_ONCE, Duration(0.0)
    for own, told in ((Checkpointing(mode=mode), 2.0), (Checkpointing(mode=mode, alignment_timeout=never), 0.0)):
        found = checkpointing_of_tasks(DEFAULTS, JobGraph(name="j", vertices=(), checkpointing=own))
        assert found == Checkpointing(mode=mode, alignment_timeout=Duration(told))


def test_the_daemons_hooks_are_names_separated_by_commas() -> None:
    """C27."""
    config = parse_config("execution.checkpointing.master-hooks: a, b ,", {}, {})
    assert master_hooks(config) == ("a", "b")
    assert master_hooks(parse_config("", {}, {})) == ()
