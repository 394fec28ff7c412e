"""Requests to verify a job's checkpoints, and their answers."""

from __future__ import annotations

import msgspec

from minflinkd.rest.schemas.answer import Answer
from minflinkd.rest.schemas.checkpoints import DamagedFile
from minflinkd.rest.schemas.savepoints import FailureCause, QueueStatus, TriggerId


class VerifiedCheckpoint(Answer, frozen=True, kw_only=True, rename="kebab"):
    id: int
    whole: bool
    given_up: bool = False  # the job has gone on from an earlier one
    damaged_files: tuple[DamagedFile, ...] = ()
    files: int = 0
    state_size: int = 0
    trigger_timestamp: int = -1


class VerificationOperation(Answer, frozen=True, kw_only=True, omit_defaults=True, rename="kebab"):
    checkpoints: tuple[VerifiedCheckpoint, ...] | None = None
    failure_cause: FailureCause | None = None


class VerificationTrigger(Answer, frozen=True, kw_only=True):
    trigger_id: TriggerId | None = msgspec.field(name="triggerId", default=None)


class VerificationResult(Answer, frozen=True, kw_only=True):
    status: QueueStatus
    operation: VerificationOperation | None = None
