"""Messages in which a TaskManager offers slots to their job's JobMaster, with the tasks on them (m9, m10, A14a)."""

from __future__ import annotations

from minflinkd.rpc.messages.base import Message, Request
from minflinkd.rpc.messages.slots import Library
from minflinkd.rpc.messages.tasks import ExchangeSource, TaskStatus
from minflinkd.rpc.snapshot import NO_ROWS, RowCounts
from minflinkd.runtime.ids import AllocationId, JobId, LeaderId, ResourceId
from minflinkd.runtime.resource_profile import NO_PROFILE, ResourceProfile


class SlotOffer(Message, frozen=True):
    allocation_id: AllocationId
    slots: tuple[int, ...]


class OfferedTask(Message, frozen=True):
    """A task that an earlier JobMaster of the job deployed, and that runs on. The new JobMaster may adopt it (A14a)."""

    status: TaskStatus
    allocation_id: AllocationId
    attempt_number: int  # each JobMaster counts from 0
    parallelism: int
    version: str  # of the graph that it was built from, as in JobContext
    partitions: int = 0  # of its state; 0: it keeps none
    restored: int = 0  # the checkpoint of its own job that it started from; 0: none
    inputs: tuple[ExchangeSource, ...] = ()
    base: RowCounts = NO_ROWS  # rows of earlier attempts
    pending: tuple[int, ...] = ()  # checkpoints that it has begun, and whose end it was not told
    stops_at: int = 0  # one of them, or one that it published: it processes nothing after it, unless it is aborted
    draining: bool = False  # its sources stop at what they saw when they were told
    deployed_by: LeaderId = LeaderId("")  # the JobMaster that deployed it, even if another has adopted it since


class OffersAccepted(Message, frozen=True):
    """m10. The TaskManager frees every allocation that is not in it."""

    accepted: tuple[AllocationId, ...]


class OfferSlots(Request[OffersAccepted], frozen=True):
    """m9: all allocations of the job on this TaskManager."""

    resource_id: ResourceId
    address: str
    offers: tuple[SlotOffer, ...]
    version: int = 0  # grows with every offer; only the answer to the latest offer counts (R8)
    data_url: str = ""  # tasks on other TaskManagers read this one's exchanges there
    job_id: JobId | None = None
    tasks: tuple[OfferedTask, ...] = ()  # those on these allocations that do not end already
    draining: bool = False  # then the JobMaster can only use slots whose tasks it adopts
    libraries: tuple[Library, ...] = ()  # that the session holds; a job with other versions cannot use the slots (B31)
    slot_profile: ResourceProfile = NO_PROFILE  # as in RegisterTaskManager
