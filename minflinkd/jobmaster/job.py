"""What a JobMaster is given about its job: the job itself, its storage, and what it takes over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from minflinkd.checkpoint.turn import StorageTurn
from minflinkd.jobgraph.model import JobGraph
from minflinkd.jobmaster.succession import InheritedCheckpoints, PredecessorLeftovers, Trial
from minflinkd.rpc.messages import JobContext
from minflinkd.runtime.ids import JobId
from minflinkd.storage.location import Location
from minflinkd.storage.registry import Storages


@dataclass(frozen=True, kw_only=True)
class AcceptedJob:
    """A job in the version that is current now."""

    graph: JobGraph
    context: JobContext  # what its tasks are built with
    submitted_ms: int
    submission: dict[str, float]  # seconds until each phase of the submission had ended
    cancelled: bool = False  # the JobMaster only brings the job to its end

    @property
    def job_id(self) -> JobId:
        return self.context.job_id


@dataclass(frozen=True, kw_only=True)
class JobStorage:
    """Where the JobMasters of one job write.

    `root`: the directory of the job's checkpoints. Sinks write to any of `storages`. The JobMasters write one piece of
    work at a time, in the job's `turn`. `scrubs`: the turn to verify checkpoints, which all jobs of the daemon share.
    `leads`: whether it is certain that no other daemon leads now. `pointers`: the directory of pointers to completed
    checkpoints, if there may be other daemons (`CheckpointStore`).
    """

    storages: Storages
    root: Location
    turn: StorageTurn
    leads: Callable[[], bool] = lambda: True
    pointers: Location | None = None
    scrubs: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(frozen=True, kw_only=True)
class Succession:
    """What a JobMaster takes over from those before it, and the trial of a version that has proven nothing yet."""

    inherited: InheritedCheckpoints = field(default_factory=InheritedCheckpoints)
    leftovers: PredecessorLeftovers = field(default_factory=PredecessorLeftovers)
    trial: Trial | None = None
    preceded: bool = False  # tasks of an earlier JobMaster may still run, since it did not stop them itself
    died_making_way: bool = False  # for another version: it may have told its tasks to end
    on_adoption: Callable[[int], None] = lambda count: None  # called with the number of these tasks that are adopted
