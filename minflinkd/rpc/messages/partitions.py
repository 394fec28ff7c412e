"""Messages about the partitions of a running task. They are asked for when somebody looks, and never reported."""

from __future__ import annotations

from minflinkd.rpc.messages.base import Message, Request
from minflinkd.runtime.ids import AttemptId

MOST_PARTITIONS = 256  # in one answer: about 100 kB


class Spent(Message, frozen=True):
    """What a partition has read, written and taken: rows and bytes from sources and shuffles, and into them."""

    ms: int = 0
    rows_in: int = 0
    rows_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0


class Partition(Message, frozen=True):
    """One partition in the last micro-batch.

    `attempt` counts Spark's own retries within the micro-batch, which there are on a cluster only.
    """

    index: int
    host: str
    executor: str
    attempt: int
    status: str  # Spark's: SUCCESS, or RUNNING while the query's first micro-batch runs
    started_ms: int
    last: Spent = Spent()
    total: Spent = Spent()  # since the query was started


class TaskPartitions(Message, frozen=True):
    """The partitions of the task's deciding stage: the one that has taken longest since the query was started.

    `told` are all of them by their index; of more than `MOST_PARTITIONS`, those that took longest. There are none
    before the first micro-batch.
    """

    batch_id: int = -1
    partitions: int = 0
    told: tuple[Partition, ...] = ()


class ReadPartitions(Request[TaskPartitions], frozen=True):
    """Refused if the TaskManager does not run the attempt."""

    attempt_id: AttemptId
