"""Requests for savepoints and checkpoints, and their answers, in Flink's form."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from minflinkd.rest.schemas.answer import Answer
from minflinkd.runtime.ids import HEX32

# The length, as `$` also matches before a line feed at the end.
TriggerId = Annotated[str, Meta(pattern=f"^{HEX32.pattern}$", max_length=32, description="32 hex digits, or nothing")]


class SavepointTrigger(Answer, frozen=True, kw_only=True):
    """`formatType` is accepted and ignored: there is only one format."""

    target_directory: str | None = msgspec.field(name="target-directory", default=None)
    cancel_job: Annotated[
        bool, Meta(description="cancel the job when the savepoint is complete; nothing is processed in between")
    ] = msgspec.field(name="cancel-job", default=False)
    trigger_id: TriggerId | None = msgspec.field(name="triggerId", default=None)


class StopWithSavepoint(Answer, frozen=True, kw_only=True):
    target_directory: str | None = msgspec.field(name="targetDirectory", default=None)
    drain: bool = False
    trigger_id: TriggerId | None = msgspec.field(name="triggerId", default=None)


class CheckpointTrigger(Answer, frozen=True, kw_only=True):
    checkpoint_type: Annotated[
        Literal["CONFIGURED", "INCREMENTAL", "FULL"],
        Meta(description="CONFIGURED is INCREMENTAL; a FULL one refers to no file of an earlier checkpoint"),
    ] = msgspec.field(name="checkpointType", default="CONFIGURED")
    trigger_id: TriggerId | None = msgspec.field(name="triggerId", default=None)


class SavepointDisposal(Answer, frozen=True, kw_only=True):
    savepoint_path: str = msgspec.field(name="savepoint-path")


class Triggered(Answer, frozen=True, kw_only=True):
    request_id: str = msgspec.field(name="request-id")


class QueueStatus(Answer, frozen=True, kw_only=True):
    id: str  # IN_PROGRESS, COMPLETED


class FailureCause(Answer, frozen=True, kw_only=True, omit_defaults=True):
    """`class` is the error's code. `serialized-throwable` is for Flink's clients: a serialized object of Java."""

    kind: str = msgspec.field(name="class")
    stack_trace: str = msgspec.field(name="stack-trace")
    serialized_throwable: str = msgspec.field(name="serialized-throwable", default="")


class Operation(Answer, frozen=True, kw_only=True, omit_defaults=True):
    location: str | None = None
    failure_cause: FailureCause | None = msgspec.field(name="failure-cause", default=None)


class CheckpointOperation(Answer, frozen=True, kw_only=True, omit_defaults=True):
    checkpoint_id: int | None = msgspec.field(name="checkpointId", default=None)
    failure_cause: FailureCause | None = msgspec.field(name="failureCause", default=None)


class CheckpointResult(Answer, frozen=True, kw_only=True):
    status: QueueStatus
    operation: CheckpointOperation | None = None


class OperationResult(Answer, frozen=True, kw_only=True):
    status: QueueStatus
    operation: Operation | None = None
