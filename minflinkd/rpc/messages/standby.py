"""Messages between JobMasters and the TaskManagers that stand by for their jobs (R32)."""

from __future__ import annotations

from minflinkd.jobgraph.model import Task
from minflinkd.rpc.messages.base import Message, Request
from minflinkd.rpc.messages.tasks import JobContext, TaskRestore
from minflinkd.runtime.ids import JobId, LeaderId


class StandbyTask(Message, frozen=True):
    """A task, and what it would start from if its TaskManager were lost now."""

    task: Task
    restore: TaskRestore
    partitions: int = 0  # as in DeployTask


class StandingBy(Message, frozen=True):
    """How far the preparation has got; `why`: what it still does, or why the job must do without it."""

    ready: bool
    why: str = ""


class StandBy(Request[StandingBy], frozen=True):
    """Be ready to go on with these tasks. Takes no slots; answered at once, and repeated with each checkpoint.

    The TaskManager forgets it `lease` seconds after it was last sent. A checkpoint that is older than the last one
    changes nothing.
    """

    job: JobContext
    job_leader_id: LeaderId
    checkpoint_id: int
    tasks: tuple[StandbyTask, ...]
    lease: float  # seconds

    @property
    def job_id(self) -> JobId:
        return self.job.job_id
