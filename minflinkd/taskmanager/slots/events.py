"""The events that concern the slots of a TaskManager, and the commands that result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from minflinkd.rpc.messages import AllocateSlots, DeployTask, Library, SlotOffer
from minflinkd.runtime.ids import AllocationId, AttemptId, JobId, LeaderId

# --- events: from the ResourceManager ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Allocate:
    request: AllocateSlots


@dataclass(frozen=True)
class Announced:
    """The leader of a job, according to the ResourceManager (R13)."""

    job_id: JobId
    leader: LeaderId


@dataclass(frozen=True)
class JobEnded:
    """The job has ended for good, according to the ResourceManager. No JobMaster will ask for its slots again."""

    job_id: JobId


# --- events: from a JobMaster, whose token is not earlier than the one known ---------------------------------------


@dataclass(frozen=True)
class Heard:
    """Any message without an event of its own."""

    job_id: JobId
    leader: LeaderId


@dataclass(frozen=True)
class Beat:
    job_id: JobId
    leader: LeaderId
    allocations: tuple[AllocationId, ...]  # all that the JobMaster has here


@dataclass(frozen=True)
class Deploy:
    """A valid deployment that is not a repetition, of a JobMaster that was `Heard`."""

    request: DeployTask


@dataclass(frozen=True)
class Cancel:
    job_id: JobId
    leader: LeaderId
    attempt_id: AttemptId


@dataclass(frozen=True)
class Free:
    job_id: JobId
    leader: LeaderId
    allocations: tuple[AllocationId, ...]
    job_ended: bool
    surplus: Mapping[AllocationId, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class OfferAnswered:
    job_id: JobId
    version: int
    accepted: tuple[AllocationId, ...]


@dataclass(frozen=True)
class OfferFailed:
    """No answer, or one that says nothing about the slots: the JobMaster crashed, or was replaced."""

    job_id: JobId
    version: int


# --- events: from here -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AttemptEnded:
    """Nothing of the attempt runs any more, for whatever reason. `failed`: it ended by itself, with an error."""

    attempt_id: AttemptId
    failed: bool = False


@dataclass(frozen=True)
class FailureTaken:
    """A JobMaster has answered the report that the attempt has failed."""

    attempt_id: AttemptId


@dataclass(frozen=True)
class Analysed:
    """Files of the job are here, even if the job never gets slots here."""

    job_id: JobId
    libraries: tuple[Library, ...] = ()  # libraries that its analysis loads into the session
    exclusive: bool = False  # the job's code runs here: no other job gets slots any more


@dataclass(frozen=True)
class SessionBegan:
    """A new session child has replaced an earlier one."""


@dataclass(frozen=True)
class Tick:
    pass


Event = (
    Allocate
    | Announced
    | JobEnded
    | Heard
    | Beat
    | Deploy
    | Cancel
    | Free
    | OfferAnswered
    | OfferFailed
    | AttemptEnded
    | FailureTaken
    | Analysed
    | SessionBegan
    | Tick
)


# --- commands ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MakeOffer:
    """m9: Offer slots. The outcome comes back as OfferAnswered or OfferFailed with the version."""

    job_id: JobId
    address: str
    leader: LeaderId
    version: int
    offers: tuple[SlotOffer, ...]


@dataclass(frozen=True)
class StartTask:
    """Start an accepted deployment. It ends with `attempt_ended`, even if it never comes up."""

    deployment: DeployTask


@dataclass(frozen=True)
class Adopted:
    """Another JobMaster has accepted the slots on which these attempts run. From now on, they are its own (A14a)."""

    attempts: tuple[AttemptId, ...]
    leader: LeaderId


@dataclass(frozen=True)
class EndTasks:
    """Stop these attempts. Each is reported with `attempt_ended` when nothing of it runs."""

    attempts: tuple[AttemptId, ...]
    reason: str


@dataclass(frozen=True)
class ForgetJob:
    """Delete the local copies of the job's snapshots, and its blobs. Nothing of the job runs here."""

    job_id: JobId


Command = MakeOffer | StartTask | Adopted | EndTasks | ForgetJob
