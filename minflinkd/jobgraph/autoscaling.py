"""What a job with an `autoscaler` may be (R62). Pure."""

from __future__ import annotations

from typing import Final

from minflinkd.jobgraph.faults import Faults
from minflinkd.jobgraph.model import Autoscaler, JobGraph, RuntimeMode

TARGETS: Final = (0.1, 0.95)  # below it most slots are idle; above it a micro-batch hardly ends before the next is due
SHORTEST: Final = 10.0  # seconds: in less nobody sees what a change has done


def check_autoscaler(graph: JobGraph, faults: Faults) -> None:
    """Check the settings of the autoscaler, and whether it can do anything for such a job.

    `real_time` says that real-time mode has none.
    """
    if (own := graph.autoscaler) is None:
        return
    if graph.mode is not RuntimeMode.STREAMING:
        problem = "a batch job reads what is there, and has no rate at which rows come in"
        faults.add("autoscaler", problem, "set its parallelism, and leave the autoscaler out")
    least, most = least_of(graph, own), most_of(graph, own)
    if most is None:
        if not faults.touch("autoscaler.max"):
            faults.add("autoscaler.max", "nobody says how many slots it may get", "max, or max-parallelism of the job")
    elif graph.max_parallelism is not None and most > graph.max_parallelism:
        faults.add("autoscaler.max", f"{most} is more than max-parallelism, {graph.max_parallelism}")
    elif least > most:
        whose = "min" if own.min >= graph.min_parallelism else "min-parallelism of the job"
        faults.add("autoscaler.min", f"{whose} is {least}, and it may get {most} slots at most")
    if not TARGETS[0] <= own.target_utilization <= TARGETS[1]:
        problem = f"{own.target_utilization:g} is not a part of its slots that a job can aim at"
        faults.add("autoscaler.target-utilization", problem, f"{TARGETS[0]} to {TARGETS[1]}; 0.7 leaves room for peaks")
    for name, value in (
        ("cool-down", own.cool_down),
        ("scale-down-delay", own.scale_down_delay),
        ("catch-up", own.catch_up),
    ):
        if value < SHORTEST:
            problem = f"{value:g} s is too short to see what a change has done"
            faults.add(f"autoscaler.{name}", problem, f"{SHORTEST:g} s, or more")


def least_of(graph: JobGraph, own: Autoscaler) -> int:
    """Return how many slots a job has at least: with fewer than min-parallelism it would not start again."""
    return max(own.min, graph.min_parallelism)


def most_of(graph: JobGraph, own: Autoscaler) -> int | None:
    """Return how many slots a job may get; None if nobody says so."""
    return graph.max_parallelism if own.max is None else own.max
