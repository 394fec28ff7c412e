"""Which party may send which message to which endpoint (E40): a table, and the check of every incoming message.

A connection stands for the parties in the process at its other end, which proved that it belongs there. It can send
only what these parties say. For example, a TaskManager runs the code of jobs. If such code gets hold of its connection,
it can report wrong things about tasks, but it cannot submit or cancel jobs, or speak as a JobMaster.

Whoever adds a message adds its row; a test looks for it. A version must allow a message before the next version sends
it, because the connection of a sender without a row is closed. A message of an unknown type has no row: it is refused
as `UnreadableMessage`, and the connection goes on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum

from minflinkd.rpc.codec import ProtocolError
from minflinkd.runtime.errors import Consequence


class Party(StrEnum):
    """Who sends. The values are the first parts of addresses, except for `client`, which has none."""

    TASK_MANAGER = "taskmanager"
    JOB_MASTER = "jobmaster"
    RESOURCE_MANAGER = "resourcemanager"
    DISPATCHER = "dispatcher"
    SUPERVISOR = "supervisor"  # the part of a TaskManager that speaks with its session child
    SESSION_CHILD = "session"
    CLIENT = "client"  # of the HTTP endpoint, which asks for it


DAEMON = frozenset({Party.RESOURCE_MANAGER, Party.DISPATCHER, Party.JOB_MASTER, Party.CLIENT})
"""The parties in the daemon's process."""

# sender -> endpoint -> messages. `Offloaded` stands for another message, which is checked as well.
MAY_SEND: Mapping[Party, Mapping[Party, frozenset[str]]] = {
    Party.TASK_MANAGER: {
        Party.RESOURCE_MANAGER: frozenset({"RegisterTaskManager", "HeartbeatFromTaskManager", "SlotsFree"}),
        Party.JOB_MASTER: frozenset(
            {
                *("OfferSlots", "TaskStateChanged", "TaskProgress"),
                *("AcknowledgeCheckpoint", "DeclineCheckpoint", "Offloaded"),
            }
        ),
    },
    Party.JOB_MASTER: {
        Party.RESOURCE_MANAGER: frozenset({"DeclareNeeds"}),
        Party.TASK_MANAGER: frozenset(
            {
                *("DeployTask", "ResizeTask", "CancelTask", "DrainTask", "FreeSlots", "HeartbeatFromJobMaster"),
                "StandBy",
                "Offloaded",
                *("TriggerCheckpoint", "NotifyCheckpointComplete", "NotifyCheckpointAborted"),
            }
        ),
    },
    Party.RESOURCE_MANAGER: {
        Party.TASK_MANAGER: frozenset(
            {"AllocateSlots", "JobMasterChanged", "RenewSession", "SetDraining", "ExitTaskManager"}
        ),
        Party.JOB_MASTER: frozenset({"TaskManagerLost"}),
        Party.DISPATCHER: frozenset({"ListJobsToRun", "MoveJobs"}),
    },
    Party.DISPATCHER: {
        Party.RESOURCE_MANAGER: frozenset({"FindSession", "JobMasterEnded"}),
        Party.TASK_MANAGER: frozenset({"AnalyzeJob", "ReadState", "CompareState", "Offloaded"}),
    },
    Party.CLIENT: {
        Party.DISPATCHER: frozenset(
            {
                *("SubmitJob", "HotRestartJob", "RescaleJob", "CancelJob", "ListJobs", "GetJob"),
                *("GetQuotas",),
                *("TriggerSavepoint", "CheckpointJob", "GetSavepoint", "DisposeSavepoint", "GetDisposal"),
                *("GetCheckpoints", "GetCheckpointOptions", "GetOffsets", "SweepOrphans"),
                *("VerifyCheckpoints", "GetVerification"),
                *("ListState", "ReadJobState", "CompareJobState"),
            }
        ),
        Party.RESOURCE_MANAGER: frozenset({"GetResourceOverview", "ListTaskManagers", "DrainTaskManager"}),
        Party.TASK_MANAGER: frozenset(
            {"ListLogs", "ReadLog", "ReadCollected", "ReadPartitions", "DumpThreads", "SampleStacks"}
        ),
    },
    Party.SUPERVISOR: {
        Party.SESSION_CHILD: frozenset(
            {
                *("RunTask", "StopTask", "UnloadTask", "AnalyzeTasks", "PrepareTasks", "TellCollected", "Ping"),
                *("TellThreads", "TellStacks", "TellPartitions"),
                *("TakeSnapshot", "ConfirmCheckpoint", "AbortSnapshot", "DrainAttempt", "ResizeAttempt"),
                *("StepTask",),  # only in tests of jobs: other sessions have no handler for it
                *("ReadStates", "CompareStates"),
            }
        ),
    },
    Party.SESSION_CHILD: {
        Party.SUPERVISOR: frozenset(
            {"SessionReady", "SessionFailed", "TaskFailed", "BatchFinished", "InputEnded", "JvmLost"}
        ),
    },
}


class NotAllowed(ProtocolError):
    """A message that its sender has no business with. It was not carried out, and its connection is closed."""

    code = "rpc-not-allowed"
    consequence = Consequence.REFUSED


def may_send(parties: Collection[Party], target: str, name: str) -> bool:
    """Whether one of these parties may send the message of this name to this address."""
    endpoint = target.partition("/")[0]
    return any(
        name in names for party in parties for taker, names in MAY_SEND[party].items() if taker.value == endpoint
    )


def check(parties: Collection[Party], target: str, name: str) -> None:
    """Raises NotAllowed."""
    if not may_send(parties, target, name):
        sender = " or ".join(sorted(parties))
        raise NotAllowed(
            f"a {sender} may not send {name} to {target[:80]!r}",
            hint="check what runs at the other end, and that its version is this one or the one before",
        )
